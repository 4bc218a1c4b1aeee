from pathlib import Path

from rocksdict import Rdict

from cape_stream.adapters.rocksdb import RocksTable
from cape_stream.adapters.rocksdb.store import open_store

BUDGET_BYTES = 16 << 20


def _block_cache_bytes(store: Rdict) -> int:
    return store.property_int_value("rocksdb.block-cache-capacity") or 0


def test_one_budget_holds_cache_and_write_buffers(tmp_path: Path) -> None:
    store = open_store(tmp_path, BUDGET_BYTES)

    capacity = _block_cache_bytes(store)

    assert capacity == BUDGET_BYTES
    store.close()


def test_budget_holds_whatever_the_number_of_tasks(tmp_path: Path) -> None:
    table = RocksTable(tmp_path, memory_budget_bytes=BUDGET_BYTES)
    store = table._store

    for number in range(64):
        rows = {b"%06d" % key: bytes(200) for key in range(2_000)}
        table.write(f"task-{number}", {**rows}, number)
        sum(1 for _ in table.scan(f"task-{number}", b""))

    memtables = store.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
    cached = store.property_int_value("rocksdb.block-cache-usage") or 0
    assert memtables <= BUDGET_BYTES
    assert cached <= BUDGET_BYTES * 1.1
    assert _block_cache_bytes(store) == BUDGET_BYTES
    table.close()
