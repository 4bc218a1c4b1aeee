"""Pings from a command line: one subject, or one a line of a long list."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from cape_stream.errors import Fatal
from cape_stream.model.sequence import BadSequenceError
from cape_stream.model.subject import BadSubjectError
from cape_stream.roles.backends import Backend, patiently
from cape_stream.roles.partitions import check_counts
from cape_stream.roles.settings import SettingsError
from cape_stream.sdk.app import App
from cape_stream.sdk.pinger import Pinger

FLUSH_MS = 30_000
TRY_AGAIN_MS = 50
REFUSED_SHOWN_MAX = 10


@dataclass(slots=True)
class PingOutcome:
    """What became of all of them."""

    domain: str
    sent: int = 0
    """Acknowledged by the log."""
    lost: int = 0
    """Given up by the client; refresh finds their news."""
    refused: list[str] = field(default_factory=list)
    """Lines that were none, each with its number and what is wrong with it."""

    @property
    def complete(self) -> bool:
        """True if every ping is in the log."""
        return not self.refused and not self.lost

    def as_json(self) -> str:
        """For programs."""
        return json.dumps(
            {
                "domain": self.domain,
                "sent": self.sent,
                "lost": self.lost,
                "refused": self.refused,
            }
        )

    def in_words(self) -> str:
        """For people."""
        lines = [f"{self.sent:,} pings of {self.domain} sent"]
        if self.lost:
            lines.append(f"{self.lost:,} given up by the client: the log did not take them")
        lines += self.refused[:REFUSED_SHOWN_MAX]
        if len(self.refused) > REFUSED_SHOWN_MAX:
            lines.append(f"and {len(self.refused) - REFUSED_SHOWN_MAX:,} more refused")
        return "\n".join(lines)


def ping(app: App, backend: Backend, domain: str, lines: Iterable[str]) -> PingOutcome:
    """Ping what the lines name: a subject, or a subject, a tab and its newest sequence id.

    Raises:
        SettingsError: the App has no such domain.
        Fatal: the topic is missing or has another number of partitions, or the log is away.
    """
    if domain not in app.domains:
        known = ", ".join(app.domains) or "none"
        raise SettingsError(f"App {app.name!r} has no domain {domain!r}; it has {known}")
    topic = app.topic_names.pings(domain)
    patiently(
        lambda: check_counts(backend.log, app, [topic]),
        backend.place,
        patience_ms=backend.patience_ms,
    )
    outcome = PingOutcome(domain)
    with Pinger(
        backend.log, backend.codec, backend.clock, topic=topic, partitions=app.partitions
    ) as pinger:
        for number, line in enumerate(lines, 1):
            _ping_line(pinger, line.rstrip("\r\n"), number, outcome)
        if not pinger.flush(FLUSH_MS):
            raise Fatal(f"{backend.place} does not answer; not every ping is known to be there")
        counters = pinger.counters()
    outcome.sent, outcome.lost = counters.sent - counters.lost, counters.lost
    return outcome


def _ping_line(pinger: Pinger, line: str, number: int, outcome: PingOutcome) -> None:
    subject, tab, text = line.rpartition("\t")
    if not tab:
        subject, text = text, ""
    try:
        latest = _as_sequence(text) if tab else None
        while not pinger.ping(subject, latest):
            pinger.flush(TRY_AGAIN_MS)  # the client's queue is full: wait, here nobody hurries
    except (BadSubjectError, BadSequenceError) as error:
        outcome.refused.append(f"line {number}: {error}")


def _as_sequence(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise BadSequenceError(f"latest must be a whole number, not {text!r}") from error
