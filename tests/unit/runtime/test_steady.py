import threading
import time

import pytest

from cape_stream.runtime.steady import SteadyClock, ThreadBackground


def test_steady_clock_begins_at_the_wall_clock() -> None:
    before_ms = time.time_ns() // 1_000_000
    now_ms = SteadyClock().now_ms()
    after_ms = time.time_ns() // 1_000_000

    assert before_ms - 2 <= now_ms <= after_ms + 2


def test_steady_clock_ignores_steps_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """B21: it reads the wall clock once."""
    clock = SteadyClock()
    before_ms = clock.now_ms()
    hour_ns = 3_600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: hour_ns)

    assert before_ms <= clock.now_ms() < before_ms + 60_000


def test_steady_clock_sleeps() -> None:
    clock = SteadyClock()
    before_ms = clock.now_ms()
    clock.sleep_ms(5)

    assert clock.now_ms() >= before_ms + 4


def test_thread_background_runs_work_beside_its_caller() -> None:
    background = ThreadBackground(1, "test")
    pending = background.submit(threading.current_thread)

    assert pending.result().name.startswith("test")
    assert pending.done()
    background.close()


def test_thread_background_hands_on_what_the_work_raises() -> None:
    background = ThreadBackground(1, "test")

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        background.submit(fail).result()
    background.close()


def test_thread_background_leaves_behind_what_hangs_and_drops_what_waits() -> None:
    background = ThreadBackground(1, "test")
    gate = threading.Event()
    hanging = background.submit(gate.wait)
    waiting = background.submit(gate.wait)
    background.close()

    assert waiting.cancelled()
    assert not hanging.done()
    gate.set()
    assert hanging.result()
