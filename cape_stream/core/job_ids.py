"""What a job id tells: task partition, epoch of the owner and a counter, joined by ``-``."""

NO_JOB = (0, 0)
"""Older than every job."""


def job_age(job_id: str) -> tuple[int, int]:
    """Epoch and counter: of two jobs of a task, the one issued later has the greater pair.

    `NO_JOB` for what is no job id.
    """
    _, _, rest = job_id.partition("-")
    epoch, _, count = rest.partition("-")
    try:
        return int(epoch, 16), int(count, 16)
    except ValueError:
        return NO_JOB
