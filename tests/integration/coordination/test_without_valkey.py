"""Losing the server costs speed, never an event: flushed, frozen, killed and absent."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cape_stream.coordination.locks import Locks
from tests.integration import run_app
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalValkey, World

APP = "tests.integration.coordination.coordinated_app:app"
SUBJECTS, EVENTS = 20, 10


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    run_app.clean_up()


def deliver(folder: Path, url: str, *troubles: Callable[[], None]) -> None:
    """Run the App; after each trouble new events come, which must all arrive, in order."""
    run_app.fill(folder, SUBJECTS, EVENTS)
    words = ("run", APP, "--data", str(folder / "data"), "--concurrency", "4", "--quiet")
    process = run_app.start(folder, *words, environment={"COORDINATED_APP_URL": url})
    run_app.wait_for(folder, ["ledger"], SUBJECTS * EVENTS, process)
    for number, trouble in enumerate(troubles, 1):
        trouble()
        run_app.fill(folder, SUBJECTS, EVENTS, first=EVENTS * number)
        run_app.wait_for(folder, ["ledger"], SUBJECTS * EVENTS * (number + 1), process)
    code, errors = run_app.end(process)

    assert code == 0, errors
    found = run_app.delivered(folder, "ledger")
    expected = set(range(EVENTS * (len(troubles) + 1)))
    assert {subject: run_app.jumps(each) for subject, each in found.items()} == {
        f"order-{number}": [] for number in range(SUBJECTS)
    }
    assert all(set(each) == expected for each in found.values())


@pytest.mark.timeout(120)
def test_flushes_at_any_moment_lose_no_event(tmp_path: Path, valkey_server: LocalValkey) -> None:
    is_over = threading.Event()
    flushes = 0

    def flush() -> None:
        nonlocal flushes
        while not is_over.wait(0.01):
            valkey_server.ask("FLUSHALL")
            valkey_server.ask("SCRIPT", "FLUSH")
            flushes += 1

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        deliver(tmp_path, valkey_server.url, lambda: None)
    finally:
        is_over.set()
        flusher.join()
    assert flushes > 1


@pytest.mark.timeout(120)
def test_outages_lose_no_event(tmp_path: Path, valkey_server: LocalValkey) -> None:
    def kill() -> None:
        valkey_server.thaw()
        valkey_server.kill()

    deliver(tmp_path, valkey_server.url, valkey_server.freeze, kill, valkey_server.start)


@pytest.mark.timeout(120)
def test_absence_loses_no_event(tmp_path: Path) -> None:
    deliver(tmp_path, "valkey://127.0.0.1:1/0")


@pytest.mark.parametrize("step_s", [7_200, -10_800])
def test_steps_of_our_wall_clock_change_no_lease(
    open_store: OpenStore, valkey: World, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    locks, others = Locks(open_store()), Locks(open_store())
    lease = locks.acquire("job", ttl_ms=60_000)
    assert lease is not None
    now_s = time.time

    monkeypatch.setattr(time, "time", lambda: now_s() + step_s)

    assert 30_000 < lease.remaining_ms() <= 60_000
    assert others.acquire("job") is None
    assert lease.release()
    again = others.acquire("job")
    assert again is not None
    assert again.fence > lease.fence
    locks.close()
    others.close()
