"""How quickly jobs reach their handlers, told by every worker process to whoever looks on."""

import json
import os
import time
from collections import deque
from pathlib import Path
from threading import Lock

from cape_stream import Batch

WINDOW_JOBS = 5_000
TELL_EVERY_S = 0.5
SUFFIX = ".pace.json"


class Pace:
    """Counts jobs and remembers how old the newest ones were when their handler had them."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"worker-{os.getpid()}{SUFFIX}"
        self._lock = Lock()
        self._jobs = 0
        self._ages_ms: deque[int] = deque(maxlen=WINDOW_JOBS)
        self._told_s = 0.0

    def job(self, batch: Batch) -> None:
        """One more job was done."""
        with self._lock:
            self._jobs += 1
            self._ages_ms.append(batch.age_ms)
            now_s = time.monotonic()
            if now_s - self._told_s < TELL_EVERY_S:
                return
            self._told_s = now_s
            figures = {"jobs": self._jobs, "ages_ms": sorted(self._ages_ms)}
            partial = self._file.with_suffix(".partial")
            partial.write_text(json.dumps(figures))
            partial.replace(self._file)


def read_pace(folder: Path) -> tuple[int, int]:
    """Jobs done by all workers so far, and the 95th percentile of the newest jobs' ages (ms)."""
    jobs = 0
    ages_ms: list[int] = []
    for file in folder.glob(f"*{SUFFIX}"):
        figures = json.loads(file.read_text())
        jobs += figures["jobs"]
        ages_ms += figures["ages_ms"]
    ages_ms.sort()
    return jobs, ages_ms[int(len(ages_ms) * 0.95)] if ages_ms else 0
