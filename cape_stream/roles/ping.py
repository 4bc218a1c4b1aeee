"""Pings from a command line: one subject, or one a line of a long list."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

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
DIGITS_MAX = 40
WHOLE_NUMBER = re.compile(r"-?[0-9]+", re.ASCII)


class Asked(NamedTuple):
    """A ping as somebody wrote it."""

    subject: str
    latest: str | None = None
    """Its newest sequence id, if one was given."""
    place: str = ""
    """Where it stands, for messages, such as ``line 3: ``; empty where there is only one."""


def read_lines(lines: Iterable[bytes]) -> Iterator[Asked]:
    """One subject a line, byte for byte, or a subject, a tab and its newest sequence id."""
    for number, line in enumerate(lines, 1):
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")
        subject, tab, latest = text.rpartition("\t")
        place = f"line {number}: "
        yield Asked(subject, latest, place) if tab else Asked(text, None, place)


@dataclass(slots=True)
class PingOutcome:
    """What became of all of them."""

    domain: str
    sent: int = 0
    """Acknowledged by the log."""
    lost: int = 0
    """Given up by the client; refresh finds their news."""
    refused: list[str] = field(default_factory=list)
    """What is wrong with those that are none, each with its place."""

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
        pings = "ping" if self.sent == 1 else "pings"
        lines = [f"{self.sent:,} {pings} of {self.domain} sent"]
        if self.lost:
            lines.append(f"{self.lost:,} given up by the client: the log did not take them")
        lines += self.refused[:REFUSED_SHOWN_MAX]
        if len(self.refused) > REFUSED_SHOWN_MAX:
            lines.append(f"and {len(self.refused) - REFUSED_SHOWN_MAX:,} more refused")
        return "\n".join(lines)


def ping(app: App, backend: Backend, domain: str, asked: Iterable[Asked]) -> PingOutcome:
    """Send pings.

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
        for each in asked:
            _ping(pinger, each, outcome)
        if not pinger.flush(FLUSH_MS):
            raise Fatal(f"{backend.place} does not answer; not every ping is known to be there")
        counters = pinger.counters()
    outcome.sent, outcome.lost = counters.sent - counters.lost, counters.lost
    return outcome


def _ping(pinger: Pinger, asked: Asked, outcome: PingOutcome) -> None:
    try:
        latest = None if asked.latest is None else _as_sequence(asked.latest)
        while not pinger.ping(asked.subject, latest):
            pinger.flush(TRY_AGAIN_MS)  # the client's queue is full: wait, here nobody hurries
    except (BadSubjectError, BadSequenceError) as error:
        outcome.refused.append(f"{asked.place}{error}")


def _as_sequence(text: str) -> int:
    if len(text) > DIGITS_MAX or not WHOLE_NUMBER.fullmatch(text):
        raise BadSequenceError(f"latest must be a whole number, not {text[:DIGITS_MAX]!r}")
    return int(text)
