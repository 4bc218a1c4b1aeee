"""Short-lived credentials: what a hook token or an interface session allows, and for how long.

A *hook token* is minted for one execution of a job and dies with it; whatever acts for that
execution (a publish, a grant, a database query) shows it. An *interface session* is the same for a
user of an app, outside any execution. Both are checked into a `Scope`, and nobody may act outside
the scope: environment and app come from the token, never from an argument.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Scope:
    """What one credential stands for, as it was at the moment of the check."""

    environment: str
    """`live`, a preview or a dev session; a token of one is worth nothing in another."""
    app: str
    """The app that runs."""
    execution: str
    """The execution a hook token was minted for; empty for an interface session."""
    subject: str
    """On whose behalf: a user, or the subject of the job; may be empty for a hook token."""
    expires_ms: int
    """Unix milliseconds by the clock of the store: for display. Timers use ``remaining_ms``."""
    remaining_ms: int
    """Milliseconds left when it was checked, > 0; independent of this machine's clock."""
    token_id: str
    """Names the token in logs and audits; worth nothing to who reads it."""


class HookTokens(Protocol):
    """Hook tokens of executions. Called from several threads at once.

    Every call asks the store: a token that was revoked is refused by the next check anywhere.

    Raises:
        Retry: (any method) the store cannot be reached in time. A check then *fails closed*:
            answer "try again", never "allowed".
        Reject: (``mint``) a name is empty, too long or holds a NUL, the lifetime is out of range,
            or the execution has 256 living tokens already.
        Fenced: (``mint``) the execution has ended.
    """

    def mint(
        self, environment: str, app: str, execution: str, subject: str, lifetime_ms: int
    ) -> str:
        """A new token for a running execution, valid for ``lifetime_ms``; several may exist."""
        ...

    def check(self, token: str) -> Scope | None:
        """What the token allows now; None if it is malformed, unknown, expired or revoked.

        Which of the four it was is not told, for who asks may be an attacker.
        """
        ...

    def revoke(self, token: str) -> bool:
        """End one token at once; True if it was alive."""
        ...

    def end_execution(self, environment: str, app: str, execution: str) -> int:
        """End every token of an execution at once, and tell how many there were."""
        ...


class AsyncHookTokens(Protocol):
    """The part of `HookTokens` an event loop needs; same answers, same errors."""

    async def check(self, token: str) -> Scope | None:
        """See `HookTokens.check`."""
        ...
