import pytest

from cape_stream.adapters.simulated import CALM, Dice, Faults, SimBackground, SimProcess, Timeline

SLOW = Faults(start_ms=(10, 10), show_ms=(20, 20))


def test_background_runs_then_shows_the_outcome_after_their_delays() -> None:
    with Timeline(start_ms=0) as timeline:
        background = SimBackground(SimProcess(timeline, "p"), Dice(1, SLOW))
        ran_ms: list[int] = []

        def work() -> str:
            ran_ms.append(timeline.now_ms)
            return "answer"

        pending = background.submit(work)
        timeline.run_until(29)
        assert ran_ms == [10]
        assert not pending.done()
        timeline.run_until(30)

        assert pending.done()
        assert pending.result() == "answer"


def test_background_raises_what_the_work_raised() -> None:
    with Timeline() as timeline:
        background = SimBackground(SimProcess(timeline, "p"), Dice(1))

        def work() -> None:
            raise KeyError("gone")

        pending = background.submit(work)
        timeline.run_until(timeline.now_ms)

        assert pending.done()
        with pytest.raises(KeyError):
            pending.result()


@pytest.mark.parametrize(("kill_ms", "ran"), [(5, False), (15, True)])
def test_background_never_shows_what_a_killed_process_did(kill_ms: int, ran: bool) -> None:
    with Timeline(start_ms=0) as timeline:
        process = SimProcess(timeline, "p")
        background = SimBackground(process, Dice(1, SLOW))
        effects: list[str] = []
        pending = background.submit(lambda: effects.append("ran"))

        timeline.at(kill_ms, process.kill)
        timeline.run_until(1_000)

        assert bool(effects) is ran
        assert not pending.done()


def test_background_freezes_while_its_process_is_stopped() -> None:
    with Timeline(start_ms=0) as timeline:
        process = SimProcess(timeline, "p")
        background = SimBackground(process, Dice(1, SLOW))
        ran_ms: list[int] = []
        background.submit(lambda: ran_ms.append(timeline.now_ms))

        timeline.at(5, lambda: process.stop(500))
        timeline.run_until(1_000)

        assert ran_ms == [505]


def test_background_waits_for_running_work_when_closed_by_a_fiber() -> None:
    with Timeline(start_ms=0) as timeline:
        process = SimProcess(timeline, "p")
        background = SimBackground(process, Dice(1, SLOW))
        seen: list[int] = []

        def loop() -> None:
            pending = background.submit(lambda: 7)
            background.close()
            seen.extend([timeline.now_ms, pending.result()])

        process.start(loop)
        timeline.run_until(1_000)

        assert seen == [30, 7]


def test_background_result_is_waited_for_by_a_fiber() -> None:
    with Timeline(start_ms=0) as timeline:
        process = SimProcess(timeline, "p")
        background = SimBackground(process, Dice(1, CALM))
        seen: list[int] = []

        def slow() -> int:
            timeline.sleep(300)
            return timeline.now_ms

        process.start(lambda: seen.append(background.submit(slow).result()))
        timeline.run_until(1_000)

        assert seen == [300]
