"""Fail fast while the server is away, so that each call does not wait out its timeout."""

import threading
import time

from cape_stream.errors import Retry

FAILURES_MAX = 3
REST_MIN_MS = 200
REST_MAX_MS = 2_000


def monotonic_ms() -> float:
    """Milliseconds of the steady clock, which no step of the wall clock reaches."""
    return time.monotonic() * 1_000


class Breaker:
    """Opens after three failures in a row, for 200 ms and then longer, up to 2 s.

    While it is open, one caller at a time may try: the first after each rest.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._failures = 0
        self._rest_ms = REST_MIN_MS
        self._open_until_ms = 0.0

    def check(self) -> None:
        """Let the call pass.

        Raises:
            Retry: the server was away a moment ago; ``after_ms`` says when to try.
        """
        if self._failures < FAILURES_MAX:
            return
        with self._lock:
            left_ms = self._open_until_ms - monotonic_ms()
            if left_ms > 0:
                raise Retry(f"{self._place} was not reached just now", int(left_ms) + 1)
            self._open_until_ms = monotonic_ms() + self._rest_ms

    def succeeded(self) -> None:
        """A reply came."""
        if self._failures:
            with self._lock:
                self._failures, self._rest_ms, self._open_until_ms = 0, REST_MIN_MS, 0.0

    def failed(self) -> None:
        """No reply came."""
        with self._lock:
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                self._open_until_ms = monotonic_ms() + self._rest_ms
                self._rest_ms = min(REST_MAX_MS, self._rest_ms * 2)
