"""Counters of the coordination layer, safe for threads."""

import threading
from collections import Counter
from collections.abc import Mapping


class Figures:
    """What happened, by name; each grows only, but for those set by `put`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Count ``count`` more of ``name``."""
        with self._lock:
            self._counts[name] += count

    def put(self, name: str, value: int) -> None:
        """Set a gauge."""
        with self._lock:
            self._counts[name] = value

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[name]

    def all(self) -> Mapping[str, int]:
        """A copy of everything, for metrics."""
        with self._lock:
            return dict(self._counts)
