"""What every event source promises; see `cape_stream.ports.source`."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cape_stream.model.event import Event
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.model.sequence import SEQUENCE_MAX
from cape_stream.model.subject import SUBJECT_BYTES_MAX
from cape_stream.ports.source import EventSource
from tests.contract.source_implementations import IMPLEMENTATIONS, Filled, Make

KEYS = json.loads((Path(__file__).parents[1] / "data" / "subject-keys.json").read_text())["keys"]
PAGES_MAX = 1_000
"""More pages than any sweep here takes; one that never ends is a failure, not a hang."""


@pytest.fixture(params=IMPLEMENTATIONS)
def filled(request: pytest.FixtureRequest) -> Filled:
    make: Make = request.param
    return make(request)


def append(filled: Filled, subject: str, *sequences: int) -> None:
    for sequence in sequences:
        filled.append(subject, sequence, f"{subject[:9]}/{sequence}".encode(), {})


def fetch(source: EventSource, subject: str, start: int, limit: int) -> Sequence[Event]:
    (answer,) = source.fetch_many([EventQuery(subject, start, limit)])
    assert isinstance(answer, EventPage), answer
    return answer.events


def sequences(events: Sequence[Event]) -> list[int]:
    return [event.sequence for event in events]


def sweep(
    source: EventSource, watermark: str | None, limit: int
) -> tuple[dict[str, int], str, int]:
    """Call until there is no more: newest of each subject, last watermark, number of calls."""
    newest: dict[str, int] = {}
    for calls in range(1, PAGES_MAX):
        changes = source.changed_since(watermark, limit)
        assert len(changes.subjects) <= limit
        for subject, sequence in changes.subjects:
            newest[subject] = max(sequence, newest.get(subject, 0))
        watermark = changes.watermark
        if not changes.more:
            return newest, watermark, calls
    raise AssertionError("the sweep does not end")


def spelled(key: dict[str, object]) -> str:
    """The subject of an entry of the key file; bytes that are no UTF-8 become lone surrogates."""
    repeat = key.get("repeat")
    if isinstance(repeat, dict):
        return str(repeat["text"]) * int(repeat["count"])
    if "hex" in key:
        return bytes.fromhex(str(key["hex"])).decode("utf-8", "surrogateescape")
    return str(key["text"])


def test_source_answers_in_ascending_order_whatever_the_gaps(filled: Filled) -> None:
    """Ascending by number, not by text, and with each event's own payload."""
    append(filled, "A", 0, 2, 9, 10, 11, 100, 1_000_000_007)

    events = fetch(filled.source, "A", 0, 100)

    assert sequences(events) == [0, 2, 9, 10, 11, 100, 1_000_000_007]
    assert [event.payload for event in events][:3] == [b"A/0", b"A/2", b"A/9"]


def test_source_includes_the_start_and_nothing_below(filled: Filled) -> None:
    """A query's start is inclusive, whether it is there or in a gap."""
    append(filled, "A", 1, 5, 9)

    assert sequences(fetch(filled.source, "A", 5, 10)) == [5, 9]
    assert sequences(fetch(filled.source, "A", 6, 10)) == [9]
    assert sequences(fetch(filled.source, "A", 10, 10)) == []


def test_source_returns_the_first_events_up_to_the_limit(filled: Filled) -> None:
    """A limit cuts at the end, never at the beginning."""
    append(filled, "A", *range(20))

    assert sequences(fetch(filled.source, "A", 3, 5)) == [3, 4, 5, 6, 7]
    assert sequences(fetch(filled.source, "A", 3, 1)) == [3]
    assert sequences(fetch(filled.source, "A", 15, 5)) == [15, 16, 17, 18, 19]
    assert sequences(fetch(filled.source, "A", 16, SEQUENCE_MAX)) == [16, 17, 18, 19]


def test_source_answers_an_unknown_subject_with_an_empty_page(filled: Filled) -> None:
    """Pings may name subjects that have nothing yet."""
    append(filled, "A", 1)

    assert fetch(filled.source, "B", 0, 10) == [] or fetch(filled.source, "B", 0, 10) == ()


def test_source_answers_many_queries_in_their_order(filled: Filled) -> None:
    """One answer per query, also when a subject is asked twice and another has nothing."""
    append(filled, "A", *range(10))
    append(filled, "B", *range(100, 105))
    queries = [
        EventQuery("B", 0, 2),
        EventQuery("A", 7, 10),
        EventQuery("none", 0, 10),
        EventQuery("A", 0, 3),
        EventQuery("B", 104, 10),
        EventQuery("A", 7, 10),
    ]

    answers = filled.source.fetch_many(queries)

    pages = [answer for answer in answers if isinstance(answer, EventPage)]
    assert [page.query for page in pages] == queries
    assert [sequences(page.events) for page in pages] == [
        [100, 101],
        [7, 8, 9],
        [],
        [0, 1, 2],
        [104],
        [7, 8, 9],
    ]


def test_source_answers_no_query_with_nothing(filled: Filled) -> None:
    """An empty call is not an error."""
    assert list(filled.source.fetch_many([])) == []


def test_source_answers_hundreds_of_queries_in_one_call(filled: Filled) -> None:
    """More subjects than a statement of most databases has room for terms."""
    for number in range(700):
        append(filled, f"S{number}", number)

    answers = filled.source.fetch_many([EventQuery(f"S{n}", 0, 10) for n in range(700)])

    found = [sequences(answer.events) for answer in answers if isinstance(answer, EventPage)]
    assert found == [[number] for number in range(700)]


def test_source_keeps_both_ends_of_int64(filled: Filled) -> None:
    """0 is a sequence id like any other, and so is the last one."""
    append(filled, "A", 0, 2**53 + 1, SEQUENCE_MAX - 1, SEQUENCE_MAX)

    assert sequences(fetch(filled.source, "A", 0, 1)) == [0]
    assert sequences(fetch(filled.source, "A", 1, 1)) == [2**53 + 1]
    assert sequences(fetch(filled.source, "A", SEQUENCE_MAX, 9)) == [SEQUENCE_MAX]
    assert sweep(filled.source, None, 10)[0] == {"A": SEQUENCE_MAX}


def test_source_returns_payload_and_headers_as_they_were(filled: Filled) -> None:
    """All byte values, and headers beyond ASCII."""
    headers = {"content-type": "text/plain", "größe": "7 \U0001f680"}
    filled.append("A", 1, bytes(range(256)), headers)
    filled.append("A", 2, b"", {})

    first, second = fetch(filled.source, "A", 0, 10)

    assert (first.payload, dict(first.headers)) == (bytes(range(256)), headers)
    assert (second.payload, dict(second.headers)) == (b"", {})


def is_kept(filled: Filled, key: dict[str, object]) -> bool:
    """Can the source hold this subject, as it documents it?"""
    subject = spelled(key)
    if "hex" in key or not 0 < len(subject.encode()) <= SUBJECT_BYTES_MAX:
        return False
    if not filled.fits(subject):
        return False
    return filled.nul_allowed or "\0" not in subject


def test_source_serves_or_refuses_every_odd_subject(filled: Filled) -> None:
    """All in one call: a subject that is none is a fault of its own query and of no other."""
    kept = [is_kept(filled, key) for key in KEYS]
    for number, key in enumerate(KEYS):
        if kept[number]:
            append(filled, spelled(key), number, number + 1)

    answers = filled.source.fetch_many(
        [EventQuery(spelled(key), number + 1, 9) for number, key in enumerate(KEYS)]
    )

    for number, (key, answer) in enumerate(zip(KEYS, answers, strict=True)):
        if kept[number]:
            assert key["accept"] != "refuse"
            assert isinstance(answer, EventPage), key["id"]
            assert sequences(answer.events) == [number + 1], key["id"]
        else:
            assert key["accept"] != "yes", key["id"]
            assert isinstance(answer, QueryFault), key["id"]
            assert "subject" in answer.reason
    expected = {spelled(key): n + 1 for n, key in enumerate(KEYS) if kept[n]}
    assert sweep(filled.source, None, 1)[0] == expected


def test_source_keeps_look_alikes_apart(filled: Filled) -> None:
    """Subjects are compared byte for byte."""
    alike = ["a", "A", "a ", " a", "caf\u00e9", "cafe\u0301", "7", "007", "\ufeffa", "a\u200b"]
    for number, subject in enumerate(alike):
        append(filled, subject, number)

    for number, subject in enumerate(alike):
        assert sequences(fetch(filled.source, subject, 0, 99)) == [number]
    expected = {subject: number for number, subject in enumerate(alike)}
    assert sweep(filled.source, None, 3)[0] == expected


@pytest.mark.parametrize(
    ("query", "named"),
    [
        (EventQuery("", 0, 1), "subject"),
        (EventQuery("A", -1, 1), "start"),
        (EventQuery("A", SEQUENCE_MAX + 1, 1), "start"),
        (EventQuery("A", 0, 0), "limit"),
        (EventQuery("A", 0, -5), "limit"),
    ],
)
def test_source_refuses_a_query_that_cannot_be_asked(
    filled: Filled, query: EventQuery, named: str
) -> None:
    """The fault names what is wrong, and the neighbour is served."""
    append(filled, "A", 1)

    refused, served = filled.source.fetch_many([query, EventQuery("A", 0, 1)])

    assert isinstance(refused, QueryFault)
    assert refused.query == query
    assert named in refused.reason
    assert isinstance(served, EventPage)


def test_source_answers_threads_at_the_same_time(filled: Filled) -> None:
    """Every thread gets its own answers."""
    for number in range(20):
        append(filled, f"S{number}", *range(number, number + 30))

    def ask(seed: int) -> list[tuple[str, list[int]]]:
        queries = [EventQuery(f"S{(seed + n) % 20}", 0, 10) for n in range(20)]
        answers = filled.source.fetch_many(queries)
        return [
            (answer.query.subject, sequences(answer.events))
            for answer in answers
            if isinstance(answer, EventPage)
        ]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(ask, range(filled.crowd)):
            assert len(found) == 20
            for subject, numbers in found:
                first = int(subject[1:])
                assert numbers == list(range(first, first + 10))


def test_source_shows_each_append_to_the_next_call(filled: Filled) -> None:
    """A ping that follows the commit finds the event."""
    for number in range(30):
        append(filled, "A", number)
        assert sequences(fetch(filled.source, "A", number, 10)) == [number]


@pytest.mark.parametrize("limit", [1, 2, 7, 1_000])
def test_sweep_covers_every_subject_when_it_begins(filled: Filled, limit: int) -> None:
    """Without a watermark everything counts as changed; pages lose nothing between them."""
    for number in range(15):
        append(filled, f"S{number}", *range(number, number + 2))

    newest, _, calls = sweep(filled.source, None, limit)

    assert newest == {f"S{number}": number + 1 for number in range(15)}
    assert calls >= 15 // limit


def test_sweep_of_nothing_ends_at_once(filled: Filled) -> None:
    """An empty source has no changes, and its watermark is good for later."""
    newest, watermark, calls = sweep(filled.source, None, 10)
    append(filled, "A", 0)

    assert (newest, calls) == ({}, 1)
    assert sweep(filled.source, watermark, 10)[0] == {"A": 0}


def test_sweep_reports_what_came_since_the_watermark(filled: Filled) -> None:
    """New subjects and new events of old ones, also far behind in the order of subjects."""
    append(filled, "M", 1)
    append(filled, "N", 1)
    _, watermark, _ = sweep(filled.source, None, 10)

    append(filled, "M", 2)
    append(filled, "A", 7)

    newest, watermark, _ = sweep(filled.source, watermark, 10)
    assert newest.items() >= {"M": 2, "A": 7}.items()
    append(filled, "Z", 1)
    assert sweep(filled.source, watermark, 10)[0].items() >= {"Z": 1}.items()


def test_sweep_finds_what_is_added_while_it_is_under_way(filled: Filled) -> None:
    """An event behind the sweep's place is found by the same sweep or the next."""
    for number in range(10, 20):
        append(filled, f"S{number}", 1)
    changes = filled.source.changed_since(None, 5)

    append(filled, "S10", 2)
    append(filled, "S19", 2)
    append(filled, "R", 1)

    found, watermark, _ = sweep(filled.source, changes.watermark, 5)
    again, _, _ = sweep(filled.source, watermark, 5)
    for subject, sequence in {"S10": 2, "S19": 2, "R": 1}.items():
        assert max(found.get(subject, 0), again.get(subject, 0)) == sequence


def test_sweep_goes_on_from_a_watermark_that_another_object_gave(filled: Filled) -> None:
    """The refresh leader may be another process, before and after."""
    if filled.reopen is None:
        return
    for number in range(10):
        append(filled, f"S{number}", 1)
    changes = filled.source.changed_since(None, 4)

    rest, _, _ = sweep(filled.reopen(), changes.watermark, 4)

    assert not rest.keys() & dict(changes.subjects).keys()
    assert len(rest) + len(changes.subjects) == 10


@pytest.mark.parametrize(
    "watermark", ["", "null", "7", "{}", '{"version": 99, "after": ["S5"]}', "deadbeef:5", "\x00"]
)
def test_sweep_starts_over_from_a_watermark_it_does_not_know(
    filled: Filled, watermark: str
) -> None:
    """Better to report everything again than to skip something."""
    for number in range(10):
        append(filled, f"S{number}", 1)

    assert len(sweep(filled.source, watermark, 4)[0]) == 10


def test_source_closes_twice(filled: Filled) -> None:
    """Whoever shuts down need not remember."""
    append(filled, "A", 1)
    fetch(filled.source, "A", 0, 1)

    filled.source.close()
    filled.source.close()
