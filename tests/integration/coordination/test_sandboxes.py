"""Sandboxes that are ready before a slot needs them."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from pathlib import Path

import pytest

from cape_stream.coordination.pool import Item
from cape_stream.errors import Fatal
from cape_stream.model.status import FailureClass
from cape_stream.roles.sandboxes import (
    PooledSandbox,
    WarmSandboxes,
    code_stamp,
    open_sandboxes,
    own_folder,
)
from cape_stream.runtime.steady import SteadyClock
from cape_stream.runtime.worker_executors import ChildProcess, SpawnedSandbox
from cape_stream.runtime.worker_handler import Executor, JobOutcome
from cape_stream.runtime.worker_settings import WorkerSettings
from tests.contract.codec_implementations import job
from tests.integration import run_app
from tests.integration.coordination.sandbox_handlers import KEY, Handler, open_pool
from tests.valkey import LocalValkey, World
from tests.waiting import eventually

OpenPool = Callable[..., WarmSandboxes]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short, for it is part of the address of a socket; not there yet."""
    return tmp_path_factory.mktemp("s") / "s"


@pytest.fixture
def open_one(valkey: World, folder: Path) -> Iterator[OpenPool]:
    opened: list[WarmSandboxes] = []

    def open_it(ready: int = 1, url: str = valkey.url) -> WarmSandboxes:
        pool = open_pool(url, folder, valkey.prefix, ready)
        opened.append(pool)
        return pool

    yield open_it
    for pool in opened:
        pool.close()


def wait_ready(pool: WarmSandboxes, count: int = 1) -> None:
    eventually(lambda: pool.pool.look().ready >= count)


def ran(child: ChildProcess, does: str = "answer") -> JobOutcome:
    return child.run(Handler(does), job(), 2**62, SteadyClock())


def lives(pid: int) -> bool:
    """It runs; one that ended and was not waited for does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def test_slot_takes_a_sandbox_that_was_ready_and_another_one_follows(open_one: OpenPool) -> None:
    pool = open_one()
    wait_ready(pool)
    child = ChildProcess(pool.begin)

    (pid,) = ran(child).done

    assert active_children() == [], "it is no child that began now"
    assert list(ran(child).done) == [pid], "the slot keeps it"
    wait_ready(pool)
    child.close()
    eventually(lambda: not lives(pid))
    assert pool.pool.look().out == 0
    assert pool.pool.look().counts["used_up"] == 1


def test_handler_that_brings_its_sandbox_down_loses_its_own_job_alone(open_one: OpenPool) -> None:
    pool = open_one()
    wait_ready(pool)
    child = ChildProcess(pool.begin)

    failed = ran(child, "die")
    assert {each.failure_class for each in failed.failures} == {FailureClass.BUG}
    (error,) = {each.error for each in failed.failures}
    assert error == "the process of the handler ended: it came from the pool"

    wait_ready(pool)
    assert len(ran(child).done) == 1
    child.close()


def test_stop_kills_a_sandbox_whatever_it_does(open_one: OpenPool) -> None:
    pool = open_one()
    wait_ready(pool)
    child = ChildProcess(pool.begin)
    (pid,) = ran(child).done
    outcomes: list[JobOutcome] = []
    running = threading.Thread(target=lambda: outcomes.append(ran(child, "sleep")))
    running.start()

    child.kill()
    running.join()

    assert not lives(int(pid))
    assert outcomes[0].failures
    child.kill()
    child.close()


def test_two_workers_share_what_is_ready_and_none_is_used_twice(open_one: OpenPool) -> None:
    pools = [open_one(ready=4), open_one(ready=4)]
    wait_ready(pools[0], 4)
    children = [ChildProcess(pools[number % 2].begin) for number in range(4)]

    pids = [pid for child in children for pid in ran(child).done]

    assert len(set(pids)) == 4
    assert active_children() == []
    for child in children:
        child.close()


def test_sandboxes_serve_on_when_their_maker_stops(open_one: OpenPool) -> None:
    maker = open_one()
    wait_ready(maker)
    user = open_one()
    child = ChildProcess(user.begin)
    (pid,) = ran(child).done
    wait_ready(maker)

    maker.close()

    assert list(ran(child).done) == [pid]
    child.close()


def test_killed_maker_leaves_nothing_behind(
    open_one: OpenPool, valkey: World, folder: Path
) -> None:
    """Its ready ones end with it, and their entries cost the next one nothing but time."""
    module = "tests.integration.coordination.sandbox_handlers"
    words = [sys.executable, "-m", module, valkey.url, str(folder), valkey.prefix]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "ready\n"
        maker.kill()
    eventually(lambda: [each.name for each in folder.iterdir()] == ["id"])

    pool = open_one()
    child = ChildProcess(pool.begin)
    assert len(ran(child).done) == 1
    child.close()
    wait_ready(pool)


def test_sandbox_whose_taker_died_before_it_came_is_ended(open_one: OpenPool) -> None:
    """B60: handed out and never used; the leader takes it apart when the lease ends."""
    pool = open_one()
    wait_ready(pool)
    taken = pool.pool.take(None)
    assert taken is not None
    pid = int(taken.item.what)
    assert lives(pid)

    pool._destroy(taken.item)

    eventually(lambda: not lives(pid))
    pool._destroy(taken.item)
    pool.look()


def test_sandboxes_outlive_a_flush_of_the_server(
    open_one: OpenPool, valkey_server: LocalValkey
) -> None:
    pool = open_one(url=valkey_server.url)
    wait_ready(pool)
    child = ChildProcess(pool.begin)
    (pid,) = ran(child).done
    wait_ready(pool)
    ready = set(pool._made)

    valkey_server.ask("FLUSHALL")
    pool.look()

    assert list(ran(child).done) == [pid]
    assert pool.pool.look().ready >= 1
    assert ready <= set(pool._made), "made known again, not made anew"
    child.close()


def test_slots_begin_their_own_without_the_server(
    open_one: OpenPool, valkey_server: LocalValkey
) -> None:
    pool = open_one(url=valkey_server.url)
    wait_ready(pool)
    valkey_server.kill()
    child = ChildProcess(pool.begin)

    assert len(ran(child).done) == 1

    assert len(active_children()) == 1
    child.close()


def test_second_user_is_not_let_in(open_one: OpenPool, folder: Path) -> None:
    pool = open_one()
    wait_ready(pool)
    (name,) = [each.name for each in folder.iterdir() if each.is_socket()]
    first = pool.begin()
    assert isinstance(first, PooledSandbox)

    with socket.socket(socket.AF_UNIX) as link, pytest.raises(OSError):
        link.connect(str(folder / name))

    first.kill()
    first.bury()


@pytest.mark.parametrize("name", ["../s", "a/b", ".", "é"])
def test_foreign_entries_lead_out_of_no_folder(open_one: OpenPool, name: str) -> None:
    pool = open_one(ready=0)
    pool.pool.add(Item(name, b""))

    sandbox = pool.begin()

    assert isinstance(sandbox, SpawnedSandbox)
    sandbox.kill()
    sandbox.bury()


def test_folder_must_be_ours_and_closed(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    assert own_folder(ours) == own_folder(ours) != own_folder(tmp_path / "other")
    ours.chmod(0o755)
    with pytest.raises(Fatal, match="closed to others"):
        own_folder(ours)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "other")
    with pytest.raises(Fatal, match="closed to others"):
        own_folder(link)


def test_code_is_told_apart_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stamped_module.py").write_text("x = 1\n")
    __import__("stamped_module")
    before = code_stamp(["stamped_module", "json"])

    assert before == code_stamp(["json", "stamped_module"])
    (tmp_path / "stamped_module.py").write_text("x = 22\n")
    assert code_stamp(["stamped_module", "json"]) != before


def test_none_are_kept_unless_they_are_wanted_and_can_be() -> None:
    wanted = WorkerSettings(queues=("general",), sandboxes_ready=1)

    assert open_sandboxes("shop", WorkerSettings(queues=("g",)), {KEY: Handler()}, {}) is None
    threads = {KEY: Handler(executor=Executor.THREAD)}
    assert open_sandboxes("shop", wanted, threads, {}) is None
    with pytest.raises(Fatal, match="CAPE_VALKEY_URL"):
        open_sandboxes("shop", wanted, {KEY: Handler()}, {})


def test_running_worker_takes_its_sandboxes_from_the_pool(
    tmp_path: Path, valkey_server: LocalValkey
) -> None:
    run_app.fill(tmp_path, subjects=4, events_each=5)
    words = ["run", "tests.integration.run_app:app", "--data", str(tmp_path / "data"), "--quiet"]
    for setting in ("executor=process", "sandboxes_ready=2", "concurrency=2"):
        words += ["--set", f"worker.{setting}"]
    process = run_app.start(tmp_path, *words, environment={"CAPE_VALKEY_URL": valkey_server.url})
    try:
        run_app.wait_for(tmp_path, ["ledger", "audit"], 20, process)
        (counts,) = valkey_server.ask("KEYS", "cape:1:pool:*:counts")
        eventually(lambda: int(valkey_server.ask("HGET", counts, "added") or 0) >= 2)

        code, errors = run_app.end(process)

        assert code == 0, errors
        assert valkey_server.ask("KEYS", "cape:1:pool:*:items") == []
    finally:
        run_app.clean_up()
