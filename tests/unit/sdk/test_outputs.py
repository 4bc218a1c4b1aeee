from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from cape_stream.sdk.outputs import decode_output, encode_output


def test_output_is_readable_json_unless_it_is_bytes() -> None:
    assert encode_output({"minutes": 7}) == b'{"minutes":7}'
    assert encode_output("late") == b'"late"'
    assert encode_output(b'{"minutes":7}') == b'\x00{"minutes":7}'
    assert encode_output(bytearray(b"ab")) == encode_output(memoryview(b"ab")) == b"\x00ab"


def test_output_of_richer_types_comes_back_as_json_knows_them() -> None:
    @dataclass
    class Leg:
        day: datetime
        minutes: int

    output = encode_output(Leg(datetime(2013, 1, 1, tzinfo=UTC), 7))

    assert decode_output(output) == {"day": "2013-01-01T00:00:00Z", "minutes": 7}


def test_output_that_json_has_no_place_for_is_refused_by_type() -> None:
    with pytest.raises(TypeError, match="object"):
        encode_output(object())


def test_no_output_is_none() -> None:
    assert decode_output(None) is None
