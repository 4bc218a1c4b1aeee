"""What a stream server knows of a realm while somebody here hears it."""

from cape_stream.ports.channels import Position, Realm
from cape_stream.realtime.cursors import CursorSeal
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.streams import Stream

UNKNOWN = Position("00" * 8, 0)
"""The position of a cursor that cannot be read: everything is a gap."""


class ChannelState:
    """Who hears one channel."""

    __slots__ = ("idle_ticks", "since", "streams")

    def __init__(self) -> None:
        self.streams: set[Stream] = set()
        self.since: int | None = None
        """Sequence from which on nothing was missed; None until the first stream knows."""
        self.idle_ticks = 0


class RealmState:
    """Channels of one realm that somebody here hears, and how far we are."""

    def __init__(self, realm: Realm, keys: GrantKeys) -> None:
        self.realm = realm
        self.seal = CursorSeal(keys, realm)
        self.channels: dict[str, ChannelState] = {}
        self.streams: set[Stream] = set()
        self.epoch = ""
        self.delivered = 0
        """Everything up to here has been handed to every stream that is live."""
        self.floor = 0
        """What a catch-up has covered: it may arrive live once more, and is dropped."""
        self._beats = [b"", b""]
        self._beat_at = -1

    def cursor(self, sequence: int) -> str:
        """The cursor of a place in this realm; empty if there is none to tell."""
        return self.seal.seal(Position(self.epoch, sequence)) if sequence and self.epoch else ""

    def heartbeat(self, stream: Stream) -> bytes:
        """The sign of life for a stream, with a fresh cursor where it is sure."""
        if not self.delivered or self.delivered < stream.start or stream.early is not None:
            return stream.wire.heartbeat("")
        if self._beat_at != self.delivered:
            self._beats, self._beat_at = [b"", b""], self.delivered
        if not self._beats[stream.at]:
            self._beats[stream.at] = stream.wire.heartbeat(self.cursor(self.delivered))
        return self._beats[stream.at]
