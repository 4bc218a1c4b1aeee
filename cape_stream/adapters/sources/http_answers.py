"""What an HTTP source says, read with distrust: JSON → pages and changes of the model.

A fault of one page is a `QueryFault` of its query; what is wrong with the answer as a whole is an
`AnswerError`, and then nothing of it is used.
"""

import json
import logging
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from cape_stream.model.event import NO_HEADERS, NO_INPUTS, Event
from cape_stream.model.headers import is_text
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.model.sequence import BadSequenceError, check_sequence
from cape_stream.model.subject import BadSubjectError, check_subject
from cape_stream.ports.source import Changes

logger = logging.getLogger("cape_stream.sources")

SHOWN_CHARS = 80
DIGITS_MAX = 19


class AnswerError(ValueError):
    """The body is no answer; the message says what it is."""


class BadEventError(ValueError):
    """An event of a page is none; the message says why."""


def encode_queries(queries: Sequence[EventQuery]) -> bytes:
    """The body of a request for pages."""
    asked = [{"subject": q.subject, "start": q.start, "limit": q.limit} for q in queries]
    return json.dumps({"queries": asked}).encode()


def encode_watermark(watermark: str | None, limit: int) -> bytes:
    """The body of a request for changes."""
    return json.dumps({"watermark": watermark, "limit": limit}).encode()


def read_pages(body: bytes, queries: Sequence[EventQuery]) -> list[EventPage | QueryFault]:
    """One answer per query, in the same order.

    Raises:
        AnswerError: the body is no answer to them.
    """
    pages = _object(body).get("pages")
    if not isinstance(pages, list):
        raise AnswerError(f"no list of pages, but {_shown(pages)}")
    if len(pages) != len(queries):
        raise AnswerError(f"{len(pages)} pages for {len(queries)} queries")
    return [_page(query, page) for query, page in zip(queries, pages, strict=True)]


def _page(query: EventQuery, page: object) -> EventPage | QueryFault:
    if not isinstance(page, dict):
        return QueryFault(query, f"a page is an object, not {_shown(page)}")
    if page.get("subject") != query.subject:
        return QueryFault(query, f"a page of another subject: {_shown(page.get('subject'))}")
    if "fault" in page:
        return QueryFault(query, f"the source says: {_shown(page['fault'])}")
    found = page.get("events")
    if not isinstance(found, list):
        return QueryFault(query, f"events are a list, not {_shown(found)}")
    if len(found) > query.limit:
        return QueryFault(query, f"{len(found)} events, more than the {query.limit} asked for")
    events: list[Event] = []
    last = query.start - 1
    try:
        for each in found:
            event = _event(each, query.subject)
            if event.sequence <= last:
                place = "below the start" if not events else "not ascending"
                return QueryFault(query, f"sequence id {event.sequence} is {place}")
            last = event.sequence
            events.append(event)
    except BadEventError as error:
        return QueryFault(query, str(error))
    return EventPage(query, events)


def _event(found: object, subject: str) -> Event:
    if not isinstance(found, dict):
        raise BadEventError(f"an event is an object, not {_shown(found)}")
    if found.get("subject", subject) != subject:
        raise BadEventError(f"an event of another subject: {_shown(found['subject'])}")
    try:
        sequence = check_sequence(_number(found.get("sequence")), "sequence")
    except BadSequenceError as error:
        raise BadEventError(str(error)) from error
    headers = found.get("headers") or NO_HEADERS
    if not is_text(headers):
        raise BadEventError(f"headers of {sequence} are no object of strings: {_shown(headers)}")
    return Event(sequence, _payload(found, sequence), headers, NO_INPUTS)


def _number(value: object) -> object:
    """A sequence id may be written as text, for those whose numbers end at 2**53."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX:
        return int(value)
    return value


def _payload(found: Mapping[str, Any], sequence: int) -> bytes:
    text, encoded = found.get("payload"), found.get("payload_base64")
    try:
        if isinstance(text, str) and encoded is None:
            return text.encode()
        if isinstance(encoded, str) and text is None:
            return b64decode(encoded, validate=True)
    except ValueError as error:
        raise BadEventError(f"payload of {sequence} does not decode: {error}") from error
    raise BadEventError(f"event {sequence} needs payload or payload_base64, one text")


def read_changes(body: bytes, limit: int) -> Changes:
    """What a sweep is told. An entry that is none is left out, and logged.

    Raises:
        AnswerError: the body is no answer.
    """
    answer = _object(body)
    subjects, watermark, more = (answer.get(each) for each in ("subjects", "watermark", "more"))
    if not isinstance(subjects, list) or not isinstance(watermark, str):
        raise AnswerError("no list of subjects, or no watermark that is text")
    if not isinstance(more, bool):
        raise AnswerError(f"more is true or false, not {_shown(more)}")
    if len(subjects) > limit:
        raise AnswerError(f"{len(subjects)} subjects, more than the {limit} asked for")
    return Changes([each for found in subjects if (each := _change(found))], watermark, more)


def _change(found: object) -> tuple[str, int] | None:
    try:
        if not isinstance(found, list) or len(found) != 2:
            raise BadSubjectError("it must be [subject, sequence]")
        return check_subject(found[0]), check_sequence(_number(found[1]), "sequence")
    except (BadSubjectError, BadSequenceError) as error:
        logger.warning("the source tells of %s, which is left out: %s", _shown(found), error)
        return None


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"not JSON: {_shown(body[:SHOWN_CHARS])}") from error
    if not isinstance(answer, dict):
        raise AnswerError(f"not an object: {_shown(answer)}")
    return answer


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."
