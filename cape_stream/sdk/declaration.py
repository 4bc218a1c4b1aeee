"""Checks of what users declare. Every refusal names the value, the place and the way out."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta

from cape_stream.errors import Fatal

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")
_MILLISECOND = timedelta(milliseconds=1)


class DeclarationError(Fatal):
    """The program declares something that cannot work: correct it and start again."""


def check_name(value: object, place: str) -> str:
    """Return ``value`` if it can name a part of a topic, a metric and a file."""
    if not isinstance(value, str) or not _NAME.match(value):
        raise DeclarationError(
            f"{place} cannot be named {value!r}: a name has 1 to 100 of the characters"
            " A-Z a-z 0-9 _ -"
        )
    return value


def check_range(value: object, low: int, high: int, place: str) -> int:
    """Return ``value`` if it is an integer in [low, high]."""
    if type(value) is not int or not low <= value <= high:
        raise DeclarationError(f"{place} must be an integer from {low} to {high}, not {value!r}")
    return value


def check_choice(value: object, choices: Sequence[str], place: str) -> str:
    """Return the one of ``choices`` that ``value`` names."""
    for choice in choices:
        if value == choice:
            return choice
    spelled = " or ".join(repr(str(choice)) for choice in choices)
    raise DeclarationError(f"{place} must be {spelled}, not {value!r}")


def check_duration(value: object, place: str) -> int:
    """Milliseconds of a timedelta of at least one."""
    if not isinstance(value, timedelta):
        raise DeclarationError(
            f"{place} must be a timedelta, not {value!r}: write timedelta(seconds=30)"
        )
    if value < _MILLISECOND:
        raise DeclarationError(f"{place} must be at least 1 ms, not {value!r}")
    return value // _MILLISECOND


def check_order(after: Mapping[str, Sequence[str]], place: str) -> None:
    """Refuse names that wait for an unknown one, for themselves, or for each other in a circle.

    Args:
        after: name → names it waits for.
        place: what the names belong to, such as ``domain 'flights'``.
    """
    for name, waits_for in after.items():
        for other in waits_for:
            if other not in after:
                known = ", ".join(sorted(after))
                raise DeclarationError(
                    f"topology {name!r} of {place} comes after {other!r}, which {place} does not"
                    f" have: it has {known}"
                )
    finished: set[str] = set()
    for name in after:
        _walk(name, after, [], finished, place)


def _walk(
    name: str, after: Mapping[str, Sequence[str]], path: list[str], finished: set[str], place: str
) -> None:
    if name in finished:
        return
    if name in path:
        circle = " after ".join([*path[path.index(name) :], name])
        raise DeclarationError(
            f"topologies of {place} wait for each other: {circle}; drop one `after`"
        )
    for other in after[name]:
        _walk(other, after, [*path, name], finished, place)
    finished.add(name)
