"""Grants: what can be minted, and that nothing else is honoured."""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cape_stream.errors import Reject
from cape_stream.ports.channels import Realm
from cape_stream.ports.contexts import PublishBounds
from cape_stream.realtime.grants import Grant, Refusal, new_grant, read, sign
from cape_stream.realtime.keys import GrantKeys

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
SKEW_MS = 30_000
KEYS = GrantKeys({"k1": b"1" * 32})
LIVE = Realm("live", "app")


def mint(now_ms: int = NOW_MS, life_ms: int = 60_000, keys: GrantKeys = KEYS) -> str:
    return sign(new_grant(LIVE, ["room"], now_ms=now_ms, life_ms=life_ms), keys)


def honoured(token: str, now_ms: int = NOW_MS, keys: GrantKeys = KEYS) -> Grant | Refusal:
    return read(token, keys, now_ms, SKEW_MS)


def forged(payload: object, secret: bytes = b"1" * 32, key: str = "k1") -> str:
    """A token whose signature is right and whose payload is what somebody likes."""
    raw = urlsafe_b64encode(msgspec.msgpack.encode(payload)).rstrip(b"=").decode()
    signed = f"v1.{key}.{raw}"
    seal = hmac.digest(secret, signed.encode(), hashlib.sha256)
    return f"{signed}.{urlsafe_b64encode(seal).rstrip(b'=').decode()}"


def payload(issued_ms: int, life_ms: int) -> list[object]:
    return ["id", "live", "app", ["room"], "", "execution", issued_ms, life_ms, None]


def test_a_grant_comes_back_as_it_was_minted() -> None:
    bounds = PublishBounds(("b",), kinds=("cursor", "typing"), bytes_max=100, per_s=5)
    minted = new_grant(
        Realm("dev-7", "shop"),
        ["a", "b"],
        now_ms=NOW_MS,
        life_ms=60_000,
        holder="user-7",
        execution="e-1",
        publish=bounds,
    )

    assert honoured(sign(minted, KEYS)) == minted
    assert minted.expires_ms == NOW_MS + 60_000


@pytest.mark.parametrize("life_ms", [HOUR_MS, HOUR_MS + 1, 10**15])
def test_no_grant_lives_longer_than_an_hour(life_ms: int) -> None:
    token = mint(life_ms=life_ms)

    assert isinstance(honoured(token, NOW_MS + HOUR_MS - 1), Grant)
    assert honoured(token, NOW_MS + HOUR_MS) is Refusal.EXPIRED


@pytest.mark.parametrize("life_ms", [0, -1, -(10**12)])
def test_a_grant_without_life_is_refused(life_ms: int) -> None:
    with pytest.raises(Reject, match="longer than 0"):
        mint(life_ms=life_ms)


@pytest.mark.parametrize("life_ms", [HOUR_MS + 1, 10**15, 0, -5])
def test_a_signed_token_that_claims_more_than_an_hour_is_refused(life_ms: int) -> None:
    """The server does not believe a minter, even one that has the key."""
    assert isinstance(honoured(forged(payload(NOW_MS, HOUR_MS))), Grant)
    assert honoured(forged(payload(NOW_MS, life_ms))) is Refusal.MALFORMED


def test_clocks_may_differ_a_little_and_never_stretch_the_hour() -> None:
    assert isinstance(honoured(mint(NOW_MS + SKEW_MS)), Grant)
    assert honoured(mint(NOW_MS + SKEW_MS + 1)) is Refusal.NOT_YET
    assert honoured(mint(NOW_MS - 60_000)) is Refusal.EXPIRED

    ahead = honoured(mint(NOW_MS + SKEW_MS, HOUR_MS))

    assert isinstance(ahead, Grant)
    assert ahead.expires_ms == NOW_MS + HOUR_MS


def test_any_changed_character_spoils_a_token() -> None:
    token = mint()
    assert isinstance(honoured(token), Grant)

    for index, character in enumerate(token):
        other = "A" if character != "A" else "B"
        spoiled = token[:index] + other + token[index + 1 :]
        assert honoured(spoiled) is Refusal.MALFORMED, index


@given(st.text(max_size=300))
def test_any_text_is_answered(text: str) -> None:
    assert honoured(text) is Refusal.MALFORMED
    assert honoured(f"v1.k1.{text}.{text}") is Refusal.MALFORMED


@pytest.mark.parametrize(
    "found",
    [
        [],
        {},
        None,
        b"",
        payload(NOW_MS, 60_000)[:-1],
        [*payload(NOW_MS, 60_000), "more"],
        ["id", "live", "app", "room", "", "e", NOW_MS, 60_000, None],
        ["id", "live", "app", [1], "", "e", NOW_MS, 60_000, None],
        ["id", "live", "app", ["room"], "", "e", "now", 60_000, None],
        ["id", "live", "app", ["room"], "", "e", NOW_MS, 60_000, {}],
    ],
)
def test_a_signed_token_of_another_shape_is_refused(found: object) -> None:
    assert honoured(forged(found)) is Refusal.MALFORMED


def test_a_token_of_another_key_is_refused() -> None:
    assert honoured(forged(payload(NOW_MS, 60_000), b"2" * 32)) is Refusal.MALFORMED
    assert honoured(forged(payload(NOW_MS, 60_000), key="k9")) is Refusal.MALFORMED
    assert honoured(mint(keys=GrantKeys.ephemeral())) is Refusal.MALFORMED


def test_a_huge_token_is_refused_before_it_is_read() -> None:
    head, _, tail = mint().rpartition(".")

    assert honoured(f"{head}.{tail}{'A' * 10_000}") is Refusal.MALFORMED


def test_other_spellings_of_the_same_bytes_are_refused() -> None:
    """One grant has one token, so a log line or a block list can name it."""
    token = mint()
    head, _, tail = token.rpartition(".")
    assert urlsafe_b64decode(f"{tail}=") == urlsafe_b64decode(f"{tail}===")

    assert honoured(f"{token}=") is Refusal.MALFORMED
    assert honoured(f"{head}.{tail}!") is Refusal.MALFORMED
    assert honoured(f" {token}") is Refusal.MALFORMED


def test_old_keys_verify_and_the_first_signs() -> None:
    old, new = secrets.token_bytes(32), secrets.token_bytes(32)
    before = mint(keys=GrantKeys({"old": old}))
    both = GrantKeys({"new": new, "old": old})

    assert isinstance(honoured(before, keys=both), Grant)
    assert mint(keys=both).startswith("v1.new.")
    assert honoured(before, keys=GrantKeys({"new": new})) is Refusal.MALFORMED


@pytest.mark.parametrize(
    "bounds",
    [
        PublishBounds(()),
        PublishBounds(("other",)),
        PublishBounds(("room", "other")),
        PublishBounds(("*",)),
        PublishBounds(("room",), kinds=()),
        PublishBounds(("room",), kinds=("message",)),
        PublishBounds(("room",), kinds=("a\nb",)),
        PublishBounds(("room",), kinds=tuple(f"k{n}" for n in range(9))),
        PublishBounds(("room",), bytes_max=0),
        PublishBounds(("room",), bytes_max=4_097),
        PublishBounds(("room",), per_s=0),
        PublishBounds(("room",), per_s=61),
    ],
)
def test_bounds_that_are_no_bounds_are_refused(bounds: PublishBounds) -> None:
    with pytest.raises(Reject):
        new_grant(LIVE, ["room"], now_ms=NOW_MS, life_ms=1_000, publish=bounds)


def test_a_grant_of_the_largest_size_fits_into_a_token() -> None:
    channels = [f"{number:064}" for number in range(32)]
    bounds = PublishBounds(tuple(channels), kinds=tuple(f"{n:064}" for n in range(8)))
    grant = new_grant(
        LIVE, channels, now_ms=NOW_MS, life_ms=1_000, holder="h" * 200, publish=bounds
    )

    assert honoured(sign(grant, KEYS)) == grant
