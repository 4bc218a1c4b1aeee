"""What a scope may be: the names in it, and how long its tokens may live. Needs no server."""

from cape_stream.coordination.keys import NAME_BYTES_MAX
from cape_stream.errors import Reject

HOOK_LIFETIME_MAX_MS = 3_600_000
"""Longer than any execution may run (thirty minutes) with its queueing."""
SESSION_LIFETIME_MAX_MS = 7 * 24 * 3_600_000
TOKENS_PER_HOLDER_MAX = 256
"""Tokens of one execution, or sessions of one user of an app."""


def checked_names(environment: str, app: str, holder: str, subject: str) -> list[str]:
    """The names of a scope, if they can be ones; only the subject may be empty.

    Raises:
        Reject: one is empty, too long, no UTF-8, or holds a NUL.
    """
    named = {"environment": environment, "app": app, "holder": holder, "subject": subject}
    for what, name in named.items():
        if not name and what != "subject":
            raise Reject(f"the {what} of a token is empty")
        try:
            size = len(name.encode())
        except UnicodeEncodeError as error:
            raise Reject(f"the {what} {name[:40]!r} cannot be written as UTF-8") from error
        if size > NAME_BYTES_MAX or "\0" in name:
            raise Reject(
                f"the {what} {name[:40]!r} of a token has {size} bytes; at most {NAME_BYTES_MAX},"
                " and none of them NUL"
            )
    return list(named.values())
