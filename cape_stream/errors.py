"""Every error of cape_stream, named by what the caller does about it.

    CapeError                the root; never raised itself
    ├── Retry(after_ms)      try the same call again, not before `after_ms`
    ├── Reject               put this one record or request aside (dead letter) and go on
    ├── Fenced               drop the task: another process owns it now; write nothing more for it
    ├── Corrupt              wipe the local copy and restore it from the log
    └── Fatal                stop the process; only a person can repair this

The reaction is the type, so a caller needs five `except` clauses at most and no error codes. An
adapter re-types what its third party raises (`raise Retry(...) from error`): no exception of a
client library crosses a port. Outcomes that are expected in normal operation, such as a job that
failed or a record that cannot be decoded in a batch of many, are values and not errors. A broken
invariant is an `assert` and means a defect of ours.
"""

__all__ = ["CapeError", "Corrupt", "Fatal", "Fenced", "Reject", "Retry"]


class CapeError(Exception):
    """Root of the tree: catch it to log, never to decide; raise one of the five below.

    Args:
        reason: what went wrong and with what, as a sentence for a person, without a full stop.
    """

    def __init__(self, reason: str) -> None:
        if type(self) is CapeError:
            raise TypeError("CapeError is the root of the tree: raise one of its five families")
        super().__init__(reason)
        self.reason = reason


class Retry(CapeError):
    """The call may succeed later without anybody's help: repeat it with the same arguments.

    Examples: the broker is away, a coordinator is loading, the event source is throttling, a
    transaction was aborted. Whoever catches it backs off; nothing is lost meanwhile.

    Args:
        reason: what to wait for.
        after_ms: the earliest time to repeat, in milliseconds from now, >= 0; `None` leaves the
            wait to the caller's own backoff.
    """

    def __init__(self, reason: str, after_ms: int | None = None) -> None:
        if after_ms is not None and after_ms < 0:
            raise ValueError(f"after_ms must be >= 0, got {after_ms}")
        super().__init__(reason)
        self.after_ms = after_ms


class Reject(CapeError):
    """This one input can never be accepted: put it aside with its reason and take the next.

    Examples: a subject that is empty or not UTF-8, a sequence id beyond int64, an unknown schema,
    a record larger than its topic allows. Repeating the call gives the same answer.
    """


class Fenced(CapeError):
    """The caller is no longer the owner: drop the task and its state, write nothing more for it.

    Examples: the group gave the partition to another member, a producer of a newer epoch took
    over, the proof of ownership is too old. What was done before stands; the new owner goes on.
    """


class Corrupt(CapeError):
    """The local copy of the state cannot be trusted: wipe it and restore it from the changelog.

    Examples: the saved changelog position is older than what the broker kept, a row does not
    decode, the changelog topic was recreated. Only that partition is wiped, the others go on.
    """


class Fatal(CapeError):
    """Only a person can repair this: stop the process with a non-zero code and print the reason.

    Examples: topics whose partition counts differ, a state folder another process holds, wrong
    credentials. The reason ends with the command to run where there is one.
    """
