"""Wait for what must come, however slow and crowded the machine is."""

import time
from collections.abc import Callable

WAIT_S = 45.0
PAUSE_S = 0.01


def eventually(happened: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    """Return once it has happened.

    Raises:
        AssertionError: it did not happen within ``wait_s``.
    """
    give_up_s = time.monotonic() + wait_s
    while not happened():
        assert time.monotonic() < give_up_s, "what was waited for did not happen"
        time.sleep(PAUSE_S)
