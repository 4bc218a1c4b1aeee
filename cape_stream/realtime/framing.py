"""What goes over the wire: bodies, server-sent events and WebSocket frames, made once a publish.

A body is one JSON object on one line, so nothing that an app publishes, names or types can end a
line of an event stream: channel, kind and data are JSON strings and values, the id is a cursor, and
event names are ours. Everybody who hears a channel gets the same bytes.
"""

import struct
from enum import StrEnum
from typing import Any

import msgspec

from cape_stream.errors import Reject

LAST_CHUNK = b"0\r\n\r\n"


class Control(StrEnum):
    """Events of our own; everything else is a `message`."""

    READY = "ready"
    """All that was missed has been sent, what follows is live; tells when the stream will end."""
    RESET = "reset"
    """Something was missed for good: reload what the page shows, then go on."""
    EXPIRED = "expired"
    """The grant is over: mint another, resume with the cursor."""
    REVOKED = "revoked"
    """Access was withdrawn: stop."""
    RECONNECT = "reconnect"
    """This server wants to let go: connect again with the same grant."""


class _Sender(msgspec.Struct, omit_defaults=True):
    channel: str
    kind: str
    data: msgspec.Raw
    client: bool = False
    sender: str = ""


_ENCODER = msgspec.json.Encoder()


def message_body(
    channel: str,
    kind: str,
    data: Any,
    bytes_max: int,
    *,
    is_from_client: bool = False,
    sender: str = "",
) -> bytes:
    """The body of one publish.

    Raises:
        Reject: the data are no JSON, or too large.
    """
    try:
        raw = data if isinstance(data, msgspec.Raw) else msgspec.Raw(_ENCODER.encode(data))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Reject(f"data cannot be said in JSON: {error}") from error
    size = len(memoryview(raw))
    if size > bytes_max:
        raise Reject(f"data of {size} bytes is over the limit of {bytes_max} bytes for {channel!r}")
    return _ENCODER.encode(_Sender(channel, kind, raw, is_from_client, sender))


def is_one_line(body: bytes) -> bool:
    """True if a body can stand in a `data:` line as it is; whatever we make can."""
    return b"\n" not in body and b"\r" not in body and body.startswith(b"{")


# --- server-sent events ------------------------------------------------------------------------


def sse_chunk(events: bytes) -> bytes:
    """Events as one chunk of a chunked response."""
    return b"%x\r\n%b\r\n" % (len(events), events)


def sse_message(cursor: str, body: bytes) -> bytes:
    """A message; without a cursor it moves nobody's position."""
    if cursor:
        return b"id: %b\ndata: %b\n\n" % (cursor.encode(), body)
    return b"data: %b\n\n" % body


def sse_control(event: Control, cursor: str, fields: dict[str, object]) -> bytes:
    """One of our own events; its data repeat the cursor, for pages that read no ids.

    Without a cursor there is no id line either: an empty one would make a browser forget where it
    is, and come back as if it were new.
    """
    data = _ENCODER.encode({"cursor": cursor, **fields})
    place = b"id: %b\n" % cursor.encode() if cursor else b""
    return b"event: %b\n%bdata: %b\n\n" % (event.value.encode(), place, data)


def sse_heartbeat(cursor: str) -> bytes:
    """A comment, and an id without data: it moves the position and dispatches no event."""
    if cursor:
        return b": hb\nid: %b\n\n" % cursor.encode()
    return b": hb\n\n"


def sse_retry(retry_ms: int) -> bytes:
    """How long to wait before a reconnect."""
    return b"retry: %d\n\n" % retry_ms


# --- WebSocket ---------------------------------------------------------------------------------


def ws_text(payload: bytes) -> bytes:
    """An unmasked text frame, as servers send them; never compressed."""
    size = len(payload)
    if size < 126:
        return struct.pack(">BB", 0x81, size) + payload
    if size < 65_536:
        return struct.pack(">BBH", 0x81, 126, size) + payload
    return struct.pack(">BBQ", 0x81, 127, size) + payload


def ws_message(cursor: str, body: bytes) -> bytes:
    """A message: the body with its type and id before the rest."""
    if cursor:
        return ws_text(b'{"type":"message","id":"%b",%b' % (cursor.encode(), body[1:]))
    return ws_text(b'{"type":"message",%b' % body[1:])


def ws_control(event: Control, cursor: str, fields: dict[str, object]) -> bytes:
    """One of our own events."""
    return ws_text(_ENCODER.encode({"type": event.value, "cursor": cursor, **fields}))


def ws_heartbeat(cursor: str) -> bytes:
    """A fresh position, if there is one; pings are the protocol's own business."""
    return ws_text(_ENCODER.encode({"type": "heartbeat", "cursor": cursor}))
