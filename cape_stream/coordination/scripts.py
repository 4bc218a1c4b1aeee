"""Scripts and calls: what a service asks of the server, apart from how it is sent.

A service is written once as *steps*: a generator that yields calls and is sent their replies. The
synchronous store and the asynchronous one both carry steps out, so there are no two versions.
"""

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Argument = str | bytes | int
Result = TypeVar("Result")

NOW = """\
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now_us / 1000)
local function whole(number) return string.format('%.0f', number) end
"""
"""Start of scripts that need the time: the server's clock, the only one leases are held against."""


class Script:
    """A Lua script: sent by its digest, and whole when the server has forgotten it.

    Args:
        name: for errors and counters.
        text: the Lua source. Its keys are all in KEYS and in one slot, and repeating it with the
            same arguments changes nothing more.
        numbers: constants of ours, which the text calls `$name`.
    """

    __slots__ = ("digest", "name", "text")

    def __init__(self, name: str, text: str, **numbers: int) -> None:
        self.name = name
        for word, number in numbers.items():
            assert f"${word}" in text, f"the script does not use {word}"
            text = text.replace(f"${word}", str(number))
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def call(self, keys: Sequence[str], *arguments: Argument, urgent: bool = False) -> "Call":
        """One use of it."""
        return Call(self, tuple(keys), arguments, urgent)


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a script, to be answered by the reply."""

    script: Script
    keys: tuple[str, ...]
    arguments: tuple[Argument, ...]
    urgent: bool = False
    """Tried even while the server is believed to be away."""

    def by_digest(self) -> tuple[Argument, ...]:
        """The command, if the server knows the script."""
        digest = self.script.digest
        return "EVALSHA", digest, len(self.keys), *self.keys, *self.arguments

    def whole(self) -> tuple[Argument, ...]:
        """The command, with the script."""
        return "EVAL", self.script.text, len(self.keys), *self.keys, *self.arguments


Steps = Generator[Call, Any, Result]
"""What a service does: calls out, replies in, and a result at the end."""
