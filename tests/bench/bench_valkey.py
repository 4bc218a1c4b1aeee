"""What coordination costs: round trips and microseconds per operation, beside others on one server.

    make bench-valkey ARGS='--rounds 3000 --processes 8'

The server is our own, on this machine, so the round trips are as short as they get. Ours and
redis-py's own lock run here; python-redis-lock, cashews and aiocache run in their interpreter,
against the same server. Each figure is a mean over one thread; rounds of ours and redis-py's lock
alternate in blocks, so that a busy machine slows both. The last line is one JSON object.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from cape_stream.coordination.cache import Cache, CacheSettings
from cape_stream.coordination.codecs import JsonCodec
from cape_stream.coordination.limits import Limits, LimitSettings
from cape_stream.coordination.listener import Listener
from cape_stream.coordination.locks import Locks
from cape_stream.coordination.pool import Item, PoolSettings, WarmPool
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from cape_stream.runtime.steady import SteadyClock
from cape_stream.runtime.worker_executors import ChildProcess, Sandbox, SpawnedSandbox
from tests.bench.valkey_peers import CALLERS, LOAD_S
from tests.contract.codec_implementations import job
from tests.integration.coordination.sandbox_handlers import Handler, open_pool
from tests.valkey import LocalValkey

BLOCKS = 6
SANDBOX_ROUNDS = 7
PEERS = Path(".venv/bench/bin/python")
WORKERS = "tests/bench/valkey_peers.py"


def timed(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Seconds of so many rounds, and processor seconds of this process."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        work()
    return time.perf_counter() - began_s, time.process_time() - began_cpu_s


def alternating(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Microseconds a round of each, and processor microseconds, measured in turns."""
    spent = {name: [0.0, 0.0] for name in works}
    for work in works.values():
        timed(work, rounds // 10)
    for _ in range(BLOCKS):
        for name, work in works.items():
            for kind, seconds in enumerate(timed(work, rounds // BLOCKS)):
                spent[name][kind] += seconds
    counted = rounds // BLOCKS * BLOCKS
    found = {}
    for name, (wall_s, cpu_s) in spent.items():
        found[f"{name}_us"] = round(wall_s * 1e6 / counted, 2)
        found[f"{name}_cpu_us"] = round(cpu_s * 1e6 / counted, 2)
    return found


class Ours:
    """Our services on one server."""

    def __init__(self, server: LocalValkey) -> None:
        self.store = Store(ValkeySettings(url=server.url, prefix="bench", call_timeout_ms=5_000))
        self.listener = Listener(self.store)
        self.locks = Locks(self.store)
        self.limits = Limits(self.store, LimitSettings(start=50))
        self.pool = WarmPool(self.store, "sandboxes", PoolSettings(most=100_000))
        settings = CacheSettings("users", 1, 600_000)
        self.near: Cache[Any] = Cache(self.store, settings, JsonCodec(), self.listener)
        self.remote: Cache[Any] = Cache(self.store, settings, JsonCodec())
        while self.listener.staleness_ms() > 1_000:
            time.sleep(0.01)

    def lock(self) -> None:
        lease = self.locks.acquire("bench")
        assert lease is not None
        lease.release()

    def near_hit(self) -> None:
        self.near.get("u1", lambda: {"name": "Ann"}, ("team:1",))

    def remote_hit(self) -> None:
        self.remote.get("u1", lambda: {"name": "Ann"}, ("team:1",))

    def limit(self) -> None:
        with self.limits("ses"):
            pass

    def warm_pop(self) -> None:
        taken = self.pool.take(None)
        assert taken is not None
        taken.give_back()

    def invalidate(self) -> None:
        self.remote.invalidate("team:other")

    def round_trips(self, work: Callable[[], object]) -> float:
        """Calls of one round, when everything is warm."""
        work()
        before = self.store.figures["valkey_calls"]
        for _ in range(10):
            work()
        return (self.store.figures["valkey_calls"] - before) / 10

    def close(self) -> None:
        self.locks.close()
        self.listener.close()
        self.store.close()


def stampede_here(port: int) -> None:
    """One of several processes: callers of one cold key, once the parent says so."""
    url = f"valkey://127.0.0.1:{port}/0"
    store = Store(ValkeySettings(url=url, prefix="bench", call_timeout_ms=20_000))
    cache = Cache(store, CacheSettings("hot", 1, 60_000), JsonCodec())
    loads: list[int] = []

    def load() -> str:
        loads.append(1)
        time.sleep(LOAD_S)
        return "value"

    threads = [threading.Thread(target=cache.get, args=("k", load)) for _ in range(CALLERS)]
    store.command("PING")
    print("ready", flush=True)
    sys.stdin.readline()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(loads), flush=True)


def stampede(command: list[str], processes: int) -> int:
    """Let so many processes loose on one cold key at once; how often it was computed."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    herd = [subprocess.Popen(command, **pipes) for _ in range(processes)]
    for one in herd:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in herd:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    return sum(int(one.communicate()[0].split()[-1]) for one in herd)


def ours(server: LocalValkey, rounds: int) -> dict[str, float]:
    """Figures of ours, and of redis-py's lock."""
    services = Ours(server)
    client = import_module("redis").Redis(port=server.port, protocol=2)

    def redis_py_lock() -> None:
        with client.lock("bench-redis-py", timeout=10):
            pass

    services.pool.add(Item("s1", b""))
    works: dict[str, Callable[[], object]] = {
        "lock": services.lock,
        "redis_py_lock": redis_py_lock,
        "remote_hit": services.remote_hit,
        "limit": services.limit,
        "warm_pop": services.warm_pop,
        "invalidate": services.invalidate,
    }
    services.near_hit()
    found = alternating(works, rounds)
    found |= alternating({"near_hit": services.near_hit}, rounds * 100)
    for name in ("lock", "remote_hit", "limit", "warm_pop", "invalidate", "near_hit"):
        found[f"{name}_round_trips"] = services.round_trips(getattr(services, name))
    client.close()
    services.close()
    return found


def sandboxes(server: LocalValkey) -> dict[str, float]:
    """Milliseconds until a slot has its first answer, from a ready process and from a new one."""
    handler, one, clock = Handler(), job(), SteadyClock()
    found = {}
    with TemporaryDirectory(prefix="cape-") as folder:
        pool = open_pool(server.url, Path(folder) / "s", "bench")
        begins: dict[str, Callable[[], Sandbox]] = {"ready": pool.begin, "new": SpawnedSandbox}
        for name, begin in begins.items():
            spent = []
            for _ in range(SANDBOX_ROUNDS):
                while pool.pool.look().ready < 1:
                    time.sleep(0.05)
                child = ChildProcess(begin)
                began_s = time.perf_counter()
                child.run(handler, one, 2**62, clock)
                spent.append((time.perf_counter() - began_s) * 1e3)
                child.close()
            found[f"sandbox_{name}_ms"] = round(median(spent), 1)
        pool.close()
    return found


@contextmanager
def local_server() -> Iterator[LocalValkey]:
    """A server of our own."""
    server = LocalValkey()
    try:
        yield server
    finally:
        server.close()


def peers(server: LocalValkey, python: Path, rounds: int, processes: int) -> dict[str, Any]:
    """Figures of the others; empty with a word on the way out where they are not installed."""
    if not python.exists():
        print(f"peers left out: {python} is not there; `make bench-valkey` installs them")
        return {}
    command = [str(python), WORKERS, str(server.port)]
    done = subprocess.run([*command, str(rounds)], capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for name in ("cashews", "aiocache"):
        herd = [*command, "stampede", name]
        figures[f"{name}_loads_per_stampede"] = stampede(herd, processes)
    return figures


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3_000, help="of each operation")
    parser.add_argument("--processes", type=int, default=8, help="that stampede")
    parser.add_argument("--peers", type=Path, default=PEERS, help="interpreter of the peers")
    parser.add_argument("--stampede-on", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stampede_on:
        stampede_here(options.stampede_on)
        return
    with local_server() as server:
        found: dict[str, Any] = dict(ours(server, options.rounds))
        herd = [sys.executable, "-m", "tests.bench.bench_valkey", "--stampede-on", str(server.port)]
        found |= sandboxes(server)
        found["loads_per_stampede"] = stampede(herd, options.processes)
        found |= peers(server, options.peers, options.rounds, options.processes)
    for name, value in found.items():
        print(f"{name:<32}{value:>10}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
