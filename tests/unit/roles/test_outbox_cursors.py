"""How far an outbox may be pruned, by the rows of a changelog."""

from pathlib import Path

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.embedded import EmbeddedLog
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.errors import Corrupt, Reject
from cape_stream.model.active_row import ActiveRow, LambdaRow
from cape_stream.model.cursor import CursorInfo
from cape_stream.roles.outbox_cursors import slowest, slowest_cursors, wanted_of
from cape_stream.roles.topics import topic_specs
from cape_stream.runtime.active_rows import encode_active_row
from cape_stream.sdk.app import App
from cape_stream.sdk.batch import Batch

CODEC = AvroCodec()


def take(batch: Batch) -> None:
    """A handler that is never called."""


def new_app() -> App:
    app = App("boxes", partitions=1)
    domain = app.domain("orders", source=MemoryEventSource())
    domain.topology("new", formerly=["old"]).handler()(take)
    domain.topology("other").handler()(take)
    return app


@pytest.mark.parametrize(
    ("cursors", "expected"),
    [
        ({"new": 7, "other": 5}, 5),
        ({"old": 3, "other": 5}, 3),  # not renamed in this row yet
        ({"new": 7, "old": 3, "other": 9}, 7),  # the old name is history
        ({"other": 5}, -1),  # has yet to begin
        ({}, -1),
        ({"new": 7, "other": 5, "of-a-newer-release": 2}, 2),
        ({"new": 7, "other": 5, "retired": 2}, 5),
        ({"new": -1, "other": 5}, -1),
    ],
)
def test_slowest_is_the_lowest_cursor_that_counts(cursors: dict[str, int], expected: int) -> None:
    wanted = wanted_of(new_app(), "orders", retired=["retired"])

    assert slowest(cursors, wanted) == expected


def cursors_of(tmp_path: Path, *rows: tuple[bytes, bytes | None]) -> dict[str, int]:
    """What is found when these rows are written, one after the other."""
    app, log = new_app(), EmbeddedLog(tmp_path / "log")
    log.create_topics(topic_specs(app))
    producer = log.producer()
    for key, value in rows:
        assert producer.send(app.topic_names.changelog("orders"), 0, key, value)
    assert producer.flush(5_000)
    producer.close()
    try:
        return slowest_cursors(log, CODEC, app, "orders", ())
    finally:
        log.close()


def info(subject: str, new: int, other: int) -> tuple[bytes, bytes]:
    row = CursorInfo(subject, 9, {"new": new, "other": other})
    return b"c" + subject.encode(), CODEC.encode_cursors(row)


def full(prefix: bytes, subject: str, *lambdas: tuple[str, str, int]) -> tuple[bytes, bytes]:
    row = ActiveRow(subject, 9, 0, [LambdaRow(*each) for each in lambdas])
    return prefix + subject.encode(), encode_active_row(row)


def test_newest_row_of_a_subject_counts_be_it_lower(tmp_path: Path) -> None:
    """A rewind puts a cursor back; of what it wants again nothing may go."""
    found = cursors_of(tmp_path, info("A", 5, 6), info("B", 1, 1), info("A", 2, 6))

    assert found == {"A": 2, "B": 1}


@pytest.mark.parametrize("prefix", [b"a", b"p"])
def test_full_row_counts_by_its_slowest_lambda_until_it_ends(tmp_path: Path, prefix: bytes) -> None:
    row = full(prefix, "A", ("new", "parse", 8), ("new", "store", 4), ("other", "x", 9))

    assert cursors_of(tmp_path / "1", info("A", 7, 9), row) == {"A": 4}
    assert cursors_of(tmp_path / "2", info("A", 7, 9), row, (row[0], None)) == {"A": 7}


def test_other_rows_of_the_changelog_are_none_of_a_subject(tmp_path: Path) -> None:
    others = [(b"\x00meta", b"{}"), (b"a", b'{"paused": []}'), (b"d\x00\x01A", b"")]

    assert cursors_of(tmp_path, *others, info("A", 3, 3)) == {"A": 3}


def test_row_that_does_not_decode_ends_the_round(tmp_path: Path) -> None:
    """Nothing is pruned by a changelog that cannot be read as a whole."""
    with pytest.raises(Reject):
        cursors_of(tmp_path / "1", (b"cA", b"rubbish"))
    with pytest.raises(Corrupt):
        cursors_of(tmp_path / "2", (b"aA", b"rubbish"))
    with pytest.raises(Corrupt, match="about"):
        cursors_of(tmp_path / "3", (b"cB", info("A", 3, 3)[1]))
