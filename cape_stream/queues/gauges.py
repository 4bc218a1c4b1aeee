"""What the fleet scales on: work that can run, and how old the oldest of it is.

KEDA's own SQS trigger counts messages in flight, so one crashed worker holds the fleet up until the
visibility of its messages ends. Work that is really under way is what some live process renews:
``runnable = visible + held by this process``, summed over the processes of the fleet by the query.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cape_stream.errors import CapeError
from cape_stream.queues.lane import Lane
from cape_stream.queues.processor import Processor


@dataclass(slots=True)
class LaneGauge:
    """State of one queue as one process sees it."""

    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    is_known: bool = False
    """False while the queue does not tell; what is above is then old."""


@dataclass(slots=True)
class Gauges:
    """Asks the queues now and then, and writes what Prometheus reads.

    Args:
        processor: whose queues.
        now_ms: Unix milliseconds, for the age of what is held.
    """

    processor: Processor
    now_ms: Callable[[], int]
    lanes: dict[str, LaneGauge] = field(default_factory=dict)
    text: str = ""
    """What `as_text` gave at the last look, for other threads."""

    async def look(self) -> None:
        """Ask every queue once."""
        for lane in self.processor.lanes.values():
            gauge = self.lanes.setdefault(lane.name, LaneGauge())
            try:
                depth = await lane.queue.depth()
            except CapeError:
                gauge.is_known = False
                continue
            gauge.visible, gauge.in_flight = depth.visible, depth.in_flight
            gauge.delayed, gauge.is_known = depth.delayed, True
        self.text = self.as_text()

    def figures(self, name: str) -> Mapping[str, float]:
        """Figures of one queue, as they stand."""
        gauge = self.lanes.get(name, LaneGauge())
        live = self.processor.heartbeats.live(name)
        lane = self.processor.lanes[name]
        return {
            "visible": gauge.visible,
            "in_flight": gauge.in_flight,
            "delayed": gauge.delayed,
            "live": live,
            "runnable": gauge.visible + live,
            "oldest_age_seconds": self._oldest_s(lane),
            "running": len(lane.book.running),
            "done_total": self.processor.ledger.done_by_lane[name],
            "up": float(gauge.is_known and lane.trouble is None),
        }

    def as_text(self) -> str:
        """The exposition format of Prometheus."""
        rows: dict[str, list[str]] = {}
        for name in self.processor.lanes:
            for figure, value in self.figures(name).items():
                line = f'cape_queue_{figure}{{queue="{name}"}} {value:g}'
                rows.setdefault(figure, []).append(line)
        lines = []
        for figure, found in rows.items():
            kind = "counter" if figure.endswith("_total") else "gauge"
            lines += [f"# TYPE cape_queue_{figure} {kind}", *found]
        fates = self.processor.ledger.fates
        lines.append("# TYPE cape_queue_receives_total counter")
        lines += [f'cape_queue_receives_total{{fate="{fate}"}} {n}' for fate, n in fates.items()]
        lines.append("# TYPE cape_queue_unhandled_total counter")
        for label, count in self.processor.ledger.by_type.items():
            queue, _, kind = label.partition("/")
            kind = kind.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'cape_queue_unhandled_total{{queue="{queue}",type="{kind}"}} {count}')
        return "\n".join(lines) + "\n"

    def _oldest_s(self, lane: Lane) -> float:
        """Age of the oldest message that this process holds: SQS hands out roughly the oldest."""
        times = [
            held.message.sent_ms
            for held in (*lane.book.waiting, *lane.book.running)
            if held.message.sent_ms
        ]
        return max(0, self.now_ms() - min(times)) / 1_000 if times else 0.0
