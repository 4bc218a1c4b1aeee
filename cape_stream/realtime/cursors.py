"""Cursors: how far a client got, sealed, so that it can give them back and not make them up.

A cursor belongs to a realm and to no grant: with a new grant for the same channels it resumes where
the old one ended. Who could make one up could ask for history it was never to see, so it is sealed
with a key of its own. It is the SSE id, and so without characters a header could not carry.
"""

import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b

from cape_stream.ports.channels import Position, Realm
from cape_stream.realtime.keys import GrantKeys

CURSOR_CHARACTERS_MAX = 64
SEAL_BYTES = 10
_PLACE = struct.Struct(">8sQ")


class CursorSeal:
    """Makes and reads the cursors of one realm."""

    __slots__ = ("_keys", "_realm")

    def __init__(self, keys: GrantKeys, realm: Realm) -> None:
        self._keys = keys
        self._realm = f"{len(realm.app)}:{realm.app}{realm.environment}".encode()

    def seal(self, position: Position) -> str:
        """The cursor of a position."""
        place = _PLACE.pack(bytes.fromhex(position.epoch), position.sequence)
        sealed = place + self._seal(self._keys.cursor_keys()[0], place)
        return urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def read(self, cursor: str) -> Position | None:
        """The position of a cursor; None if it is not one that was made for this realm."""
        if len(cursor) > CURSOR_CHARACTERS_MAX:
            return None
        try:
            sealed = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except ValueError:
            return None
        if len(sealed) != _PLACE.size + SEAL_BYTES:
            return None
        place, seal = sealed[: _PLACE.size], sealed[_PLACE.size :]
        # Another server may know a newer key already.
        if not self._is_ours(place, seal) and not (
            self._keys.refresh() and self._is_ours(place, seal)
        ):
            return None
        epoch, sequence = _PLACE.unpack(place)
        return Position(epoch.hex(), sequence)

    def _is_ours(self, place: bytes, seal: bytes) -> bool:
        keys = self._keys.cursor_keys()
        return any(hmac.compare_digest(self._seal(key, place), seal) for key in keys)

    def _seal(self, key: bytes, place: bytes) -> bytes:
        return blake2b(self._realm + place, digest_size=SEAL_BYTES, key=key).digest()
