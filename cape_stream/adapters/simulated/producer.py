"""The producer of a simulated process: a buffer, a wire, and the log's answers."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from cape_stream.adapters.simulated.broker import Broker
from cape_stream.adapters.simulated.process import SimProcess
from cape_stream.adapters.simulated.timeline import ProcessKilled, Signal
from cape_stream.errors import Reject, Retry
from cape_stream.ports.log import FailedSend, TopicPartition

CLOSE_WAIT_MS_MAX = 5_000
"""How long `SimProducer.close` waits for what was sent."""


@dataclass(slots=True)
class Parcel:
    """One record on its way; it ends with an offset or a reason."""

    key: bytes | None
    value: bytes | None
    sent_ms: int
    offset: int | None = None
    """Where it lies, once acknowledged."""
    reason: str | None = None
    """Why it was given up."""


class Lane:
    """The way of one partition's records, which never overtake each other."""

    def __init__(self, to: TopicPartition) -> None:
        self.to = to
        self.unsettled: deque[Parcel] = deque()
        """Sent and not yet counted as settled, in order."""
        self.buffered: deque[Parcel] = deque()
        """Of those, what the process still holds."""
        self.handed_ms = 0
        """When the last one leaves the buffer."""
        self.stored_ms = 0
        """When the last one reaches the log."""


class SimProducer:
    """Implements `Producer`.

    A record waits in the buffer of its process, where it dies with it and where it is given up
    once it is older than the message timeout, which a process that was stopped checks before it
    hands anything over. Then it is on the wire and arrives whatever becomes of the process.

    Args:
        broker: the log.
        process: whose producer it is.
    """

    def __init__(self, broker: Broker, process: SimProcess) -> None:
        self._sent: dict[TopicPartition, int] = {}
        self._settled: dict[TopicPartition, int] = {}
        self._acked_offset: dict[TopicPartition, int] = {}
        self.sent: Mapping[TopicPartition, int] = self._sent
        self.settled: Mapping[TopicPartition, int] = self._settled
        self.acked_offset: Mapping[TopicPartition, int] = self._acked_offset
        self._broker = broker
        self._process = process
        self._lanes: dict[TopicPartition, Lane] = {}
        self._failed: list[FailedSend] = []
        self._answered = Signal(broker.timeline)
        self._waiting = 0

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> bool:
        """See `Producer.send`; the process dies or is stopped after it, if its time has come.

        Not before: whatever its caller has looked at last, such as a lease, still holds. In a
        real process there are some hundred nanoseconds in between, which nothing can guard.
        """
        if not self._process.alive:
            raise ProcessKilled
        accepted = self._accept(topic, partition, key, value)
        self._process.touch()
        return accepted

    def poll(self, timeout_ms: int) -> None:
        """See `Producer.poll`."""
        self._process.touch()
        if not self._harvest() and self._waiting:
            self._answered.wait(timeout_ms)
            self._harvest()

    def take_failed(self) -> list[FailedSend]:
        """See `Producer.take_failed`."""
        self._process.touch()
        failed, self._failed = self._failed, []
        return failed

    def flush(self, timeout_ms: int) -> bool:
        """See `Producer.flush`; outside a fiber it never waits."""
        self._process.touch()
        timeline = self._broker.timeline
        deadline_ms = timeline.now_ms + timeout_ms
        self._harvest()
        while self._waiting and timeline.current is not None and timeline.now_ms < deadline_ms:
            self._answered.wait(deadline_ms - timeline.now_ms)
            self._harvest()
        return self._waiting == 0

    def close(self) -> None:
        """See `Producer.close`."""
        if self._process.alive:
            self.flush(CLOSE_WAIT_MS_MAX)

    def _accept(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> bool:
        size = len(value or b"")
        settings = self._broker.settings
        if size > settings.record_bytes_max:
            raise Reject(f"record of {size} bytes is over the limit {settings.record_bytes_max}")
        dice = self._broker.dice
        if self._waiting >= settings.producer_records_max or dice.happens(dice.faults.send_full):
            return False
        to = TopicPartition(topic, partition)
        lane = self._lanes.get(to)
        if lane is None:
            lane = self._lanes[to] = Lane(to)
            self._sent[to] = self._settled[to] = 0
        parcel = Parcel(key, value, self._broker.timeline.now_ms)
        lane.unsettled.append(parcel)
        lane.buffered.append(parcel)
        self._sent[to] += 1
        self._waiting += 1
        if self._broker.timed:
            now_ms = parcel.sent_ms
            lane.handed_ms = max(lane.handed_ms, now_ms + dice.draw_ms(dice.faults.send_ms))
            self._broker.timeline.at(lane.handed_ms, lambda: self._hand_over(lane))
        else:
            self._hand_over(lane)
        return True

    def _harvest(self) -> bool:
        """Count what is settled, in order per partition."""
        before = self._waiting
        for to, lane in self._lanes.items():
            while lane.unsettled:
                parcel = lane.unsettled[0]
                if parcel.offset is not None:
                    self._acked_offset[to] = parcel.offset
                elif parcel.reason is not None:
                    self._failed.append(FailedSend(*to, parcel.key, parcel.value, parcel.reason))
                else:
                    break
                lane.unsettled.popleft()
                self._settled[to] += 1
                self._waiting -= 1
        return self._waiting < before

    def _hand_over(self, lane: Lane) -> None:
        """The oldest buffered record leaves the buffer, unless something holds it up."""
        timeline = self._broker.timeline
        if not self._process.alive:
            return
        held_up_ms = max(self._process.resumes_ms, self._broker.up_ms)
        if held_up_ms > timeline.now_ms:
            timeline.at(held_up_ms, lambda: self._hand_over(lane))
            return
        parcel = lane.buffered.popleft()
        dice = self._broker.dice
        if timeline.now_ms - parcel.sent_ms > self._broker.settings.message_timeout_ms:
            self._settle(parcel, reason="message timeout")
        elif dice.happens(dice.faults.send_fail):
            self._settle(parcel, reason="given up by a simulated fault")
        elif self._broker.timed:
            lane.stored_ms = max(
                lane.stored_ms, timeline.now_ms + dice.draw_ms(dice.faults.wire_ms)
            )
            timeline.at(lane.stored_ms, lambda: self._arrive(lane, parcel))
        else:
            self._arrive(lane, parcel)

    def _arrive(self, lane: Lane, parcel: Parcel) -> None:
        try:
            offset = self._broker.append(lane.to, parcel.key, parcel.value)
        except Retry as error:
            self._settle(parcel, reason=error.reason)
            return
        dice = self._broker.dice
        if dice.happens(dice.faults.ack_lost):
            self._settle(parcel, reason="acknowledgement lost by a simulated fault")
        elif self._broker.timed:
            delay_ms = dice.draw_ms(dice.faults.ack_ms)
            self._broker.timeline.after(delay_ms, lambda: self._settle(parcel, offset=offset))
        else:
            self._settle(parcel, offset=offset)

    def _settle(
        self, parcel: Parcel, *, offset: int | None = None, reason: str | None = None
    ) -> None:
        parcel.offset, parcel.reason = offset, reason
        self._answered.notify()
