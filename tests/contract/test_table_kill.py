"""Kill -9 of a process in the middle of its work with a table."""

import random
from pathlib import Path

from tests.contract.implementations import needs
from tests.contract.kills import lines_until_killed
from tests.contract.table_implementations import TableUnderTest

WRITE = """
task, keys = "t", [b"a", b"b" * 500, b"c"]
position = table.position(task) or 0
while True:
    position += 1
    value = b"%d" % position
    table.write(task, {**dict.fromkeys(keys, value), b"row-%d" % position: value}, position)
    print(position)
"""

LOAD = """
def batches():
    for batch in range(10_000):
        print(batch)
        yield {b"%07d" % (batch * 1_000 + row): b"new" for row in range(1_000)}
table.load("t", batches())
"""

CLEAR = """
rows = {b"%06d" % row: b"v" for row in range(3_000)}
while True:
    table.write("t", rows, 3_000)
    table.clear("t")
    print("cleared")
"""


@needs("processes")
def test_rows_and_position_agree_when_the_writer_is_killed(
    shelf: TableUnderTest, tmp_path: Path
) -> None:
    """Every finished write is there, and the one under way is there in full or not at all."""
    program, chance = shelf.open_command() + WRITE, random.Random(2)
    acknowledged = 0
    for _ in range(4):
        shelf.table.close()
        lines = lines_until_killed(program, tmp_path / "report", chance)
        shelf.reopen()

        position = shelf.table.position("t")

        assert position is not None
        assert int(lines[-1]) <= position <= int(lines[-1]) + 1
        assert position > acknowledged
        keys = [b"a", b"b" * 500, b"c", b"row-%d" % position]
        assert shelf.table.get_many("t", keys) == [b"%d" % position] * 4
        assert sum(1 for _ in shelf.table.scan("t", b"row-")) == position
        acknowledged = int(lines[-1])


@needs("processes")
def test_position_is_the_old_one_when_a_load_is_killed(
    shelf: TableUnderTest, tmp_path: Path
) -> None:
    """So the tail is replayed, and replaying it ends in the same rows as an undisturbed load."""
    program, chance = shelf.open_command() + LOAD, random.Random(3)
    for _ in range(3):
        shelf.table.clear("t")
        shelf.table.write("t", {b"0000001": b"old"}, 5)
        shelf.table.close()

        lines_until_killed(program, tmp_path / "report", chance)
        shelf.reopen()
        values = {value for _, value in shelf.table.scan("t", b"")}
        position = shelf.table.position("t")
        shelf.table.load("t", [{b"%07d" % row: b"newer" for row in range(30_000)}])
        shelf.table.write("t", {}, 9)

        assert position == 5
        assert values <= {b"old", b"new"}
        assert {v for k, v in shelf.table.scan("t", b"") if k < b"0030000"} == {b"newer"}


@needs("processes")
def test_task_is_there_or_gone_when_a_clear_is_killed(
    shelf: TableUnderTest, tmp_path: Path
) -> None:
    """Never rows without a position, for those nobody would replay over or wipe."""
    shelf.table.close()
    lines_until_killed(shelf.open_command() + CLEAR, tmp_path / "report", random.Random(1))
    shelf.reopen()

    rows = sum(1 for _ in shelf.table.scan("t", b""))

    assert (rows, shelf.table.position("t")) in {(0, None), (3_000, 3_000)}
