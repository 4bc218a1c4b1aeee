"""Job ids: partition of the task, epoch of its owner and a counter, the latter two hexadecimal."""

_HEX_DIGITS = frozenset("0123456789abcdef")


def may_be_ours(job_id: str, partition: int, epoch: int, count: int) -> bool:
    """True if a task has given the id out, now (up to ``count``) or under an earlier owner."""
    told_partition, _, rest = job_id.partition("-")
    told_epoch, _, told_count = rest.partition("-")
    if told_partition != str(partition) or not (told_epoch and told_count):
        return False
    if not (_HEX_DIGITS.issuperset(told_epoch) and _HEX_DIGITS.issuperset(told_count)):
        return False
    return int(told_epoch, 16) != epoch or int(told_count, 16) <= count
