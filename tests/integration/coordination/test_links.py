"""Connections for calls: how commands are written, and what a fork leaves alone."""

import multiprocessing

import pytest
from redis.connection import Connection

from cape_stream.coordination.links import packed
from cape_stream.coordination.locks import Locks
from cape_stream.coordination.scripts import Argument
from cape_stream.coordination.store import Store
from tests.integration.coordination.conftest import OpenStore


@pytest.mark.parametrize(
    "words",
    [
        ("PING",),
        ("SET", "käy", b"\x00\r\n\xff", 12),
        ("EVALSHA", "0" * 40, 1, "k", "", b"", -5),
        ("SET", "big", bytes(100_000)),
    ],
)
def test_command_is_written_as_the_client_writes_it(words: tuple[Argument, ...]) -> None:
    assert packed(words) == b"".join(Connection().pack_command(*words))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # what users may do
def test_forked_process_uses_connections_of_its_own(open_store: OpenStore) -> None:
    """Also when the parent had all of them out at the moment of the fork."""
    store = open_store(connections_max=1)
    locks = Locks(store)
    lease = locks.acquire("ours")
    assert lease is not None
    child = multiprocessing.get_context("fork").Process(target=_take_another, args=(store,))

    child.start()
    child.join()

    assert child.exitcode == 0
    assert lease.release()
    locks.close()


def _take_another(store: Store) -> None:
    other = Locks(store)
    assert other.acquire("ours") is None
    lease = other.acquire("another")
    assert lease is not None
    assert lease.release()
