"""Figures of the coordination layer, safe for threads, and as Prometheus reads them."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping

START = "cape_coordination_"


class Figures:
    """What happened, by name, which only grows; and gauges, which are asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._gauges: list[tuple[str, Callable[[], float]]] = []

    def add(self, name: str, count: int = 1) -> None:
        """Count ``count`` more of ``name``."""
        with self._lock:
            self._counts[name] += count

    def watch(self, name: str, gauge: Callable[[], float]) -> None:
        """Show a gauge until `unwatch`; of several with one name the highest counts."""
        with self._lock:
            self._gauges.append((name, gauge))

    def unwatch(self, name: str, gauge: Callable[[], float]) -> None:
        """Show it no more."""
        with self._lock:
            self._gauges.remove((name, gauge))

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[name]

    def all(self) -> Mapping[str, int]:
        """A copy of all counts."""
        with self._lock:
            return dict(self._counts)

    def as_text(self) -> str:
        """The exposition format of Prometheus; empty before anything happened."""
        with self._lock:
            counts, gauges = sorted(self._counts.items()), list(self._gauges)
        lines = []
        for name, count in counts:
            full = f"{START}{name}_total"
            lines += [f"# TYPE {full} counter", f"{full} {count}"]
        highest: dict[str, float] = {}
        for name, gauge in gauges:
            highest[name] = max(gauge(), highest.get(name, float("-inf")))
        for name, value in sorted(highest.items()):
            shown = "+Inf" if value == float("inf") else f"{value:g}"
            lines += [f"# TYPE {START}{name} gauge", f"{START}{name} {shown}"]
        return "".join(f"{line}\n" for line in lines)
