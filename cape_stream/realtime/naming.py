"""Names that apps choose: channels, kinds and holders. Taken literally, compared byte by byte."""

import unicodedata

from cape_stream.errors import Reject

CHANNEL_BYTES_MAX = 200
KIND_BYTES_MAX = 64
HOLDER_BYTES_MAX = 200
CHANNELS_MAX = 32
"""Channels of one grant."""
CHANNELS_BYTES_MAX = 2_048
"""Bytes of all channel names of one grant, so that it fits into a request line."""

_LINE_ENDS = ("Zl", "Zp")


def check_channel(name: object) -> str:
    """The name of a channel, if it can be one.

    1 to 200 bytes of UTF-8 without control characters or line ends. There are no wildcards and no
    separators: `room:*` is a channel of that very name.

    Raises:
        Reject: says what is wrong with which name.
    """
    return _check("a channel", name, 1, CHANNEL_BYTES_MAX)


def check_kind(name: object) -> str:
    """The kind of a message, if it can be one: 1 to 64 bytes, else as a channel's name."""
    return _check("a kind", name, 1, KIND_BYTES_MAX)


def check_holder(name: object) -> str:
    """Whose grant it is, if it can be told so: up to 200 bytes, else as a channel's name."""
    return _check("a holder", name, 0, HOLDER_BYTES_MAX)


def check_channels(names: object) -> tuple[str, ...]:
    """Channels of a grant, each once, in the order given.

    Raises:
        Reject: there is none, one is bad, or there are too many for one grant.
    """
    if isinstance(names, str) or not hasattr(names, "__iter__"):
        raise Reject(f"channels must be a list of names, not {names!r}")
    found = tuple(dict.fromkeys(check_channel(name) for name in names))
    if not 1 <= len(found) <= CHANNELS_MAX:
        raise Reject(f"a grant has 1 to {CHANNELS_MAX} channels, not {len(found)}")
    size = sum(len(name.encode()) for name in found)
    if size > CHANNELS_BYTES_MAX:
        raise Reject(
            f"the channels of a grant have {size} bytes, at most {CHANNELS_BYTES_MAX}: mint two"
        )
    return found


def _check(what: str, name: object, least: int, most: int) -> str:
    if not isinstance(name, str):
        raise Reject(f"{what} must be a text, not {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise Reject(f"{what} must be valid Unicode: {name!a} has a lone surrogate") from error
    if not least <= size <= most:
        raise Reject(f"{what} has {least} to {most} bytes of UTF-8, not {size}: {name[:40]!r}")
    for character in name:
        category = unicodedata.category(character)
        if category == "Cc" or category in _LINE_ENDS:
            raise Reject(f"{what} must not hold control characters or line ends: {name!a}")
    return name
