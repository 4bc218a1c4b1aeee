"""Bytes on the wire: nothing an app says can be taken for something we say."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame
from websockets.streams import StreamReader

from cape_stream.errors import Reject
from cape_stream.realtime.framing import (
    Control,
    is_one_line,
    message_body,
    sse_chunk,
    sse_control,
    sse_heartbeat,
    sse_message,
    ws_control,
    ws_message,
    ws_text,
)

CASES = json.loads((Path(__file__).parents[2] / "data" / "sse-payloads.json").read_text())["cases"]
LIMIT = 1 << 20


def lines(stream: bytes) -> list[str]:
    """Lines as a browser splits them: CR, LF, or both, and nothing else."""
    return re.split(r"\r\n|\n|\r", stream.decode())


def text_of(case: dict[str, Any]) -> str:
    if "send" in case:
        return str(case["send"])
    return str(case["send_repeat"]["text"] * case["send_repeat"]["count"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_payload_survives_exactly_in_one_data_line(case: dict[str, Any]) -> None:
    text = text_of(case)

    event = sse_message("cursor", message_body("room", "message", text, LIMIT))

    first, second, *rest = lines(event)
    assert first == "id: cursor"
    assert json.loads(second.removeprefix("data: "))["data"] == text
    assert rest == ["", ""]


TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(TEXTS, TEXTS, VALUES)
def test_whatever_is_published_is_one_event_with_its_own_text(
    channel: str, kind: str, data: object
) -> None:
    """Channel and kind are checked before; framing alone is safe without that, too."""
    body = message_body(channel, kind, data, LIMIT)

    assert is_one_line(body)
    assert len(lines(sse_message("c", body))) == 4
    found = json.loads(body)
    assert (found["channel"], found["kind"], found["data"]) == (channel, kind, data)


@given(st.binary(max_size=70_000) | st.integers(0, 70_000).map(bytes))
def test_a_websocket_frame_is_what_a_real_parser_reads(payload: bytes) -> None:
    reader = StreamReader()
    reader.feed_data(ws_text(payload))

    parsing = Frame.parse(reader.read_exact, mask=False)
    with pytest.raises(StopIteration) as done:
        next(parsing)

    assert bytes(done.value.value.data) == payload
    assert done.value.value.fin


def test_websocket_messages_hold_type_id_and_the_body() -> None:
    body = message_body("room", "message", {"a": 1}, LIMIT, is_from_client=True, sender="u")

    framed = ws_message("cursor", body)
    plain = ws_message("", body)

    expected: dict[str, object] = {"channel": "room", "kind": "message", "data": {"a": 1}}
    expected |= {"client": True, "sender": "u"}
    assert json.loads(framed[2:]) == {"type": "message", "id": "cursor", **expected}
    assert json.loads(plain[2:]) == {"type": "message", **expected}


def test_heartbeats_dispatch_nothing() -> None:
    for beat in (sse_heartbeat(""), sse_heartbeat("cursor")):
        assert beat.startswith(b":")
        assert b"data" not in beat
        assert b"event" not in beat


def test_control_events_repeat_their_cursor() -> None:
    event = sse_control(Control.EXPIRED, "cursor", {"reason": "expired"})

    assert lines(event)[:2] == ["event: expired", "id: cursor"]
    assert json.loads(lines(event)[2].removeprefix("data: "))["cursor"] == "cursor"
    assert json.loads(ws_control(Control.RESET, "c", {})[2:]) == {"type": "reset", "cursor": "c"}


def test_an_event_without_a_cursor_leaves_the_clients_alone() -> None:
    """An empty id would erase it: the client would resume as if it had never been there."""
    event = sse_control(Control.RESET, "", {"channels": ["room"]})

    assert not any(line.startswith("id") for line in lines(event))


def test_chunks_say_their_size_in_hexadecimal() -> None:
    assert sse_chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"


@pytest.mark.parametrize("data", [{1, 2, object()}, object(), "\ud800", {"a": lambda: 1}, float])
def test_what_json_cannot_say_is_refused(data: object) -> None:
    with pytest.raises(Reject, match="cannot be said in JSON"):
        message_body("room", "message", data, LIMIT)


def test_a_payload_is_measured_as_it_is_sent() -> None:
    assert message_body("room", "message", "é" * 4, 10)
    with pytest.raises(Reject, match="11 bytes is over the limit of 10"):
        message_body("room", "message", "é" * 4 + "x", 10)


def test_deep_nesting_is_refused_and_not_fatal() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(Reject):
        message_body("room", "message", deep, LIMIT)


@pytest.mark.parametrize("body", [b"{}\nevent: expired", b"{\r}", b"[]", b"", b"data"])
def test_foreign_bodies_are_told_from_ours(body: bytes) -> None:
    assert not is_one_line(body)
    assert is_one_line(message_body("a", "b", msgspec.Raw(b"1"), LIMIT))
