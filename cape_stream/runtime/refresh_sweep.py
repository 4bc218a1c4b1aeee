"""One walk along the changes of one source: ask, ping what changed, move the watermark, again.

    RESTING → ASKING → PINGING → AWAITING → RESTING
              └── failed, or too slow ──────┘ (with backoff, from the same watermark)

The watermark moves only when the log has acknowledged every ping of the page it stands for. So
whatever happens in between, the worst is that subjects are pinged twice.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from cape_stream.errors import Reject
from cape_stream.ports.background import Background, Pending
from cape_stream.ports.log import Producer, TopicPartition
from cape_stream.ports.source import Changes, EventSource
from cape_stream.runtime.refresh_settings import RefreshSettings

BACKOFF_DOUBLINGS_MAX = 20

logger = logging.getLogger(__name__)


class Phase(Enum):
    """Where a walk stands in its round."""

    RESTING = "resting"
    ASKING = "asking"
    PINGING = "pinging"
    AWAITING = "awaiting"


@dataclass(slots=True)
class SweepCounters:
    """For metrics; each grows only."""

    calls: int = 0
    failures: int = 0
    """Calls that raised, or answered what is no answer."""
    timeouts: int = 0
    subjects: int = 0
    """Subjects the source named."""
    refused_subjects: int = 0
    """Of those, the ones that are no subjects; nobody can be pinged for them."""
    lost_rounds: int = 0
    """Rounds repeated because the log gave up one of their pings."""
    finished: int = 0
    """Times the walk came to the end of what there was."""


@dataclass(slots=True)
class Sweep:
    """State of one walk. `turn` moves it on and never waits.

    Args:
        name: for log lines, such as ``flights``.
        source: whom to ask.
        topic: where its pings go.
        background: where the calls run.
        settings: pace and bounds.
        send: (topic, subject, latest) gives one ping to the log. False: its queue is full, offer
            it again. Raises Reject for what is no subject.
        pause_ms: pause between two pages of a walk that has more to go; 0 for none.
    """

    name: str
    source: EventSource
    topic: str
    background: Background
    settings: RefreshSettings
    send: Callable[[str, str, int], bool]
    pause_ms: int = 0
    watermark: str | None = None
    """Everything up to it is pinged and acknowledged; None: nothing yet."""
    due_ms: int = 0
    """When the next call may start, while resting."""
    phase: Phase = Phase.RESTING
    counters: SweepCounters = field(default_factory=SweepCounters)
    last_error: str = ""
    """Why the newest call failed; empty after one that did not."""
    _failures_in_a_row: int = 0
    _call: Pending[Changes] | None = None
    _asked_ms: int = 0
    _hanging: list[Pending[Changes]] = field(default_factory=list)
    _page: Changes | None = None
    _waiting: deque[tuple[str, int]] = field(default_factory=deque)
    _awaited: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """True while something is under way that `turn` should look at soon."""
        return self.phase is not Phase.RESTING

    def start_over(self, watermark: str | None, due_ms: int) -> None:
        """Forget what is under way and go on from ``watermark``; old answers are ignored."""
        if self._call is not None:
            self._hanging.append(self._call)
            self._call = None
        self.watermark = watermark
        self.due_ms = due_ms
        self._rest()

    def turn(self, producer: Producer, now_ms: int) -> bool:
        """Move on as far as possible; True if the walk has just come to its end."""
        if self.phase is Phase.RESTING and now_ms >= self.due_ms:
            self._ask(now_ms)
        if self.phase is Phase.ASKING:
            self._look(now_ms)
        if self.phase is Phase.PINGING:
            self._ping(producer)
        if self.phase is Phase.AWAITING:
            return self._settle(producer, now_ms)
        return False

    def repeat_round(self, now_ms: int) -> None:
        """A ping of the present round was lost: ask for the same page again."""
        if self.phase in (Phase.PINGING, Phase.AWAITING):
            self.counters.lost_rounds += 1
            self._back_off("the log gave up a ping", now_ms)

    def _ask(self, now_ms: int) -> None:
        self._hanging = [call for call in self._hanging if not call.done()]
        if len(self._hanging) >= self.settings.calls_hanging_max:
            self.due_ms = now_ms + self.settings.backoff_max_ms
            return
        source, watermark, limit = self.source, self.watermark, self.settings.limit
        self.counters.calls += 1
        self._call = self.background.submit(lambda: source.changed_since(watermark, limit))
        self._asked_ms = now_ms
        self.phase = Phase.ASKING

    def _look(self, now_ms: int) -> None:
        """Take the answer, if it has come."""
        assert self._call is not None, "asking without a call"
        if not self._call.done():
            if now_ms - self._asked_ms >= self.settings.call_timeout_ms:
                self.counters.timeouts += 1
                self._hanging.append(self._call)
                self._call = None
                self._back_off(f"no answer within {self.settings.call_timeout_ms} ms", now_ms)
            return
        call, self._call = self._call, None
        try:
            page = call.result()
            fault = _page_fault(page, self.watermark)
        except Exception as error:  # noqa: BLE001  # a source is foreign code
            self.counters.failures += 1
            self._back_off(f"{type(error).__name__}: {error}", now_ms)
            return
        if fault is not None:
            self.counters.failures += 1
            self._back_off(fault, now_ms)
            return
        self.counters.subjects += len(page.subjects)
        self._page = page
        self._waiting.extend(page.subjects)
        self.phase = Phase.PINGING

    def _ping(self, producer: Producer) -> None:
        waiting = self._waiting
        while waiting:
            subject, latest = waiting[0]
            try:
                if not self.send(self.topic, subject, latest):
                    return
            except Reject as error:
                self._note_refused(error)
            waiting.popleft()
        ours = self.topic
        self._awaited = {name: n for name, n in producer.sent.items() if name.topic == ours}
        self.phase = Phase.AWAITING

    def _note_refused(self, error: Reject) -> None:
        self.counters.refused_subjects += 1
        if self.counters.refused_subjects == 1:
            logger.warning("refresh of %s cannot ping what the source names: %s", self.name, error)

    def _settle(self, producer: Producer, now_ms: int) -> bool:
        """Move the watermark once the log has every ping of the page."""
        settled = producer.settled
        if any(settled.get(name, 0) < count for name, count in self._awaited.items()):
            return False
        assert self._page is not None, "awaiting without a page"
        page = self._page
        self.watermark = page.watermark
        self._failures_in_a_row = 0
        self.last_error = ""
        self.due_ms = now_ms + (self.pause_ms if page.more else self.settings.interval_ms)
        self._rest()
        self.counters.finished += not page.more
        return not page.more

    def _back_off(self, reason: str, now_ms: int) -> None:
        settings = self.settings
        doublings = min(self._failures_in_a_row, BACKOFF_DOUBLINGS_MAX)
        self._failures_in_a_row += 1
        self.last_error = reason
        pause_ms = min(settings.backoff_max_ms, settings.backoff_first_ms << doublings)
        self.due_ms = now_ms + pause_ms
        logger.warning("refresh of %s: %s; again in %d ms", self.name, reason, pause_ms)
        self._rest()

    def _rest(self) -> None:
        self.phase = Phase.RESTING
        self._page = None
        self._waiting.clear()
        self._awaited = {}


def _page_fault(page: object, watermark: str | None) -> str | None:
    """What is wrong with a source's answer, or None."""
    if not isinstance(page, Changes):
        return f"changed_since returned {type(page).__name__}, not Changes"
    given: object = page.watermark
    if not isinstance(given, str):
        return f"changed_since returned the watermark {given!r}, which is no text"
    if page.more and page.watermark == watermark:
        return f"changed_since says there is more but stays at watermark {watermark!r}"
    named: Sequence[object] = page.subjects
    for each in named:
        if not isinstance(each, tuple) or len(each) != 2:
            return f"changed_since returned {each!r} where (subject, sequence id) belongs"
    return None
