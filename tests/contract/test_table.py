"""Rows, positions and tasks of a table."""

import threading
from collections.abc import Iterator

import pytest

from cape_stream.errors import Corrupt, Fatal
from tests.contract.table_implementations import TableUnderTest

EVERY_BYTE = bytes(range(256))


def _rows(count: int, value: bytes = b"v") -> dict[bytes, bytes | None]:
    return {b"row-%06d" % number: value for number in range(count)}


def test_write_stores_rows_and_position(shelf: TableUnderTest) -> None:
    """What was written is there, what was not is None, in the order of the keys asked for."""
    table = shelf.table

    table.write("flights-3", {b"a": b"1", b"b": b"2"}, 17)

    assert table.get_many("flights-3", [b"b", b"none", b"a", b"b"]) == [b"2", None, b"1", b"2"]
    assert table.position("flights-3") == 17


def test_write_deletes_rows_when_their_value_is_none(shelf: TableUnderTest) -> None:
    """Also rows that are not there, in one step with others."""
    table = shelf.table
    table.write("t", {b"a": b"1", b"b": b"2"}, 1)

    table.write("t", {b"a": None, b"never": None, b"c": b"3"}, 2)

    assert list(table.scan("t", b"")) == [(b"b", b"2"), (b"c", b"3")]
    assert table.position("t") == 2


def test_write_of_no_rows_moves_the_position(shelf: TableUnderTest) -> None:
    """A changelog may hold nothing new for the table, and the position still moves, even back."""
    table = shelf.table

    positions = []
    for position in (0, 5, 3, 2**62):
        table.write("t", {}, position)
        positions.append(table.position("t"))

    assert positions == [0, 5, 3, 2**62]
    assert list(table.scan("t", b"")) == []


def test_unknown_task_is_empty(shelf: TableUnderTest) -> None:
    """A new task has no position, which is not position 0."""
    table = shelf.table
    table.write("known", {b"a": b"1"}, 4)

    assert table.position("unknown") is None
    assert table.get_many("unknown", [b"a"]) == [None]
    assert table.get_many("unknown", []) == []
    assert list(table.scan("unknown", b"")) == []
    table.clear("unknown")


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"\x00",
        b"\x00\x00",
        b"\xff",
        b"\xff\xff\xff",
        EVERY_BYTE,
        b"k" * 1_024,
        "Zürich".encode(),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "value", [b"", b"\x00", EVERY_BYTE * 5_000], ids=["empty", "zero", "large"]
)
def test_rows_are_bytes(shelf: TableUnderTest, key: bytes, value: bytes) -> None:
    """Any key and any value come back as they were; an empty value is not a missing one."""
    table = shelf.table

    table.write("t", {key: value}, 1)

    assert table.get_many("t", [key]) == [value]
    assert list(table.scan("t", b"")) == [(key, value)]
    assert list(table.scan("t", key)) == [(key, value)]


NEIGHBOURS = ["a", "a-1", "a-10", "a-1\x00", "ab", "b", "ä", "a" * 300]
"""Names that begin alike, or that lie next to each other in any order of bytes."""


def test_tasks_are_apart_when_their_names_begin_alike(shelf: TableUnderTest) -> None:
    """Same keys in every task, keys that look like a piece of another task's name, and clear."""
    table = shelf.table
    keys = [b"", b"1", b"-1", b"-10", b"\x00", b"\xff\xff"]
    for number, task in enumerate(NEIGHBOURS):
        table.write(task, {key: task.encode() + b"/" + key for key in keys}, number)

    table.clear("a-1")
    table.write("ab", {b"1": None}, 99)

    for number, task in enumerate(NEIGHBOURS):
        expected = {key: task.encode() + b"/" + key for key in keys}
        position: int | None = number
        if task == "a-1":
            expected, position = {}, None
        if task == "ab":
            del expected[b"1"]
            position = 99
        assert dict(table.scan(task, b"")) == expected
        assert table.get_many(task, keys) == [expected.get(key) for key in keys]
        assert table.position(task) == position


def test_scan_yields_rows_with_the_prefix_in_order_of_bytes(shelf: TableUnderTest) -> None:
    """Ascending, only the prefix, and a prefix of 0xFF has an end, too."""
    table = shelf.table
    keys = [b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\x01", b"\xff\xff"]
    table.write("t", dict.fromkeys(keys, b"v"), 1)
    table.write("u", {b"a": b"other"}, 1)

    found = {
        prefix: [key for key, _ in table.scan("t", prefix)]
        for prefix in (b"", b"a", b"a\xff", b"\xff", b"\xff\xff", b"c")
    }

    assert found == {
        b"": sorted(keys),
        b"a": [b"a", b"a\x00", b"a\xff", b"a\xff\xff"],
        b"a\xff": [b"a\xff", b"a\xff\xff"],
        b"\xff": [b"\xff", b"\xff\x01", b"\xff\xff"],
        b"\xff\xff": [b"\xff\xff"],
        b"c": [],
    }


def test_scan_begins_where_it_is_told_to(shelf: TableUnderTest) -> None:
    """At the first row that is not below it; a start below the prefix changes nothing."""
    table = shelf.table
    table.write("t", dict.fromkeys([b"a1", b"b1", b"b3", b"b3x", b"c1"], b"v"), 1)

    found = {
        start: [key for key, _ in table.scan("t", b"b", start)]
        for start in (b"", b"a", b"b", b"b2", b"b3", b"b4", b"c")
    }

    everything = [b"b1", b"b3", b"b3x"]
    assert found == {
        b"": everything,
        b"a": everything,
        b"b": everything,
        b"b2": [b"b3", b"b3x"],
        b"b3": [b"b3", b"b3x"],
        b"b4": [],
        b"c": [],
    }


def test_scan_yields_every_row_when_there_are_many(shelf: TableUnderTest) -> None:
    """Several times over, as later scans must not depend on what memory held before."""
    table = shelf.table
    table.load("t", [_rows(6_000)])
    table.write("t", {}, 1)
    table.write("u", _rows(3), 1)

    counts = [sum(1 for _ in table.scan("t", b"row-")) for _ in range(5)]

    assert counts == [6_000] * 5


def test_scan_shows_one_moment_when_rows_are_written_meanwhile(shelf: TableUnderTest) -> None:
    """New, changed, deleted and cleared rows do not show in a scan that has begun."""
    table = shelf.table
    table.write("t", _rows(2_000, b"old"), 1)
    scan = table.scan("t", b"row-")
    first = next(scan)

    table.write("t", _rows(2_500, b"new"), 2)
    table.write("t", {b"row-001999": None}, 3)
    table.load("t", [_rows(100, b"newer")])
    table.clear("t")

    assert [first, *scan] == [(key, b"old") for key in _rows(2_000)]
    assert list(table.scan("t", b"")) == []


def test_scans_may_run_side_by_side(shelf: TableUnderTest) -> None:
    """Two at once, one left in the middle."""
    table = shelf.table
    table.write("t", _rows(1_200), 1)

    left = table.scan("t", b"")
    next(left)
    pairs = list(zip(table.scan("t", b""), table.scan("t", b""), strict=True))

    assert len(pairs) == 1_200
    assert all(one == other for one, other in pairs)


def test_load_stores_the_newest_value_of_each_key(shelf: TableUnderTest) -> None:
    """Over rows that are there, over earlier batches, deletes included; the position stays."""
    table = shelf.table
    table.write("t", {b"kept": b"1", b"changed": b"1", b"deleted": b"1"}, 7)
    batches: list[dict[bytes, bytes | None]] = [
        {b"changed": b"2", b"again": b"2", b"gone": b"2"},
        {},
        {b"again": b"3", b"deleted": None, b"gone": None, b"never": None},
    ]

    table.load("t", iter(batches))

    assert dict(table.scan("t", b"")) == {b"kept": b"1", b"changed": b"2", b"again": b"3"}
    assert table.position("t") == 7


def test_load_of_many_rows_is_the_same_as_writing_them(shelf: TableUnderTest) -> None:
    """More rows than any implementation handles in one go, with repeats and deletes."""
    table = shelf.table
    table.load("other", [_rows(10, b"apart")])
    batches = [
        {
            b"row-%06d" % (number * 7_919 % 200_003): None if number % 11 == 0 else b"%d" % number
            for number in range(start, start + 5_000)
        }
        for start in range(0, 230_000, 5_000)
    ]
    expected: dict[bytes, bytes | None] = {}
    for batch in batches:
        expected.update(batch)

    table.load("t", batches)

    assert dict(table.scan("t", b"")) == {k: v for k, v in expected.items() if v is not None}
    assert dict(table.scan("other", b"")) == _rows(10, b"apart")
    sample = list(expected)[::997]
    assert table.get_many("t", sample) == [expected[key] for key in sample]


def test_write_wins_over_an_earlier_load_and_load_over_an_earlier_write(
    shelf: TableUnderTest,
) -> None:
    """Whatever way rows take, the later one counts."""
    table = shelf.table
    many = 20_000
    table.write("t", _rows(many, b"1"), 1)
    table.load("t", [_rows(many - 1, b"2")])
    table.write("t", {b"row-000000": b"3", b"row-000001": None}, 2)

    rows = dict(table.scan("t", b""))

    assert len(rows) == many - 1
    assert rows[b"row-000000"] == b"3"
    assert rows[b"row-000002"] == b"2"
    assert rows[b"row-%06d" % (many - 1)] == b"1"


def test_load_stops_where_its_input_fails(shelf: TableUnderTest) -> None:
    """The reader's error is not dressed up; the position is the old one, the tail is replayed."""
    table = shelf.table
    table.write("t", {b"a": b"1"}, 3)

    def failing() -> Iterator[dict[bytes, bytes | None]]:
        yield {b"a": b"2"}
        raise Corrupt("the changelog begins later")

    with pytest.raises(Corrupt, match="begins later"):
        table.load("t", failing())

    assert table.position("t") == 3


def test_clear_forgets_rows_and_position(shelf: TableUnderTest) -> None:
    """And the task can begin anew at once, by write and by load."""
    table = shelf.table
    table.load("t", [_rows(20_000)])
    table.write("t", {b"x": b"1"}, 9)
    table.write("u", {b"x": b"1"}, 9)

    table.clear("t")
    cleared = (list(table.scan("t", b"")), table.position("t"), table.get_many("t", [b"x"]))
    table.load("t", [_rows(20_000, b"new")])
    table.write("t", {b"y": b"1"}, 1)

    assert cleared == ([], None, [None])
    assert sum(1 for _ in table.scan("t", b"row-")) == 20_000
    assert table.get_many("t", [b"x", b"y", b"row-000000"]) == [None, b"1", b"new"]
    assert list(table.scan("u", b"")) == [(b"x", b"1")]


def test_everything_is_there_when_the_table_is_reopened(shelf: TableUnderTest) -> None:
    """Rows, positions, what was loaded, and what was cleared."""
    for task in ("t", "u", "v"):
        shelf.table.load(task, [_rows(15_000)])
        shelf.table.write(task, {b"x": task.encode()}, 5)
    shelf.table.write("u", {b"x": None}, 6)
    shelf.table.clear("v")

    shelf.reopen()

    table = shelf.table
    assert [table.position(task) for task in ("t", "u", "v")] == [5, 6, None]
    assert table.get_many("t", [b"x", b"row-014999"]) == [b"t", b"v"]
    assert table.get_many("u", [b"x", b"row-014999"]) == [None, b"v"]
    assert list(table.scan("v", b"")) == []


def test_open_is_fatal_when_the_rows_are_in_use(shelf: TableUnderTest) -> None:
    """B11: the second one is refused with the folder's name, the first one is not disturbed."""
    shelf.table.write("t", {b"a": b"1"}, 1)

    with pytest.raises(Fatal) as caught:
        shelf.opened_again()

    assert shelf.folder in caught.value.reason
    shelf.table.write("t", {b"a": b"2"}, 2)
    assert shelf.table.get_many("t", [b"a"]) == [b"2"]


def test_close_frees_the_rows_though_a_scan_is_open(shelf: TableUnderTest) -> None:
    """A task that dies in the middle of a scan must not lock the folder for its successor."""
    shelf.table.write("t", _rows(2_000), 1)
    scan = shelf.table.scan("t", b"")
    next(scan)

    shelf.reopen()

    assert shelf.table.position("t") == 1


@pytest.mark.parametrize("way", ["scan", "get_many"])
def test_damage_is_corrupt_and_never_a_missing_row(shelf: TableUnderTest, way: str) -> None:
    """Rows that cannot be read must not look as if they were not there, whoever asks."""
    keys = list(_rows(50_000))
    shelf.table.load("t", [_rows(50_000, bytes(40))])
    shelf.table.write("t", {}, 5)

    def open_and_ask() -> None:  # it may be noticed when opening or when reading
        shelf.damage("t")
        if way == "scan":
            assert [key for key, _ in shelf.table.scan("t", b"")] == keys
        else:
            assert None not in shelf.table.get_many("t", keys)

    with pytest.raises(Corrupt):
        open_and_ask()


def test_threads_use_tasks_of_their_own_side_by_side(shelf: TableUnderTest) -> None:
    """One restores while others write and scan."""
    table = shelf.table
    failures: list[BaseException] = []

    def use(task: str) -> None:
        try:
            table.load(task, [_rows(12_000, task.encode())])
            for position in range(50):
                table.write(task, {b"p": b"%d" % position}, position)
                assert table.get_many(task, [b"p"]) == [b"%d" % position]
            assert sum(1 for _ in table.scan(task, b"row-")) == 12_000
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(f"task-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert [table.position(f"task-{n}") for n in range(4)] == [49] * 4
