"""What a job id tells: task partition, epoch of the owner and a counter, joined by ``-``."""

_HEX_DIGITS = frozenset("0123456789abcdef")

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


def may_be_ours(job_id: str, partition: int, epoch: int, count: int) -> bool:
    """True if a task has given the id out, now (up to ``count``) or under an earlier owner."""
    told_partition, _, rest = job_id.partition("-")
    told_epoch, _, told_count = rest.partition("-")
    if told_partition != str(partition) or not (told_epoch and told_count):
        return False
    if not (_HEX_DIGITS.issuperset(told_epoch) and _HEX_DIGITS.issuperset(told_count)):
        return False
    return int(told_epoch, 16) != epoch or int(told_count, 16) <= count
