from collections.abc import Callable

import pytest

from cape_stream.adapters.simulated import ProcessKilled, Signal, SimClock, SimProcess, Timeline


def test_timeline_runs_events_in_order_of_time_then_of_scheduling() -> None:
    timeline = Timeline(start_ms=0)
    seen: list[tuple[int, str]] = []

    def see(name: str) -> Callable[[], None]:
        return lambda: seen.append((timeline.now_ms, name))

    timeline.at(20, see("late"))
    timeline.at(10, see("first"))
    timeline.at(10, see("second"))
    timeline.after(5, see("soon")).cancel()
    timeline.run_until(19)

    assert seen == [(10, "first"), (10, "second")]
    assert timeline.now_ms == 19


def test_timeline_stops_when_asked_after_an_event() -> None:
    timeline = Timeline(start_ms=0)
    for when_ms in (1, 2, 3):
        timeline.at(when_ms, lambda: None)

    assert timeline.run_until(10, stop=lambda: timeline.now_ms == 2)
    assert timeline.now_ms == 2


def test_fibers_interleave_by_virtual_time() -> None:
    with Timeline(start_ms=0) as timeline:
        seen: list[tuple[int, str]] = []

        def loop(name: str, period_ms: int) -> Callable[[], None]:
            def run() -> None:
                for _ in range(3):
                    timeline.sleep(period_ms)
                    seen.append((timeline.now_ms, name))

            return run

        process = SimProcess(timeline, "p")
        process.start(loop("a", 10))
        process.start(loop("b", 4))
        timeline.run_until(100)

    assert seen == [(4, "b"), (8, "b"), (10, "a"), (12, "b"), (20, "a"), (30, "a")]


def test_fiber_hands_its_exception_to_the_event_that_ran_it() -> None:
    with Timeline() as timeline:

        def fail() -> None:
            timeline.sleep(5)
            raise ValueError("broken")

        SimProcess(timeline, "p").start(fail)
        with pytest.raises(ValueError, match="broken"):
            timeline.run_until(timeline.now_ms + 5)


def test_process_tells_how_its_work_ended_when_asked() -> None:
    with Timeline() as timeline:
        ends: list[BaseException | None] = []

        def fail() -> None:
            raise ValueError("broken")

        process = SimProcess(timeline, "p")
        process.start(fail, ended=ends.append)
        process.start(lambda: None, ended=ends.append)
        timeline.run_until(timeline.now_ms)

    assert isinstance(ends[0], ValueError)
    assert ends[1:] == [None]


def test_process_unwinds_every_call_stack_when_killed() -> None:
    with Timeline(start_ms=0) as timeline:
        seen: list[str] = []

        def loop() -> None:
            try:
                timeline.sleep(1_000)
                seen.append("lived on")
            except ValueError:
                seen.append("caught")
            finally:
                seen.append("unwound")
                timeline.sleep(10)
                seen.append("waited while dead")

        process = SimProcess(timeline, "p")
        process.start(loop)
        process.start(loop, delay_ms=500)
        timeline.at(100, process.kill)
        timeline.run_until(5_000)

    assert seen == ["unwound"]


def test_process_dies_just_before_the_chosen_effect() -> None:
    with Timeline() as timeline:
        process = SimProcess(timeline, "p")
        effects: list[int] = []

        def loop() -> None:
            for number in range(10):
                process.touch()
                effects.append(number)

        process.start(loop)
        process.kill_after(4)
        timeline.run_until(timeline.now_ms)

    assert effects == [0, 1, 2]
    assert not process.alive
    with pytest.raises(ProcessKilled):
        process.touch()


def test_process_moves_nothing_while_stopped_in_the_middle_of_a_call() -> None:
    with Timeline(start_ms=0) as timeline:
        process = SimProcess(timeline, "p")
        seen: list[tuple[int, str]] = []

        def loop() -> None:
            seen.append((timeline.now_ms, "before"))
            process.touch()
            seen.append((timeline.now_ms, "after"))

        def beside() -> None:
            timeline.sleep(30)
            seen.append((timeline.now_ms, "beside"))

        process.start(beside)
        process.start(loop)
        process.stop_after(1, 700)
        timeline.run_until(2_000)

    assert sorted(seen) == [(0, "before"), (700, "after"), (700, "beside")]


def test_signal_resumes_those_who_wait_and_no_others() -> None:
    with Timeline(start_ms=0) as timeline:
        signal = Signal(timeline)
        seen: list[tuple[int, str]] = []

        def wait(name: str, timeout_ms: int) -> Callable[[], None]:
            def run() -> None:
                signal.wait(timeout_ms)
                seen.append((timeline.now_ms, name))
                timeline.sleep(100)
                seen.append((timeline.now_ms, name))

            return run

        process = SimProcess(timeline, "p")
        process.start(wait("short", 10))
        process.start(wait("long", 1_000))
        timeline.at(50, signal.notify)
        timeline.run_until(5_000)

    assert seen == [(10, "short"), (50, "long"), (110, "short"), (150, "long")]


def test_clock_keeps_the_error_it_began_with() -> None:
    timeline = Timeline(start_ms=1_000)
    clock = SimClock(timeline, skew_ms=-400)

    clock.sleep_ms(250)

    assert clock.now_ms() == 850
    assert timeline.now_ms == 1_250
