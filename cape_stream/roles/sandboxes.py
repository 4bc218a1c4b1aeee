"""Child processes that are ready before a slot of a worker needs them, shared on one machine.

A process takes some tenths of a second to begin, and more until it has imported the handlers;
after a crash of a handler, or in a burst, a slot waits for that. So one of the workers of an App,
the one that leads, keeps some ready. Which are ready, and who has which, is in a warm pool on
Valkey; what holds is the socket of the process, which lets one user in and no second. So a pool
that was flushed, or remembers what has gone, costs a slot only time.

Workers share a pool only if they run the same code and see the same folder of sockets, which is
closed to other users of the machine.
"""

import hashlib
import logging
import os
import pickle
import secrets
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cape_stream.errors import CapeError, Fatal, Fenced, Retry
from cape_stream.roles.sandbox_process import READY
from cape_stream.roles.valkey import URL_VARIABLE, open_store
from cape_stream.runtime.worker_executors import Sandbox, SpawnedSandbox
from cape_stream.runtime.worker_handler import Executor, HandlerKey, JobHandler
from cape_stream.runtime.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from cape_stream.coordination.pool import Item, Taken

MODULE = "cape_stream.roles.sandbox_process"
LEASE_MS = 60_000
LOOK_S = 10.0
"""How often what is out is renewed, and what is ready is made known again."""
REFILL_S = 5
PER_SLOT_MOST = 4
"""Of all sandboxes of a machine, ready and in use, for each slot of one worker."""
STALE_MAX = 20
"""Entries of processes that have gone which one slot may meet before it begins its own."""
MAKE_S = 60.0
LOOK_SLICE_S = 0.2
HELLO_S = 5.0
PEER = struct.Struct("3i")
"""Process, user and group of who is at the other end, as the kernel tells it."""
END_S = 5.0

logger = logging.getLogger(__name__)


class PooledSandbox:
    """Implements `Sandbox`: a process that was ready.

    Args:
        taken: its entry in the pool.
        pipe: to it.
        pid: of it; it is alive.
        over: called when it has ended.
    """

    def __init__(
        self, taken: "Taken", pipe: Connection, pid: int, over: Callable[["PooledSandbox"], None]
    ) -> None:
        self.taken = taken
        self.pid = pid
        self._pipe = pipe
        self._handle = os.pidfd_open(pid)
        self._over = over
        self._lock = threading.Lock()
        self._is_buried = False

    @property
    def pipe(self) -> Connection:
        """See `Sandbox.pipe`."""
        return self._pipe

    def kill(self) -> None:
        """See `Sandbox.kill`."""
        with self._lock, suppress(ProcessLookupError):
            if not self._is_buried:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def bury(self) -> str:
        """See `Sandbox.bury`."""
        self._pipe.close()
        has_ended = wait([self._handle], END_S)
        with self._lock:
            self._is_buried = True
            os.close(self._handle)
        self._over(self)
        return "it came from the pool" if has_ended else "it came from the pool and has not ended"


class _Made:
    """A process that we made, and that waits for its user.

    Args:
        path: of its socket.
        handlers: pickled; whoever loads them has imported all they need.
        stopping: ends the wait for it.

    Raises:
        Retry: it is not ready in time; it has been ended.
        Fenced: the same, because we stop.
    """

    def __init__(self, path: Path, handlers: bytes, stopping: threading.Event) -> None:
        self.path = path
        hears, tells = Pipe(duplex=False)
        code = f"import sys; sys.path[:] = {sys.path!r}; from {MODULE} import main; main()"
        words = [sys.executable, "-c", code, str(path), str(tells.fileno())]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, pass_fds=[tells.fileno()], start_new_session=True
        )
        tells.close()
        preparation = spawn.get_preparation_data("cape-sandbox")
        preparation["authkey"] = bytes(preparation["authkey"])
        with hears, suppress(BrokenPipeError):
            self._stdin.write(pickle.dumps((preparation, handlers)))
            self._stdin.flush()
            give_up_s = time.monotonic() + MAKE_S
            while not wait([hears], LOOK_SLICE_S):
                if stopping.is_set() or time.monotonic() > give_up_s:
                    break
            else:
                if os.read(hears.fileno(), len(READY)) == READY:
                    return
        self.process.kill()
        with suppress(BrokenPipeError):
            self._stdin.close()
        exit_code = self.process.wait()
        if stopping.is_set():
            raise Fenced("the worker stops and makes no more sandboxes")
        raise Retry(f"a sandbox was not ready in time; it ended with code {exit_code}")

    @property
    def is_idle(self) -> bool:
        """Nobody has connected to it, and it is there."""
        return self.process.poll() is None and self.path.exists()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None, "it was asked for"
        return self.process.stdin

    def retire(self) -> None:
        """Let it end if it has no user; one that has serves on."""
        with suppress(BrokenPipeError):
            self._stdin.close()


class WarmSandboxes:
    """The sandboxes of one worker: takes what is ready, and keeps some ready while it leads.

    Args:
        app: the App's name.
        settings: how many.
        handlers: those that run in child processes; they can be pickled.
        url: of the Valkey.
        folder: of the sockets.
        code: names what the processes run; see `code_stamp`.

    Raises:
        Fatal: the URL cannot be understood, its client is not installed, or the folder is not ours.
    """

    def __init__(
        self,
        app: str,
        settings: WorkerSettings,
        handlers: Mapping[HandlerKey, JobHandler],
        url: str,
        folder: Path,
        code: str,
    ) -> None:
        self._store = open_store(url)
        from cape_stream.coordination.leader import Candidate
        from cape_stream.coordination.locks import Locks
        from cape_stream.coordination.pool import PoolSettings, Refiller, WarmPool

        self._folder = folder
        self._handlers = pickle.dumps(dict(handlers))
        name = f"sandboxes {app} {own_folder(folder)} {code}"
        ready = settings.sandboxes_ready
        most = max(ready, PER_SLOT_MOST * settings.concurrency)
        self.pool = WarmPool(self._store, name, PoolSettings(ready, most, LEASE_MS, REFILL_S))
        self._lock = threading.Lock()
        self._made: dict[str, _Made] = {}
        self._in_use: set[PooledSandbox] = set()
        self._stopping = threading.Event()
        self._locks = Locks(self._store)
        self._candidate = Candidate(
            self._locks, f"refill {name}", Refiller(self.pool, self._make, self._destroy)
        )
        self._thread = threading.Thread(target=self._run, name="cape-sandboxes", daemon=True)
        self._candidate.start()
        self._thread.start()

    def begin(self) -> Sandbox:
        """One that is ready, else a new one."""
        for _ in range(STALE_MAX):
            try:
                taken = self.pool.take(_cold)
            except CapeError as error:
                logger.warning("a sandbox is begun, for the pool cannot be used: %s", error)
                break
            if taken is None or taken.is_cold:
                break
            found = self._connected(taken)
            if found is not None:
                return found
            self._used_up(taken)
        return SpawnedSandbox()

    def close(self) -> None:
        """Let those end that nobody uses; those of other workers serve on."""
        self._stopping.set()
        self._candidate.close()
        self._thread.join()
        self._locks.close()
        for name, made in self._made.items():
            was_idle = made.is_idle
            made.retire()
            if was_idle:
                with suppress(subprocess.TimeoutExpired, CapeError):
                    made.process.wait(END_S)
                    self.pool.bury(name)
        self._store.close()

    def _connected(self, taken: "Taken") -> PooledSandbox | None:
        """The process behind an entry, whose only user we are; None if it has gone."""
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(HELLO_S)
        try:
            link.connect(str(self._folder / _checked(taken.item.name)))
        except OSError:
            link.close()
            return None
        link.settimeout(None)
        pid, user, _ = PEER.unpack(
            link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        )
        pipe = Connection(link.detach())
        try:
            if pid == 0 or user != os.getuid() or not pipe.poll(HELLO_S):
                raise EOFError  # in another container, somebody else's, or it hangs
            pipe.recv()
            found = PooledSandbox(taken, pipe, pid, self._over)
        except (EOFError, OSError):  # somebody else was first, or it died meanwhile
            pipe.close()
            return None
        with self._lock:
            self._in_use.add(found)
        return found

    def _over(self, sandbox: PooledSandbox) -> None:
        with self._lock:
            self._in_use.discard(sandbox)
        self._used_up(sandbox.taken)

    def _used_up(self, taken: "Taken") -> None:
        with suppress(CapeError):  # its lease ends by itself
            taken.used_up()

    def _make(self) -> "Item":
        from cape_stream.coordination.pool import Item

        name = secrets.token_hex(8)
        made = _Made(self._folder / name, self._handlers, self._stopping)
        with self._lock:
            self._made[name] = made
        return Item(name, str(made.process.pid).encode())

    def _destroy(self, item: "Item") -> None:
        """Its taker is gone. Was it used, it is as well; else we are its user, and leave."""
        with suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            link.connect(str(self._folder / _checked(item.name)))

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            try:
                self.look()
            except CapeError as error:
                logger.info("the pool of sandboxes grows old: %s", error)

    def look(self) -> None:
        """Renew what is in use, and make known again what a flush of the server forgot.

        Raises:
            Retry: the server cannot be reached.
        """
        from cape_stream.coordination.pool import Item

        with self._lock:
            in_use, made = list(self._in_use), dict(self._made)
        for name, each in made.items():
            if each.process.poll() is not None:
                each.retire()
                each.path.unlink(missing_ok=True)
                with self._lock:
                    del self._made[name]
                self.pool.bury(name)
            elif each.is_idle:
                self.pool.add(Item(name, str(each.process.pid).encode()))
        for sandbox in in_use:
            sandbox.taken.renew()


def open_sandboxes(
    app: str,
    settings: WorkerSettings,
    handlers: Mapping[HandlerKey, JobHandler],
    environ: Mapping[str, str] = os.environ,
) -> WarmSandboxes | None:
    """The warm sandboxes of a worker, if it wants some and a server is named.

    Raises:
        Fatal: some are wanted, and they cannot be had here; or see `WarmSandboxes`.
    """
    chosen = {
        key: handler
        for key, handler in handlers.items()
        if not handler.is_async and (handler.executor or settings.executor) is Executor.PROCESS
    }
    if not settings.sandboxes_ready or not chosen:
        return None
    url = environ.get(URL_VARIABLE)
    if not url or not hasattr(os, "pidfd_open"):
        raise Fatal(f"worker.sandboxes_ready needs Linux and {URL_VARIABLE}; set it to 0 without")
    folder = Path(tempfile.gettempdir()) / f"cape-sandboxes-{os.getuid()}"
    return WarmSandboxes(app, settings, chosen, url, folder, code_stamp())


def own_folder(folder: Path) -> str:
    """Make the folder if it is not there; the name of it, which no other folder has.

    Raises:
        Fatal: it belongs to somebody else, or is open to others.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Fatal(f"{folder} must be a folder of ours that is closed to others; delete it")
    place = folder / "id"
    fresh = folder / f"id.{secrets.token_hex(8)}"
    fresh.write_text(secrets.token_hex(8))
    with suppress(FileExistsError):
        os.link(fresh, place)
    fresh.unlink()
    return place.read_text()


def code_stamp(names: Iterable[str] | None = None) -> str:
    """A digest of where the loaded modules lie and when they were written, the standard library's
    left out: processes with the same one run the same code."""
    lines = [sys.version, sys.executable, *sys.path]
    for name in sorted(list(sys.modules) if names is None else names):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or name.split(".")[0] in sys.stdlib_module_names:
            continue
        with suppress(OSError):
            found = Path(file).stat()
            lines.append(f"{name} {file} {found.st_mtime_ns} {found.st_size}")
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()[:16]


def _checked(name: str) -> str:
    """A name that leads to nothing but a file of the folder: the pool may hold foreign data."""
    if not name.isascii() or not name.isalnum():
        raise OSError(f"{name[:40]!r} is the name of no sandbox")
    return name


def _cold() -> "Item":
    from cape_stream.coordination.pool import Item

    return Item("cold", b"")
