import threading

import pytest

from cape_stream.adapters.kafka.bounded import run_bounded


def test_run_bounded_returns_when_the_step_does() -> None:
    done: list[str] = []

    run_bounded(lambda: done.append("done"), 10.0)

    assert done == ["done"]


def test_run_bounded_raises_what_the_step_raises() -> None:
    def step() -> None:
        raise KeyError("of the step")

    with pytest.raises(KeyError, match="of the step"):
        run_bounded(step, 10.0)


def test_run_bounded_leaves_a_step_that_does_not_return() -> None:
    released = threading.Event()

    def step() -> None:
        released.wait(30)

    with pytest.raises(TimeoutError):
        run_bounded(step, 0.01)
    released.set()
