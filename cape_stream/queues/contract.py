"""What producer and consumer agree on: types, versions, and how a body becomes a value.

Our own messages are JSON: ``{"type": "ingest", "version": 1, "id": "...", "body": {...}}``. What
AWS sends (S3, SES, CloudWatch) keeps its own form, and a queue that carries it has a contract of
its own. Decoding never raises: a body nobody understands is a value, with a label to count it by.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

import msgspec

from cape_stream.errors import Reject
from cape_stream.ports.queue import MESSAGE_BYTES_MAX, OutgoingMessage
from cape_stream.queues.context import JobContext

T = TypeVar("T")

LABEL_CHARS_MAX = 60
"""Of a type name that a stranger wrote; it becomes a label of a metric and a word in a log."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that SQS refuses. Source: the SendMessage page (the XML 1.0 characters)."""

IDENTIFIER_CHARS_MAX = 128
_PLAIN = re.compile("[!-~]+")
_NOT_PLAIN = re.compile("[^!-~]")


@dataclass(slots=True, frozen=True)
class Decoded:
    """A body that somebody understands."""

    label: str
    """The type; handlers are registered under it."""
    value: Any


@dataclass(slots=True, frozen=True)
class Unhandled:
    """A body nobody here understands. It goes back to the queue and is counted, never deleted."""

    label: str
    """What to count it by: the type it claims, or ``undecodable``."""
    reason: str


class Contract(Protocol):
    """What one queue carries."""

    @property
    def queue(self) -> str:
        """Short name of the queue, such as ``ingest``."""
        ...

    def decode(self, body: str) -> Decoded | Unhandled:
        """What a body says. Never raises, whatever the body."""
        ...


Handler = Callable[[Any, JobContext], Awaitable[None] | None]
"""Does the work of one message; returning means done, and the message is deleted.

Raises:
    Retry: give the message back, after its ``after_ms`` or by the queue's backoff.
    Reject: this message can never be done: it is not run again here, and ends in the DLQ.
    HandedBackError: interrupted between two steps; give it back at once, without charging it.
    Any other exception: a failure, given back by the queue's backoff.
"""


class _Envelope(msgspec.Struct, frozen=True):
    """The outer form of our own messages."""

    type: str
    version: int = 0
    id: str = ""
    body: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(slots=True, frozen=True)
class MessageType(Generic[T]):
    """One type of our own messages: the definition that producer and consumer share."""

    name: str
    shape: type[T]
    """A `msgspec.Struct`; extra fields of a newer minor form are ignored."""
    version: int = 1
    upgrades: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)
    """Old version → how its body becomes that of the next version."""

    def outgoing(
        self,
        value: T,
        *,
        message_id: str | None = None,
        tenant: str | None = None,
        delay_s: int = 0,
        bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> OutgoingMessage:
        """The message to send.

        Args:
            value: of the type's shape.
            message_id: for logs and, on a FIFO queue, for dropping repeats; None makes one.
            tenant: whose work it is, any text: becomes the message group, so that none starves
                others.
            delay_s: not received before so many seconds.
            bytes_max: the queue's own limit, `QueueTraits.bytes_max`.

        Raises:
            Reject: the message is larger than the queue takes, or holds characters it refuses.
        """
        name = message_id or uuid4().hex
        envelope = {"type": self.name, "version": self.version, "id": name, "body": value}
        body = _checked(self.name, name, encode(envelope), bytes_max)
        group = identifier(tenant) if tenant else None
        return OutgoingMessage(
            body, group=group, deduplication_id=identifier(name), delay_s=delay_s
        )

    def read(self, version: int, body: msgspec.Raw) -> T:
        """The value of a body of any version up to ours.

        Raises:
            Reject: the version is not known or the body has not its shape; says what and where.
        """
        known = [*self.upgrades, self.version]
        if version not in known:
            raise Reject(f"version {version} of {self.name} is not known, only {sorted(known)}")
        try:
            if version == self.version:
                return msgspec.json.decode(body, type=self.shape)
            document = msgspec.json.decode(body, type=dict)
            for step in range(version, self.version):
                document = self.upgrades[step](document)
            return msgspec.convert(document, self.shape)
        except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise Reject(f"body of {self.name} version {version}: {error}") from error


@dataclass(slots=True, frozen=True)
class OwnContract:
    """A queue that carries messages of ours. Implements `Contract`."""

    queue: str
    types: tuple[MessageType[Any], ...]

    def decode(self, body: str) -> Decoded | Unhandled:
        """See `Contract.decode`."""
        try:
            envelope = msgspec.json.decode(body, type=_Envelope)
        except (msgspec.MsgspecError, UnicodeError) as error:
            return Unhandled("undecodable", str(error))
        for each in self.types:
            if each.name == envelope.type:
                try:
                    return Decoded(each.name, each.read(envelope.version, envelope.body))
                except Reject as error:
                    return Unhandled(each.name, error.reason)
        label = shown_label(envelope.type)
        return Unhandled(label, f"no type {label!r} on queue {self.queue}")


def encode(value: object) -> str:
    """JSON as text."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, UnicodeEncodeError) as error:
        raise Reject(f"cannot be written as JSON: {error}") from error


def shown_label(text: str) -> str:
    """A stranger's word, made fit for a log line and a metric."""
    shown = "".join(char if char.isprintable() else "?" for char in text[:LABEL_CHARS_MAX])
    return shown or "empty"


def identifier(text: str) -> str:
    """A text as SQS takes it for a message group or a deduplication id: the same if it can be, else
    what can be shown of it and a digest, so that two texts stay two.

    Source: the SendMessage page: at most 128 letters, digits and signs of ASCII.
    """
    if _PLAIN.fullmatch(text) and len(text) <= IDENTIFIER_CHARS_MAX:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    shown = _NOT_PLAIN.sub("-", text[: IDENTIFIER_CHARS_MAX - len(digest) - 1])
    return f"{shown}~{digest}"


def forbidden_character(text: str) -> str | None:
    """The first character that SQS would refuse, as U+XXXX; None if all may pass."""
    found = _FORBIDDEN.search(text)
    return None if found is None else f"U+{ord(found.group()):04X} at {found.start()}"


def _checked(type_name: str, message_id: str, body: str, bytes_max: int) -> str:
    bad = forbidden_character(body)
    if bad is not None:
        raise Reject(f"message {message_id} of {type_name} holds {bad}, which SQS refuses")
    size = len(body.encode())
    if size > bytes_max:
        raise Reject(
            f"message {message_id} of {type_name} has {size:,} bytes, its queue takes"
            f" {bytes_max:,}: send a reference to where the data lies"
        )
    return body
