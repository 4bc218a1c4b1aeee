"""What a status says of single events, as bytes and back: done, outputs, failures."""

from collections.abc import Mapping, Sequence
from typing import Any

from cape_stream.adapters.avro.fields import (
    checked_bytes,
    checked_count,
    checked_sequence,
    count_bytes,
    sequence_bytes,
)
from cape_stream.adapters.avro.wire import (
    END,
    NATURAL,
    NATURAL_END,
    NULL,
    SOME,
    UnusualError,
    length_prefixed,
    natural_bytes,
    read_bytes,
    read_natural,
    read_text,
)
from cape_stream.errors import Reject
from cape_stream.model.status import (
    ERROR_HEAD_CHARS_MAX,
    NO_OUTPUTS,
    EventFailure,
    FailureClass,
)

LAST = END + END + NULL
"""No outputs, no failures, no token."""
NO_FAILURES: Sequence[EventFailure] = ()
ONE = NATURAL[1][0]
"""Count of a list with one item."""

_CLASS_BYTES = {each: NATURAL[index] for index, each in enumerate(FailureClass)}
"""In the order of the schema's symbols."""
_CLASS_OF = {octets[0]: each for each, octets in _CLASS_BYTES.items()}


def add_sequences(parts: list[bytes], sequences: Sequence[int]) -> None:
    """Append the items of a list of sequence ids that is not empty, without its end."""
    parts.append(natural_bytes(len(sequences)))
    for sequence in sequences:
        # The type first: True and 1.0 would find their way into the table, too.
        if type(sequence) is int and 0 <= sequence < NATURAL_END:
            parts.append(NATURAL[sequence])
        else:
            parts.append(sequence_bytes(sequence, "done"))


def add_outputs(parts: list[bytes], outputs: Mapping[int, bytes]) -> None:
    """Append the list of outputs."""
    if outputs:
        parts.append(natural_bytes(len(outputs)))
        for sequence, output in outputs.items():
            parts.append(sequence_bytes(sequence, "output sequence"))
            parts.append(length_prefixed(checked_bytes(output, "output")))
    parts.append(END)


def add_failures(parts: list[bytes], failures: Sequence[EventFailure]) -> None:
    """Append the list of failures."""
    if failures:
        parts.append(natural_bytes(len(failures)))
        for failure in failures:
            if failure.failure_class not in _CLASS_BYTES:
                raise Reject(f"unknown failure class {failure.failure_class!r}")
            # Foreign text, for people: what UTF-8 cannot spell must not cost the whole status.
            error = failure.error[:ERROR_HEAD_CHARS_MAX].encode("utf-8", "replace")
            wait_ms = failure.retry_after_ms
            parts.append(sequence_bytes(failure.sequence, "failure sequence"))
            parts.append(_CLASS_BYTES[failure.failure_class])
            parts.append(length_prefixed(error))
            parts.append(NULL if wait_ms is None else SOME + count_bytes(wait_ms, "retry_after_ms"))
    parts.append(END)


def quick_results(
    value: bytes, at: int
) -> tuple[Sequence[int], Mapping[int, bytes], Sequence[EventFailure]]:
    """Read everything from the list of done events to the end of the record."""
    done, at = _quick_done(value, at)
    if value[at:] == LAST:
        return done, NO_OUTPUTS, NO_FAILURES
    outputs, at = _quick_outputs(value, at)
    failures, at = _quick_failures(value, at)
    if value[at:] != NULL:
        raise UnusualError
    return done, outputs, failures


def _quick_done(value: bytes, at: int) -> tuple[tuple[int, ...], int]:
    done: list[int] = []
    count, at = read_natural(value, at)
    while count:
        for _ in range(count):
            sequence, at = read_natural(value, at)
            done.append(sequence)
        count, at = read_natural(value, at)
    return tuple(done), at


def _quick_outputs(value: bytes, at: int) -> tuple[Mapping[int, bytes], int]:
    outputs: dict[int, bytes] = {}
    count, at = read_natural(value, at)
    while count:
        for _ in range(count):
            sequence, at = read_natural(value, at)
            outputs[sequence], at = read_bytes(value, at)
        count, at = read_natural(value, at)
    return outputs, at


def _quick_failures(value: bytes, at: int) -> tuple[tuple[EventFailure, ...], int]:
    failures: list[EventFailure] = []
    count, at = read_natural(value, at)
    while count:
        for _ in range(count):
            sequence, at = read_natural(value, at)
            failure_class = _CLASS_OF[value[at]]
            error, at = read_text(value, at + 1)
            wait_ms = None
            if value[at] == SOME[0]:
                wait_ms, at = read_natural(value, at + 1)
            elif value[at] == NULL[0]:
                at += 1
            else:
                raise UnusualError
            failures.append(
                EventFailure(sequence, failure_class, error[:ERROR_HEAD_CHARS_MAX], wait_ms)
            )
        count, at = read_natural(value, at)
    return tuple(failures), at


def plain_outputs(items: Sequence[Mapping[str, Any]]) -> dict[int, bytes]:
    """Return the outputs the strict reader found. Raises Reject."""
    return {checked_sequence(each["sequence"], "output"): each["output"] for each in items}


def plain_failure(item: Mapping[str, Any]) -> EventFailure:
    """Return one failure the strict reader found. Raises Reject."""
    wait_ms = item["retry_after_ms"]
    return EventFailure(
        checked_sequence(item["sequence"], "failure"),
        FailureClass(item["failure_class"]),
        item["error"][:ERROR_HEAD_CHARS_MAX],
        None if wait_ms is None else checked_count(wait_ms, "retry_after_ms"),
    )
