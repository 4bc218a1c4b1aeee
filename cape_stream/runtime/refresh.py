"""Refresh: one leader asks every source what has changed and pings those subjects.

So a source that never sends a ping is still delivered completely, and a ping that was lost is no
more than late. Whoever owns the one partition of the refresh topic leads; the same topic holds how
far each source has been swept, stored by the leader together with a proof of its ownership.

    FOLLOWING → RESTORING → LEADING
        ↑___________|__________|     revoked, lost, or the proof was refused
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from cape_stream.errors import Fenced, Reject, Retry
from cape_stream.model.job import BACKLOG
from cape_stream.model.ping import Ping
from cape_stream.model.subject import BadSubjectError, check_subject, partition_of
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.background import Background
from cape_stream.ports.clock import Clock
from cape_stream.ports.codec import Codec
from cape_stream.ports.log import Log, TopicPartition, Watermarks
from cape_stream.ports.source import EventSource
from cape_stream.runtime.refresh_marks import RETRY_MS, Mark, MarkKeeper
from cape_stream.runtime.refresh_settings import RefreshSettings
from cape_stream.runtime.refresh_sweep import SweepCounters
from cape_stream.runtime.refresh_walks import DomainWalks

BUSY_POLL_MS = 5
"""How long a turn waits while an answer or an acknowledgement is expected."""
IDLE_POLL_MS = 50
"""How long it waits otherwise; bounds how late a stop is seen."""

logger = logging.getLogger(__name__)


class LeadState(Enum):
    """What this process is to the others that refresh the same App."""

    FOLLOWING = "following"
    RESTORING = "restoring"
    LEADING = "leading"


@dataclass(slots=True)
class RefreshCounters:
    """For metrics; each grows only."""

    terms: int = 0
    """Times this process began to lead."""
    pings: int = 0
    fenced: int = 0
    """Commits refused because somebody else leads."""
    log_absences: int = 0
    """Polls that found the log away."""


@dataclass(slots=True, frozen=True, kw_only=True)
class RefreshBackgrounds:
    """Where slow work runs; a source that hangs must not keep a mark from being stored."""

    sources: Background
    """With a thread for each call that may be out: two walks a domain, and those that hang."""
    marks: Background


class Refresher:
    """One candidate for the lead. Call `turn` again and again, from one thread, then `close`.

    Args:
        log: where pings and marks go.
        codec: how a ping is written.
        clock: the steady clock of the process.
        names: the App's topics.
        partitions: of its ping topics.
        sources: domain → its source.
        backgrounds: see there.
        member_name: unique to this process and start.
        settings: pace and bounds.
    """

    def __init__(
        self,
        *,
        log: Log,
        codec: Codec,
        clock: Clock,
        names: TopicNames,
        partitions: int,
        sources: Mapping[str, EventSource],
        backgrounds: RefreshBackgrounds,
        member_name: str,
        settings: RefreshSettings | None = None,
    ) -> None:
        self._codec = codec
        self._clock = clock
        self._partitions = partitions
        self._settings = settings or RefreshSettings()
        self._lead = TopicPartition(names.refresh, 0)
        self._walks = {
            name: DomainWalks(
                name,
                source,
                names.pings(name),
                background=backgrounds.sources,
                settings=self._settings,
                send=self._send_ping,
            )
            for name, source in sources.items()
        }
        self._held = False
        self._store_due_ms = 0
        self.state = LeadState.FOLLOWING
        self.counters = RefreshCounters()
        self._producer = log.producer()
        self._committer = log.committer(member_name)
        self._keeper = MarkKeeper(log, self._committer, self._lead, backgrounds.marks)
        self._member = log.member(names.refresh_group, [names.refresh], self)

    # --- what the owner asks about -------------------------------------------------------------

    def sweep_counters(self) -> dict[str, tuple[SweepCounters, SweepCounters]]:
        """Domain → what its walk along the news and its full walk did so far."""
        return {
            name: (each.news.counters, each.full.counters) for name, each in self._walks.items()
        }

    def errors(self) -> dict[str, str]:
        """Domains whose source failed when it was asked last, and how."""
        found = {name: each.news.last_error for name, each in self._walks.items()}
        return {name: error for name, error in found.items() if error}

    @property
    def stored_marks(self) -> Mapping[str, Mark]:
        """Domain → how far it is swept according to the log, as far as a leader knows."""
        return self._keeper.stored

    # --- running -------------------------------------------------------------------------------

    def turn(self) -> None:
        """One iteration: look at what has come, start what is due, wait a little.

        Raises:
            Fatal: the membership or the committer cannot go on; close it.
        """
        now_ms = self._clock.now_ms()
        self._producer.poll(0)
        self._repeat_lost_rounds(now_ms)
        try:
            if self.state is LeadState.RESTORING:
                self._restore(now_ms)
            if self.state is LeadState.LEADING:
                self._go_on(now_ms)
        except Fenced:
            self.counters.fenced += 1
            self._step_down()
        try:
            self._member.poll(1, self._patience())
        except Retry as error:
            self.counters.log_absences += 1
            self._clock.sleep_ms(error.after_ms or RETRY_MS)

    def close(self) -> None:
        """Store how far it came, leave the group, free all."""
        self._member.close()
        self._producer.close()
        self._committer.close()

    def _restore(self, now_ms: int) -> None:
        """Learn how far the leaders before us came; then lead."""
        if not self._keeper.is_stored() or not self._keeper.read(now_ms):
            return
        for name, walks in self._walks.items():
            walks.start(self._keeper.stored.get(name, Mark()), now_ms)
        self.state = LeadState.LEADING
        self.counters.terms += 1
        logger.info("refresh: leads the sweep of %s", ", ".join(self._walks))

    def _go_on(self, now_ms: int) -> None:
        for walks in self._walks.values():
            walks.turn(self._producer, now_ms)
        if self._keeper.is_stored() and now_ms >= self._store_due_ms:
            self._store_due_ms = now_ms + self._settings.store_interval_ms
            self._keeper.store(self._marks(), self._member.ownership())

    def _marks(self) -> dict[str, Mark]:
        return {name: walks.mark() for name, walks in self._walks.items()}

    def _repeat_lost_rounds(self, now_ms: int) -> None:
        topics = {failed.topic for failed in self._producer.take_failed()}
        for walks in self._walks.values():
            if walks.news.topic in topics:
                walks.repeat_round(now_ms)

    def _patience(self) -> int:
        busy = self.state is LeadState.RESTORING or self._keeper.busy
        busy = busy or any(walks.busy for walks in self._walks.values())
        return BUSY_POLL_MS if busy else IDLE_POLL_MS

    def _send_ping(self, topic: str, subject: str, latest: int) -> bool:
        """See `Sweep`."""
        try:
            key = check_subject(subject).encode()
        except BadSubjectError as error:
            raise Reject(str(error)) from error
        value = self._codec.encode_ping(Ping(subject, latest, self._clock.now_ms(), BACKLOG))
        if not self._producer.send(topic, partition_of(key, self._partitions), key, value):
            return False
        self.counters.pings += 1
        return True

    # --- the lead ------------------------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """See `cape_stream.ports.log.MemberListener`: we lead, once we know how far others came."""
        if self._lead in partitions:
            self._held = True
            self.state = LeadState.RESTORING

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """See `cape_stream.ports.log.MemberListener`: a last commit, then others go on."""
        if self._lead in partitions:
            if self.state is LeadState.LEADING:
                with suppress(Fenced):
                    self._keeper.is_stored(waiting=True)
                    self._keeper.store(self._marks(), self._member.ownership())
                    self._keeper.is_stored(waiting=True)
            self._held = False
            self._step_down()

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """See `cape_stream.ports.log.MemberListener`."""
        if self._lead in partitions:
            self._held = False
            self._step_down()

    def repositioned(self, partition: TopicPartition, committed: int, kept: Watermarks) -> None:
        """See `cape_stream.ports.log.MemberListener`: the topic is read as a whole anyway."""

    def _step_down(self) -> None:
        """Forget everything; whoever leads next, be it we, reads it from the log."""
        if self.state is LeadState.LEADING:
            logger.info("refresh: no longer leads")
        self.state = LeadState.RESTORING if self._held else LeadState.FOLLOWING
        self._keeper.forget()
        for walks in self._walks.values():
            walks.stop()
