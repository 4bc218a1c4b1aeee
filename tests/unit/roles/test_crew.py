"""How the loops of one process live and die together."""

import threading
from collections.abc import Mapping

import pytest

from cape_stream.errors import Fatal, Retry
from cape_stream.roles.crew import Crew, raise_failure


class Loop:
    """A part that works until it is stopped, and writes down what happens."""

    def __init__(self, name: str, diary: list[str], error: BaseException | None = None) -> None:
        self.name = name
        self._diary = diary
        self._error = error
        self._stopping = threading.Event()

    def run(self) -> None:
        self._diary.append(f"{self.name} runs")
        if self._error is not None:
            raise self._error
        self._stopping.wait()
        self._diary.append(f"{self.name} ends")

    def stop(self) -> None:
        self._diary.append(f"{self.name} is stopped")
        self._stopping.set()

    def figures(self) -> Mapping[str, int]:
        return {f"{self.name}_lines": len(self._diary)}


def test_crew_stops_its_parts_in_reverse_order_and_waits_for_each() -> None:
    diary: list[str] = []
    crew = Crew([Loop("a", diary), Loop("b", diary)])
    crew.start()

    crew.stop()

    assert diary[-4:] == ["b is stopped", "b ends", "a is stopped", "a ends"]
    assert crew.failure is None
    assert set(crew.figures()) == {"a_lines", "b_lines"}


def test_crew_adds_up_what_several_parts_count() -> None:
    crew = Crew([Loop("a", ["x"]), Loop("a", ["y", "z"])])

    assert crew.figures() == {"a_lines": 3}


def test_crew_is_over_when_one_part_fails_and_remembers_why() -> None:
    diary: list[str] = []
    error = Fatal("the disk is gone")
    crew = Crew([Loop("a", diary), Loop("b", diary, error)])
    crew.start()

    over = crew.wait(30)
    crew.stop()

    assert over
    assert crew.failure is error
    assert diary[-1] == "a ends"


def test_crew_waits_while_all_is_well() -> None:
    crew = Crew([Loop("a", [])])
    crew.start()

    assert not crew.wait(0.01)

    crew.end()
    assert crew.wait(30)
    crew.stop()


def test_crew_that_was_never_started_stops_at_once() -> None:
    crew = Crew([Loop("a", [])])

    crew.stop()

    assert crew.failure is None


def test_failure_that_tells_people_what_to_do_is_raised_as_it_is() -> None:
    error = Fatal("the disk is gone")

    with pytest.raises(Fatal) as caught:
        raise_failure(error)

    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "kind"), [(ZeroDivisionError("1 / 0"), "a defect"), (Retry("later"), "nobody caught")]
)
def test_failure_that_nobody_expected_keeps_its_trace(error: Exception, kind: str) -> None:
    with pytest.raises(Fatal) as caught:
        raise_failure(error)

    assert kind in caught.value.reason
    assert repr(error) in caught.value.reason


def test_no_failure_raises_nothing() -> None:
    raise_failure(None)
