"""Cursors: given back as they were, and never made up."""

import secrets
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cape_stream.ports.channels import Position, Realm
from cape_stream.realtime import keys as keys_module
from cape_stream.realtime.cursors import CursorSeal
from cape_stream.realtime.keys import GrantKeys, rotate

KEYS = GrantKeys({"k1": b"1" * 32})
SEAL = CursorSeal(KEYS, Realm("live", "app"))
HERE = Position("0123456789abcdef", 1_800_000_000_000_000)


@given(st.binary(min_size=8, max_size=8), st.integers(0, 2**63))
def test_a_cursor_comes_back_as_its_position(epoch: bytes, sequence: int) -> None:
    position = Position(epoch.hex(), sequence)

    cursor = SEAL.seal(position)

    assert SEAL.read(cursor) == position
    assert cursor.isascii()
    assert cursor.replace("-", "").replace("_", "").isalnum(), "it goes into a header and a URL"


@given(st.text(max_size=80))
def test_any_text_is_answered(text: str) -> None:
    assert SEAL.read(text) is None


def test_a_changed_cursor_is_unknown() -> None:
    cursor = SEAL.seal(HERE)

    for index, character in enumerate(cursor[:-1]):
        other = "A" if character != "A" else "B"
        assert SEAL.read(cursor[:index] + other + cursor[index + 1 :]) is None, index


def test_a_cursor_of_another_realm_or_installation_is_unknown() -> None:
    cursor = SEAL.seal(HERE)

    for environment, app in (("dev", "app"), ("live", "other"), ("ppalive", ""), ("pplive", "a")):
        assert CursorSeal(KEYS, Realm(environment, app)).read(cursor) is None
    assert CursorSeal(GrantKeys.ephemeral(), Realm("live", "app")).read(cursor) is None


def test_a_cursor_of_a_newer_key_is_known_to_a_server_that_has_not_met_it_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "LOOK_INTERVAL_S", 0.0)
    path = str(tmp_path / "keys")
    rotate(path)
    behind = CursorSeal(GrantKeys.from_file(path), Realm("live", "app"))
    rotate(path)
    ahead = CursorSeal(GrantKeys.from_file(path), Realm("live", "app"))

    assert behind.read(ahead.seal(HERE)) == HERE


def test_a_cursor_outlives_a_rotation_of_keys() -> None:
    cursor = SEAL.seal(HERE)
    rotated = GrantKeys({"k2": secrets.token_bytes(32), "k1": b"1" * 32})

    assert CursorSeal(rotated, Realm("live", "app")).read(cursor) == HERE
