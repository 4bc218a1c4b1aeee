"""Grants: signed tokens that let one client hear some channels of one realm for a short while.

A token is `v1.KEY.PAYLOAD.SIGNATURE`, the last two in base64url; the payload is msgpack. Everything
a stream server needs is in it, except whether it was revoked.
"""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from cape_stream.errors import Reject
from cape_stream.ports.channels import GrantKey, Realm
from cape_stream.ports.contexts import PublishBounds
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.naming import check_channel, check_channels, check_holder, check_kind
from cape_stream.realtime.settings import GRANT_LIFE_MS_MAX

VERSION = "v1"
TOKEN_CHARACTERS_MAX = 6_000
CLIENT_PUBLISH_BYTES_MAX = 4_096
CLIENT_PUBLISHES_PER_S_MAX = 60
KINDS_MAX = 8


class Refusal(StrEnum):
    """Why a grant is not honoured; told to the client, which acts by it."""

    MALFORMED = "malformed"
    """Not one of our tokens, or forged."""
    EXPIRED = "expired"
    """Was good once: mint again."""
    NOT_YET = "not_yet_valid"
    """Its minter's clock is ahead of ours."""
    REVOKED = "revoked"
    """Access was withdrawn."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token stands for."""

    grant_id: str
    realm: Realm
    channels: tuple[str, ...]
    holder: str
    """Whose it is, as the app says; may be empty. Revocation by holder needs it."""
    execution: str
    """Which execution minted it, for audits."""
    issued_ms: int
    expires_ms: int
    publish: PublishBounds | None

    @property
    def key(self) -> GrantKey:
        """What revocations are matched with."""
        return GrantKey(self.grant_id, self.holder, self.issued_ms)


class _Bounds(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    channels: tuple[int, ...]
    """By their place in the grant, which keeps a token short."""
    kinds: tuple[str, ...]
    bytes_max: int
    per_s: int


class _Payload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    grant_id: str
    environment: str
    app: str
    channels: tuple[str, ...]
    holder: str
    execution: str
    issued_ms: int
    life_ms: int
    publish: _Bounds | None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Payload)


def new_grant(
    realm: Realm,
    channels: object,
    *,
    now_ms: int,
    life_ms: int,
    holder: str = "",
    execution: str = "",
    publish: PublishBounds | None = None,
) -> Grant:
    """A grant that can be signed; its life is cut to an hour.

    Raises:
        Reject: a channel, the life, the holder or a bound cannot be.
    """
    found = check_channels(channels)
    if life_ms <= 0:
        raise Reject(f"a grant lives longer than 0 ms, not {life_ms}")
    return Grant(
        secrets.token_urlsafe(12),
        realm,
        found,
        check_holder(holder),
        execution,
        now_ms,
        now_ms + min(life_ms, GRANT_LIFE_MS_MAX),
        None if publish is None else _checked(publish, found),
    )


def sign(grant: Grant, keys: GrantKeys) -> str:
    """The token of a grant."""
    name, secret = keys.signing
    payload = _ENCODER.encode(
        _Payload(
            grant.grant_id,
            grant.realm.environment,
            grant.realm.app,
            grant.channels,
            grant.holder,
            grant.execution,
            grant.issued_ms,
            grant.expires_ms - grant.issued_ms,
            _packed(grant),
        )
    )
    signed = f"{VERSION}.{name}.{_encode(payload)}"
    return f"{signed}.{_encode(_signature(secret, signed))}"


def read(token: str, keys: GrantKeys, now_ms: int, skew_max_ms: int) -> Grant | Refusal:
    """The grant of a token, or why there is none; revocation is the store's to tell.

    The hour holds here, too: a token that claims more is refused, whoever signed it.
    """
    parts = token.split(".")
    if len(token) > TOKEN_CHARACTERS_MAX or not token.isascii():
        return Refusal.MALFORMED
    if len(parts) != 4 or parts[0] != VERSION:
        return Refusal.MALFORMED
    payload, signature = _decode(parts[2]), _decode(parts[3])
    secret = keys.named(parts[1])
    if payload is None or signature is None or secret is None:
        return Refusal.MALFORMED
    expected = _signature(secret, token.rpartition(".")[0])
    if not hmac.compare_digest(expected, signature):
        return Refusal.MALFORMED
    try:
        found = _DECODER.decode(payload)
    except msgspec.DecodeError:
        return Refusal.MALFORMED
    if not 0 < found.life_ms <= GRANT_LIFE_MS_MAX or not _is_sound(found):
        return Refusal.MALFORMED
    if found.issued_ms > now_ms + skew_max_ms:
        return Refusal.NOT_YET
    # Never longer than an hour from now, though the minter's clock be ahead.
    expires_ms = min(found.issued_ms + found.life_ms, now_ms + GRANT_LIFE_MS_MAX)
    if expires_ms <= now_ms:
        return Refusal.EXPIRED
    return Grant(
        found.grant_id,
        Realm(found.environment, found.app),
        found.channels,
        found.holder,
        found.execution,
        found.issued_ms,
        expires_ms,
        _unpacked(found),
    )


def _packed(grant: Grant) -> _Bounds | None:
    bounds = grant.publish
    if bounds is None:
        return None
    places = tuple(grant.channels.index(name) for name in bounds.channels)
    return _Bounds(places, bounds.kinds, bounds.bytes_max, bounds.per_s)


def _unpacked(found: _Payload) -> PublishBounds | None:
    bounds = found.publish
    if bounds is None:
        return None
    channels = tuple(found.channels[place] for place in bounds.channels)
    return PublishBounds(channels, bounds.kinds, bounds.bytes_max, bounds.per_s)


def _is_sound(found: _Payload) -> bool:
    places = found.publish.channels if found.publish is not None else ()
    return bool(found.channels) and all(0 <= place < len(found.channels) for place in places)


def _checked(bounds: PublishBounds, granted: tuple[str, ...]) -> PublishBounds:
    channels = tuple(check_channel(name) for name in bounds.channels)
    kinds = tuple(dict.fromkeys(check_kind(name) for name in bounds.kinds))
    strange = [name for name in channels if name not in granted]
    if strange or not channels:
        raise Reject(
            f"publish.channels must be channels of the grant; {strange[:1] or 'none'} is not"
        )
    if not 1 <= len(kinds) <= KINDS_MAX or "message" in kinds:
        raise Reject(f"publish.kinds has 1 to {KINDS_MAX} kinds other than 'message': {kinds!r}")
    if not 1 <= bounds.bytes_max <= CLIENT_PUBLISH_BYTES_MAX:
        raise Reject(
            f"publish.bytes_max is 1 to {CLIENT_PUBLISH_BYTES_MAX}, not {bounds.bytes_max}"
        )
    if not 1 <= bounds.per_s <= CLIENT_PUBLISHES_PER_S_MAX:
        raise Reject(f"publish.per_s is 1 to {CLIENT_PUBLISHES_PER_S_MAX}, not {bounds.per_s}")
    return PublishBounds(channels, kinds, bounds.bytes_max, bounds.per_s)


def _signature(secret: bytes, signed: str) -> bytes:
    return hmac.digest(secret, signed.encode(), hashlib.sha256)


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes | None:
    """Bytes of base64url without padding; None if it is anything else, or not the one spelling."""
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return data if _encode(data) == text else None
