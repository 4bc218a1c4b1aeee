"""Rows of the table → events of the model, with a reason for every row that is none."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cape_stream.adapters.sources.sql_table import EventTable
from cape_stream.model.event import NO_HEADERS, NO_INPUTS, Event
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.model.sequence import BadSequenceError, check_sequence
from cape_stream.model.subject import BadSubjectError, check_subject

SUBJECT, SEQUENCE, PAYLOAD, HEADERS, STATE = range(5)
"""Positions in a row as every dialect selects it; from `STATE` on follows what the dialect needs to
tell whether the row is settled."""


class Standing(Enum):
    """May a row be handed out?"""

    SETTLED = "settled"
    """Yes."""
    LATER = "later"
    """No, as if it were not there yet: whoever makes it visible pings, or the sweep finds it."""
    HELD = "held"
    """No, but nobody will say when: the subject has to be asked again."""


StandingOf = Callable[[Sequence[Any]], Standing]


class BadRowError(ValueError):
    """A row is no event; the message names table, column and row."""


@dataclass(slots=True, frozen=True)
class PageMaker:
    """Turns the rows of one query into its answer."""

    table: EventTable
    subject_form: Callable[[str], object]
    """How the driver hands the text of a subject to us."""

    def page(
        self,
        query: EventQuery,
        rows: Iterable[Sequence[Any]],
        standing_of: StandingOf | None,
        held_because: str,
    ) -> EventPage | QueryFault:
        """Answer ``query`` with ``rows``, which are ascending.

        A bad row, or one that is held, fails the query and does not merely end the page: a page
        that ends early says that there is no more for now, and nobody would ask again.
        """
        events: list[Event] = []
        subject = self.subject_form(query.subject)
        last = query.start - 1
        has_headers = self.table.names.headers is not None
        for row in rows:
            if standing_of is not None:
                standing = standing_of(row)
                if standing is Standing.LATER:
                    break
                if standing is Standing.HELD:
                    return QueryFault(query, self._held(row, held_because))
            sequence, payload = row[SEQUENCE], row[PAYLOAD]
            if type(sequence) is not int or sequence <= last or row[SUBJECT] != subject:
                return QueryFault(query, self._misfit(query, row, last))
            last = sequence
            if type(payload) is not bytes:
                if not isinstance(payload, str):
                    return QueryFault(query, self._no_payload(query, row))
                payload = payload.encode()
            headers = NO_HEADERS
            if has_headers and row[HEADERS] is not None:
                try:
                    headers = headers_of(row[HEADERS])
                except ValueError as error:
                    return QueryFault(query, self._fault(query, row, "headers", str(error)))
            events.append(Event(sequence, payload, headers, NO_INPUTS))
        return EventPage(query, events)

    def _held(self, row: Sequence[Any], because: str) -> str:
        return f"held back at {self.table.names.sequence}={row[SEQUENCE]!r}: {because}"

    def _misfit(self, query: EventQuery, row: Sequence[Any], last: int) -> str:
        if row[SUBJECT] != self.subject_form(query.subject):
            return self._fault(
                query,
                row,
                "subject",
                f"holds {_shown(row[SUBJECT])}: the column compares by its collation, "
                "and subjects are compared byte for byte",
            )
        try:
            sequence = check_sequence(row[SEQUENCE], self.table.names.sequence)
        except BadSequenceError as error:
            return self._fault(query, row, "sequence", str(error))
        assert sequence <= last, "rows are asked for in order"
        return self._fault(query, row, "sequence", "is there twice")

    def _no_payload(self, query: EventQuery, row: Sequence[Any]) -> str:
        found = "NULL" if row[PAYLOAD] is None else f"of type {type(row[PAYLOAD]).__name__}"
        return self._fault(query, row, "payload", f"is {found}; it must be binary, text or JSON")

    def _fault(self, query: EventQuery, row: Sequence[Any], role: str, what: str) -> str:
        names = self.table.names
        column = getattr(names, role)
        return (
            f"bad row: column {self.table.shown}.{column} of row ({names.subject}="
            f"{query.subject!r}, {names.sequence}={_shown(row[SEQUENCE])}) {what}"
        )


def headers_of(value: object) -> Mapping[str, str]:
    """Return headers from a JSON object of strings, else raise ValueError."""
    if not isinstance(value, str | bytes):
        raise ValueError(f"is of type {type(value).__name__}; it must be a JSON object of strings")
    try:
        read = json.loads(value)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(read, dict) or not all(isinstance(each, str) for each in read.values()):
        raise ValueError("is not a JSON object of strings")
    return read


def query_refusal(query: EventQuery, *, nul_allowed: bool) -> str | None:
    """Say why a query cannot be asked at all, or None.

    Checked before the database is, so that one impossible subject does not fail its neighbours.
    """
    try:
        check_subject(query.subject)
        check_sequence(query.start, "start")
    except (BadSubjectError, BadSequenceError) as error:
        return str(error)
    if query.limit < 1:
        return f"limit must be at least 1, not {query.limit}"
    if not nul_allowed and "\0" in query.subject:
        return "subject holds a NUL character, which PostgreSQL text cannot"
    return None


def change_of(table: EventTable, subject: object, sequence: object) -> tuple[str, int]:
    """Return what a sweep reports for a row.

    Raises:
        BadRowError: no event can be made of that row, so nobody need be told of it.
    """
    names = table.names
    try:
        if isinstance(subject, bytes):
            subject = subject.decode()
        return check_subject(subject), check_sequence(sequence, names.sequence)
    except (BadSubjectError, BadSequenceError, UnicodeDecodeError) as error:
        row = f"({names.subject}={_shown(subject)}, {names.sequence}={_shown(sequence)})"
        raise BadRowError(f"bad row {row} of table {table.shown}: {error}") from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
