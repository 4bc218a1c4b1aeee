"""Takes AWS notifications out of their wrapping: SNS envelopes, EventBridge, S3 keys and times.

The same event comes bare or inside an SNS envelope, depending on how a subscription was made.
Only what is unmistakably an envelope is opened, and one level only.
"""

import calendar
import time
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from cape_stream.errors import Reject

Document = dict[str, Any]


def open_document(body: str) -> Document:
    """The JSON object of a body, out of its SNS envelope if it has one.

    Raises:
        Reject: not a JSON object, or an envelope whose inside is none.
    """
    document = _object(body, "the body")
    if document.get("Type") == "Notification" and isinstance(document.get("TopicArn"), str):
        inner = document.get("Message")
        if not isinstance(inner, str):
            raise Reject("an SNS notification without a text in Message")
        return _object(inner, "Message of the SNS notification")
    return document


def _object(text: str, what: str) -> Document:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Reject(f"{what} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Reject(f"{what} is no JSON object but {type(found).__name__}")
    return found


def decoded_key(key: str) -> str:
    """An object key as it is, from the form-encoded one of an S3 notification.

    Source: S3 event message structure: the key is URL encoded; a space arrives as ``+``, a plus as
    ``%2B``.

    Raises:
        Reject: what is encoded is not UTF-8.
    """
    try:
        return unquote_plus(key, errors="strict")
    except UnicodeDecodeError as error:
        raise Reject(f"object key {key!r} does not decode to UTF-8") from error


def moment_ms(text: object) -> int:
    """Unix milliseconds of an AWS timestamp: ``...30.123Z``, ``...30Z`` or ``...30.123+0000``.

    Raises:
        Reject: it is none.
    """
    if not isinstance(text, str):
        raise Reject(f"not a time: {text!r}")
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise Reject(f"not a time: {text!r}") from error
    if found.tzinfo is None:
        raise Reject(f"a time without a zone: {text!r}")
    return calendar.timegm(found.utctimetuple()) * 1_000 + found.microsecond // 1_000


def wall_ms() -> int:
    """Unix milliseconds by the wall clock, for deadlines that another machine reads."""
    return time.time_ns() // 1_000_000


def text_at(document: Document, *path: str) -> str:
    """The text at a path of keys.

    Raises:
        Reject: there is none; names the path.
    """
    found: object = document
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, str):
        raise Reject(f"no text at {'.'.join(path)}")
    return found


def part(document: Document, key: str) -> Document:
    """The object at a key; an empty one if there is none."""
    found = document.get(key)
    return found if isinstance(found, dict) else {}
