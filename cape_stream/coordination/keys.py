"""The key layout: `PREFIX:SERVICE:{TAG}:PART`, one hash slot per tag, one tag per script.

The tag is the name of the resource, so a script finds all its keys on one node of a cluster, and
all services of one resource stand together. Names are byte strings of 1 to 1,024 bytes; bytes that
are not plain are written %XX, so no name can leave its braces or collide with another.
"""

from urllib.parse import quote_from_bytes, unquote_to_bytes

from cape_stream.errors import Reject

NAME_BYTES_MAX = 1_024
PLAIN = "_.-:/@+="
"""Bytes that stand for themselves beside letters, digits and `~`."""

Name = str | bytes


def encoded(name: Name, what: str = "name") -> str:
    """A name as a part of a key.

    Args:
        name: text, or any bytes.
        what: how an error calls it.

    Raises:
        Reject: it is empty, longer than 1,024 bytes, or text that is not UTF-8.
    """
    if isinstance(name, str):
        try:
            raw = name.encode()
        except UnicodeEncodeError as error:
            raise Reject(f"{what} {name[:40]!r} cannot be written as UTF-8") from error
    else:
        raw = name
    if not raw:
        raise Reject(f"{what} is empty; give it 1 to {NAME_BYTES_MAX} bytes")
    if len(raw) > NAME_BYTES_MAX:
        raise Reject(
            f"{what} {raw[:40]!r}... has {len(raw)} bytes, at most {NAME_BYTES_MAX}; use a digest"
        )
    return quote_from_bytes(raw, PLAIN)


def decoded(part: bytes) -> str:
    """A name as it was, from a part of a key; bytes that are no UTF-8 become surrogates."""
    return unquote_to_bytes(part).decode(errors="surrogateescape")


class Keys:
    """Keys of one service.

    Args:
        prefix: `ValkeySettings.prefix`.
        service: a word of `docs/valkey.md`'s table.
    """

    __slots__ = ("service", "start")

    def __init__(self, prefix: str, service: str) -> None:
        self.service = service
        self.start = f"{prefix}:{service}:{{"

    def of(self, tag: str, part: str) -> str:
        """The key of ``part`` in the slot of ``tag``, both encoded already."""
        return f"{self.start}{tag}}}:{part}"
