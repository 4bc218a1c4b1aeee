"""Lines for people."""

import pytest

from cape_stream.roles.progress import Progress


def test_progress_leaves_out_what_is_zero_and_shows_rates() -> None:
    line = Progress().line({"events_done": 12_345, "in_flight": 7, "events_failed": 0}, 10.0)

    assert line == "12,345 events done (1,234/s), 7 jobs in flight"


def test_progress_never_shows_a_negative_rate_when_tasks_have_left() -> None:
    progress = Progress()
    progress.say({"events_done": 100})

    assert progress.line({"events_done": 40}, 1.0) == "40 events done (0/s)"


def test_progress_says_when_tasks_are_not_running_yet() -> None:
    line = Progress().line({"tasks": 8, "tasks_running": 5}, 1.0)

    assert line == "3 of 8 tasks not running yet"


def test_progress_is_silent_while_nothing_happens(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()

    for _ in range(3):
        progress.say({"events_done": 1})

    assert len(capsys.readouterr().err.splitlines()) == 1


def test_summary_of_nothing_says_so() -> None:
    assert Progress().summary({"events_done": 0}) == "nothing was done"
