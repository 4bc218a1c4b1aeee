import pytest

from cape_stream.adapters.simulated import Disk, MemoryTable, SimProcess, Timeline
from cape_stream.errors import Corrupt, Fatal


def test_table_refuses_a_disk_in_use_until_its_holder_died() -> None:
    timeline, disk = Timeline(), Disk("state-1")
    process = SimProcess(timeline, "a")
    first = MemoryTable(disk, process)
    first.write("t-0", {b"k": b"v"}, 5)

    with pytest.raises(Fatal, match="state-1"):
        MemoryTable(disk)
    process.kill()

    assert MemoryTable(disk).get_many("t-0", [b"k", b"x"]) == [b"v", None]


def test_table_shows_an_old_copy_after_it_was_put_back() -> None:
    disk = Disk()
    table = MemoryTable(disk)
    table.write("t-0", {b"k": b"old"}, 1)
    copy = disk.copy()
    table.write("t-0", {b"k": b"new", b"l": b"new"}, 2)

    disk.put_back(copy)

    assert list(table.scan("t-0", b"")) == [(b"k", b"old")]
    assert table.position("t-0") == 1


def test_table_knows_nothing_after_its_disk_was_lost() -> None:
    disk = Disk()
    table = MemoryTable(disk)
    table.write("t-0", {b"k": b"v"}, 1)

    disk.lose()

    assert table.position("t-0") is None


def test_table_is_corrupt_when_damaged_until_it_is_cleared() -> None:
    disk = Disk()
    table = MemoryTable(disk)
    disk.damage("t-0")

    with pytest.raises(Corrupt):
        table.get_many("t-0", [b"k"])
    with pytest.raises(Corrupt):
        table.write("t-0", {}, 1)
    table.clear("t-0")

    assert table.position("t-0") is None


def test_table_keeps_the_old_position_when_killed_during_a_load() -> None:
    with Timeline() as timeline:
        disk, process = Disk(), SimProcess(timeline, "a")

        def loop() -> None:
            table = MemoryTable(disk, process)
            table.write("t-0", {b"a": b"1"}, 1)
            process.kill_after(2)
            table.load("t-0", [{b"a": None, b"b": b"2"}, {b"c": b"3"}])

        process.start(loop)
        timeline.run_until(timeline.now_ms)

        survivor = MemoryTable(disk)
        assert list(survivor.scan("t-0", b"")) == [(b"b", b"2")]
        assert survivor.position("t-0") == 1
