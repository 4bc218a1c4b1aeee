"""How old a worker takes a job to be, when its clock and the dispatcher's disagree."""

from dataclasses import replace

from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.runtime.worker_ages import REMEMBERED_MAX, JobAges

DAY_MS = 86_400_000
JOB = Job("0-1-1", "d", 0, "S", "T", "l", "general", 1, 1, 1_000, 500, [Event(7, b"x")])


def test_ages_trust_the_clocks_while_nothing_speaks_against_them() -> None:
    ages = JobAges()

    assert ages.queued_ms(JOB, 1_250) == 250
    assert ages.queued_ms(JOB, 1_000 + DAY_MS) == DAY_MS
    assert ages.queued_ms(JOB, 1_000 - DAY_MS) == 0


def test_ages_learn_that_our_clock_is_ahead_from_what_is_issued_again() -> None:
    ages = JobAges()
    ages.give_back(JOB, DAY_MS + 1_100)
    again = replace(JOB, job_id="0-1-2", attempt=2, issued_ms=1_110)
    other = replace(JOB, subject="other", issued_ms=1_200)

    assert ages.queued_ms(again, DAY_MS + 1_130) == 30
    assert ages.queued_ms(other, DAY_MS + 1_250) == 60


def test_ages_of_other_dispatchers_are_not_touched_by_that() -> None:
    ages = JobAges()
    ages.give_back(JOB, DAY_MS)
    ages.queued_ms(replace(JOB, attempt=2), DAY_MS)

    assert ages.queued_ms(replace(JOB, epoch=2), DAY_MS) == DAY_MS - 1_000


def test_ages_learn_nothing_from_the_job_that_was_given_back_itself() -> None:
    ages = JobAges()
    ages.give_back(JOB, DAY_MS)

    assert ages.queued_ms(JOB, DAY_MS) == DAY_MS - 1_000


def test_ages_keep_what_a_job_proved_when_a_later_one_proves_less() -> None:
    ages = JobAges()
    ages.give_back(JOB, DAY_MS)
    ages.queued_ms(replace(JOB, attempt=2), DAY_MS)
    ages.give_back(replace(JOB, subject="other"), 2_000)
    ages.queued_ms(replace(JOB, subject="other", attempt=2), DAY_MS)

    assert ages.queued_ms(JOB, DAY_MS) == 0


def test_ages_forget_rather_than_grow() -> None:
    ages = JobAges()
    for number in range(REMEMBERED_MAX + 1):
        ages.give_back(replace(JOB, subject=f"S{number}"), DAY_MS)

    assert ages.queued_ms(replace(JOB, subject="S0", attempt=2), DAY_MS) == DAY_MS - 1_000
    assert ages.queued_ms(replace(JOB, subject=f"S{number}", attempt=2), DAY_MS) == 0
