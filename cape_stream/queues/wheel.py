"""The heartbeat wheel: when each held message must be renewed, and when it is lost.

One for all messages of a process, those that wait for a slot included. Times are arguments; nothing
here acts. With a visibility V, a renewal is due at V/3; if it fails, once more at half the lease;
then, or at 5/6 of V without an answer, the message is lost, before it can show up elsewhere.
"""

import heapq
from itertools import count
from typing import NamedTuple

from cape_stream.queues.context import Loss
from cape_stream.queues.held import Held
from cape_stream.queues.settings import BEATS_PER_VISIBILITY

FAILURES_MAX = 2
"""So many renewals in a row may fail; the last of them loses the message."""


class Due(NamedTuple):
    """What has to happen now."""

    beats: list[Held]
    losses: list[tuple[Held, Loss]]


class HeartbeatWheel:
    """Keeps messages in the order in which something is due for them."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Held]] = []
        """Entries whose time is not the message's `check_ms` any more are skipped."""
        self._order = count()
        self._held: set[Held] = set()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, held: Held) -> bool:
        return held in self._held

    def lane_count(self, lane: str) -> int:
        """Messages of a lane that are renewed."""
        return sum(held.lane == lane for held in self._held)

    def add(self, held: Held) -> None:
        """Renew it from now on."""
        self._held.add(held)
        held.visible_ms = held.received_ms + held.visibility_ms
        held.beat_ms = held.received_ms + held.visibility_ms // BEATS_PER_VISIBILITY
        self._schedule(held)

    def remove(self, held: Held) -> None:
        """Renew it no more."""
        self._held.discard(held)

    def started(self, held: Held, deadline_ms: int) -> None:
        """Its run has begun and must have ended at ``deadline_ms``."""
        held.deadline_ms = deadline_ms
        self._schedule(held)

    @property
    def next_ms(self) -> int | None:
        """When `due` will have something; None: nothing is held."""
        self._skip_old()
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Due:
        """What is due; every message it names is either lost or has a renewal under way."""
        beats: list[Held] = []
        losses: list[tuple[Held, Loss]] = []
        while self._pop_due(now_ms, beats, losses):
            pass
        return Due(beats, losses)

    def renewed(self, held: Held, sent_ms: int, seconds: int) -> None:
        """A renewal succeeded."""
        held.extended(sent_ms, seconds)
        parts = BEATS_PER_VISIBILITY
        ahead_ms = held.visibility_ms * (parts - 1) // parts
        # Towards the twelfth hour no renewal adds anything: do not make them one after the other.
        held.beat_ms = max(sent_ms + held.visibility_ms // 12, held.visible_ms - ahead_ms)
        self._schedule(held)

    def failed(self, held: Held, now_ms: int) -> Loss | None:
        """A renewal failed or took too long; why the message is lost, if it is."""
        held.beats_failed += 1
        if held.beats_failed >= FAILURES_MAX:
            return Loss.UNRENEWED
        held.beat_ms = now_ms + held.visibility_ms // 12
        self._schedule(held)
        return None

    def _pop_due(self, now_ms: int, beats: list[Held], losses: list[tuple[Held, Loss]]) -> bool:
        self._skip_old()
        if not self._heap:
            return False
        check_ms, _, held = self._heap[0]
        # Once a call has to be made, whoever is due soon shares it.
        early_ms = held.visibility_ms // 12 if beats else 0
        if check_ms > now_ms + early_ms:
            return False
        heapq.heappop(self._heap)
        loss = self._loss(held, now_ms)
        if loss is not None:
            self._held.discard(held)
            losses.append((held, loss))
        elif held.beat_ms is not None and held.beat_ms <= now_ms + early_ms:
            held.beat_ms = None
            beats.append(held)
            self._schedule(held)
        else:
            self._schedule(held)
            return False  # its ceiling is near, not reached
        return True

    def _loss(self, held: Held, now_ms: int) -> Loss | None:
        if held.visible_ms - held.visibility_ms // 6 <= now_ms:
            return Loss.UNRENEWED
        if held.deadline_ms is not None and held.deadline_ms <= now_ms:
            return Loss.CEILING
        return None

    def _schedule(self, held: Held) -> None:
        if held not in self._held:
            return
        check_ms = held.visible_ms - held.visibility_ms // 6
        if held.beat_ms is not None:
            check_ms = min(check_ms, held.beat_ms)
        if held.deadline_ms is not None:
            check_ms = min(check_ms, held.deadline_ms)
        held.check_ms = check_ms
        heapq.heappush(self._heap, (check_ms, next(self._order), held))

    def _skip_old(self) -> None:
        heap = self._heap
        while heap and (heap[0][2] not in self._held or heap[0][0] != heap[0][2].check_ms):
            heapq.heappop(heap)
