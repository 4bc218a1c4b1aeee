"""Work beside the loop."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from cape_stream.adapters.simulated import Dice, SimProcess
from cape_stream.adapters.simulated.background import SimBackground
from cape_stream.adapters.simulated.timeline import Timeline
from cape_stream.ports.background import Background
from cape_stream.runtime.steady import ThreadBackground
from tests.waiting import WAIT_S


class Beside:
    """A background, and how time passes around it."""

    def __init__(
        self,
        background: Background,
        pass_time: Callable[[], object],
        wait: Callable[[threading.Event], object],
    ) -> None:
        self.background = background
        self.pass_time = pass_time
        self.wait = wait
        """Called by work: waits for the event."""

    def until(self, happened: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + WAIT_S
        while not happened():
            assert time.monotonic() < give_up_s, "it never came to that"
            self.pass_time()


@pytest.fixture(params=["threads", "simulated"])
def beside(request: pytest.FixtureRequest) -> Iterator[Beside]:
    if request.param == "threads":
        threads = ThreadBackground(2, "contract")
        yield Beside(threads, lambda: time.sleep(0.001), lambda gate: gate.wait(WAIT_S))
        threads.close()
        return
    timeline = Timeline()
    process = SimProcess(timeline, "contract")

    def wait(gate: threading.Event) -> None:
        while not gate.is_set():
            timeline.sleep(1)

    background = SimBackground(process, Dice(0))
    yield Beside(background, lambda: timeline.run_until(timeline.now_ms + 1), wait)


def test_result_is_what_the_work_returned(beside: Beside) -> None:
    pending = beside.background.submit(lambda: 7)
    beside.until(pending.done)

    assert pending.result() == 7
    assert pending.result() == 7, "it may be asked for again"


def test_exception_of_the_work_is_raised_where_the_result_is_asked_for(beside: Beside) -> None:
    def fail() -> int:
        raise ValueError("of the work")

    pending = beside.background.submit(fail)
    beside.until(pending.done)

    with pytest.raises(ValueError, match="of the work"):
        pending.result()


def test_work_that_takes_its_time_holds_up_neither_the_loop_nor_other_work(
    beside: Beside,
) -> None:
    gate = threading.Event()
    slow = beside.background.submit(lambda: beside.wait(gate))
    other = beside.background.submit(lambda: "early")
    beside.until(other.done)

    assert not slow.done()
    gate.set()
    beside.until(slow.done)
    assert other.result() == "early"


def test_work_is_done_although_nobody_asks_for_its_result(beside: Beside) -> None:
    done: list[int] = []
    for number in range(20):
        beside.background.submit(partial(done.append, number))

    beside.until(lambda: sorted(done) == list(range(20)))


def test_nothing_is_taken_after_the_end(beside: Beside) -> None:
    beside.background.close()

    with pytest.raises((RuntimeError, AssertionError)):
        beside.background.submit(lambda: 1)
