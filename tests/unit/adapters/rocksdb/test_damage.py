import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cape_stream.adapters.rocksdb import RocksTable, wipe_table
from cape_stream.errors import Corrupt, Fatal

HOLD = """
import sys, time
from cape_stream.adapters.rocksdb import RocksTable
table = RocksTable(sys.argv[1])
print("open", flush=True)
time.sleep(60)
"""


def _filled(path: Path, rows: int = 20_000) -> list[bytes]:
    """A closed store, and its keys."""
    keys = [b"row-%06d" % number for number in range(rows)]
    table = RocksTable(path)
    table.load("t", [dict.fromkeys(keys, bytes(range(60)))])
    table.write("t", {}, 7)
    table.close()
    return keys


def _flip(file: Path) -> None:
    """Spoil one block in the middle."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = b"\xa5" * 64
    file.write_bytes(content)


def test_scan_is_corrupt_at_a_damaged_block_instead_of_ending_early(tmp_path: Path) -> None:
    keys = _filled(tmp_path)
    _flip(max(tmp_path.glob("*.sst"), key=lambda file: file.stat().st_size))
    table = RocksTable(tmp_path)
    seen: list[bytes] = []

    with pytest.raises(Corrupt, match="damaged"):
        seen.extend(key for key, _ in table.scan("t", b""))

    assert table.position("t") == 7
    with pytest.raises(Corrupt, match=str(tmp_path)):
        table.get_many("t", keys)
    table.close()


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_open_is_corrupt_when_a_file_is_gone(tmp_path: Path, pattern: str) -> None:
    _filled(tmp_path)
    for file in tmp_path.glob(pattern):
        file.unlink()

    with pytest.raises(Corrupt) as caught:
        RocksTable(tmp_path)

    assert str(tmp_path) in caught.value.reason


@pytest.mark.parametrize("pattern", ["*.sst", "CURRENT"])
def test_open_is_corrupt_when_a_file_is_cut(tmp_path: Path, pattern: str) -> None:
    _filled(tmp_path)
    for file in tmp_path.glob(pattern):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 3])

    with pytest.raises(Corrupt):
        RocksTable(tmp_path)


@pytest.mark.parametrize("kept_percent", [10, 30, 50, 70, 90])
def test_cut_manifest_is_corrupt_or_an_older_state_but_never_a_position_without_its_rows(
    tmp_path: Path, kept_percent: int
) -> None:
    _filled(tmp_path)
    for file in tmp_path.glob("MANIFEST-*"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size * kept_percent // 100])

    try:
        table = RocksTable(tmp_path)
    except Corrupt:
        return
    rows, position = sum(1 for _ in table.scan("t", b"")), table.position("t")
    table.close()

    assert (rows, position) in {(0, None), (20_000, None), (20_000, 7)}


def test_wiped_table_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "state"
    _filled(path)
    (path / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(Corrupt):
        RocksTable(path)

    wipe_table(path)
    table = RocksTable(path)

    assert table.position("t") is None
    table.write("t", {b"a": b"1"}, 1)
    table.close()
    wipe_table(path)
    wipe_table(path)


def test_open_is_fatal_while_another_process_lives_and_works_once_it_is_killed(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"

        with pytest.raises(Fatal, match="in use") as caught:
            RocksTable(tmp_path)
        other.kill()
        other.wait()

    assert str(tmp_path) in caught.value.reason
    RocksTable(tmp_path).close()


def test_open_is_fatal_when_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(Fatal, match="state folder"):
        RocksTable(tmp_path / "file" / "state")


def test_open_is_fatal_when_the_budget_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="1048576"):
        RocksTable(tmp_path, memory_budget_bytes=1 << 20)


def test_use_after_close_is_fatal(tmp_path: Path) -> None:
    table = RocksTable(tmp_path)
    table.write("t", dict.fromkeys([b"%d" % n for n in range(2_000)], b"v"), 1)
    scan = table.scan("t", b"")
    next(scan)
    table.close()
    table.close()

    for use in (
        lambda: table.position("t"),
        lambda: table.get_many("t", [b"1"]),
        lambda: table.write("t", {}, 2),
        lambda: table.load("t", [{b"a": b"1"}]),
        lambda: list(table.scan("t", b"")),
        lambda: table.clear("t"),
        lambda: list(scan),
    ):
        with pytest.raises(Fatal, match="closed"):
            use()


def test_open_removes_what_a_killed_load_left(tmp_path: Path) -> None:
    RocksTable(tmp_path).close()
    (tmp_path / "incoming" / "3.sst").write_bytes(b"half a file")

    table = RocksTable(tmp_path)
    table.load("t", [{b"%06d" % number: b"v" for number in range(20_000)}])

    assert sum(1 for _ in table.scan("t", b"")) == 20_000
    assert list((tmp_path / "incoming").iterdir()) == []
    table.close()


def test_copy_of_a_closed_store_is_a_store(tmp_path: Path) -> None:
    keys = _filled(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")

    table = RocksTable(tmp_path / "two")

    assert None not in table.get_many("t", keys)
    table.close()
