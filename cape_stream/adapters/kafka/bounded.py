"""Calls of the client library that may never return, however small the timeout they are given.

``send_offsets_to_transaction`` waits for ever when the group's coordinator answers "not available"
a few times, as it does after a restart of the broker: seen here, and known as librdkafka issue
5456 (open in 2.16). No other call of ours was seen to.
"""

import threading
from collections.abc import Callable


def run_bounded(step: Callable[[], None], wait_s: float) -> None:
    """Run ``step`` in a thread of its own, and leave it there if it does not return.

    Raises:
        TimeoutError: it has not returned after ``wait_s``. It may still do so, at any time.
        BaseException: what ``step`` raised.
    """
    failures: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            step()
        except BaseException as failure:  # noqa: BLE001  # handed to the caller, whatever it is
            failures.append(failure)
        ended.set()

    threading.Thread(target=run, name="cape-kafka-bounded", daemon=True).start()
    if not ended.wait(wait_s):
        raise TimeoutError(f"no return after {wait_s} s")
    if failures:
        raise failures[0]
