"""How far a running process is, in plain lines for people."""

import time
from collections.abc import Mapping

from cape_stream.roles.crew import say

RATED = ("events_done", "jobs_done", "refresh_pings")
"""Figures shown with their rate."""

WORDS = {
    "events_done": "events done",
    "jobs_done": "jobs done",
    "jobs_sent": "jobs sent",
    "in_flight": "jobs in flight",
    "subjects_active": "subjects active",
    "events_failed": "failures",
    "refresh_pings": "refresh pings",
    "refresh_sources_failing": "sources failing",
    "sources_down": "sources down",
    "statuses_accepted": "statuses taken",
    "pings_accepted": "pings taken",
    "gateway_refused": "refused",
    "dead_letters": "dead letters",
}
"""Figures shown, in this order; the ones that are zero are left out."""


class Progress:
    """Says what has changed since the last time."""

    def __init__(self) -> None:
        self._last: Mapping[str, int] = {}
        self._last_s = time.monotonic()

    def say(self, figures: Mapping[str, int]) -> None:
        """One line, unless nothing has happened."""
        now_s = time.monotonic()
        if figures != self._last:
            say(self.line(figures, now_s - self._last_s))
        self._last, self._last_s = figures, now_s

    def line(self, figures: Mapping[str, int], since_s: float) -> str:
        """Figures in words, with rates over the time since the last line."""
        parts = []
        for name, words in WORDS.items():
            value = figures.get(name, 0)
            if not value:
                continue
            rate = max(0, value - self._last.get(name, 0)) / max(since_s, 0.001)
            parts.append(f"{value:,} {words}" + (f" ({rate:,.0f}/s)" if name in RATED else ""))
        waiting = figures.get("tasks", 0) - figures.get("tasks_running", 0)
        if waiting:
            parts.append(f"{waiting} of {figures['tasks']} tasks not running yet")
        return ", ".join(parts) or "nothing to do"

    def summary(self, figures: Mapping[str, int]) -> str:
        """Figures in words, without rates."""
        shown = [f"{figures[name]:,} {words}" for name, words in WORDS.items() if figures.get(name)]
        return ", ".join(shown) or "nothing was done"
