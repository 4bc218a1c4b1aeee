"""Who takes part: all roles in this process on the embedded log, or one process a role on Kafka."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol
from zlib import crc32

import cape_stream
from cape_stream.errors import Fatal
from cape_stream.roles.backends import Backend, open_backend
from cape_stream.roles.collecting import collect_seldom
from cape_stream.roles.crew import Crew, raise_failure
from cape_stream.roles.run import ROLES
from cape_stream.roles.settings import BackendName, Settings
from cape_stream.roles.settings_loading import load_settings
from cape_stream.roles.topics import topic_specs
from cape_stream.sdk.app import App
from cape_stream.sdk.pinger import Pinger

MEMBERS = ("dispatcher", "worker", "worker", "refresh")
"""Processes of the demo on Kafka."""
LOAD_MAX = 1_000
STOP_TIMEOUT_S = 30
FIGURES_SUFFIX = ".figures.json"


class Stage(Protocol):
    """Everybody who takes part, at work."""

    def figures(self) -> Mapping[str, int]:
        """What all of them have done and hold."""
        ...

    def check(self) -> None:
        """Raise Fatal if one of them has ended."""
        ...


def settings_in(folder: Path, kafka: str | None) -> Settings:
    """Settings of every process of the demo.

    A quick refresh, so that dropped pings cost little; a low bound on what is in flight, so that
    jobs do not grow old in the queue.
    """
    flags: dict[str, object] = {
        "process.data_dir": str(folder),
        "refresh.interval_ms": "500",
        "engine.load_max": str(LOAD_MAX),
        "worker.concurrency": "4",
    }
    if kafka is not None:
        flags["kafka.bootstrap_servers"] = kafka
    return load_settings(flags, {}, os.devnull)


class PingPart:
    """The source's side: says that each subject has news, and forgets to for every second one.

    Implements `cape_stream.roles.crew.Part`.
    """

    name = "pings"

    def __init__(self, app: App, backend: Backend, newest: Mapping[str, int]) -> None:
        domain = next(iter(app.domains))
        self._newest = newest
        self._stopping = threading.Event()
        self._pinger = Pinger(
            backend.log,
            backend.codec,
            backend.clock,
            topic=app.topic_names.pings(domain),
            partitions=app.partitions,
        )
        self._dropped = 0

    def run(self) -> None:
        """See `Part.run`."""
        for subject, latest in self._newest.items():
            if crc32(subject.encode()) % 2:
                self._dropped += 1
            else:
                self._pinger.ping(subject, latest)
        self._pinger.flush()
        self._stopping.wait()
        self._pinger.close()

    def stop(self) -> None:
        """See `Part.stop`."""
        self._stopping.set()

    def figures(self) -> Mapping[str, int]:
        """See `Part.figures`."""
        return {"pings_sent": self._pinger.counters().sent, "pings_dropped": self._dropped}


class CrewStage:
    """All roles in this process. Implements `Stage`."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def figures(self) -> Mapping[str, int]:
        """See `Stage.figures`."""
        return self._crew.figures()

    def check(self) -> None:
        """See `Stage.check`."""
        raise_failure(self._crew.failure)


class ProcessStage:
    """Pings from here, everything else in processes. Implements `Stage`."""

    def __init__(
        self, crew: Crew, processes: Sequence[subprocess.Popen[bytes]], folder: Path
    ) -> None:
        self._crew = crew
        self._processes = processes
        self._folder = folder

    def figures(self) -> Mapping[str, int]:
        """See `Stage.figures`; the processes write theirs into files."""
        total = dict(self._crew.figures())
        for file in self._folder.glob(f"*{FIGURES_SUFFIX}"):
            for name, value in json.loads(file.read_text()).items():
                total[name] = total.get(name, 0) + value
        return total

    def check(self) -> None:
        """See `Stage.check`."""
        raise_failure(self._crew.failure)
        for process in self._processes:
            if process.poll() is not None:
                raise Fatal(f"{process.args!r} ended with exit code {process.returncode}")


@contextmanager
def staged(
    app: App, backend_name: BackendName, folder: Path, newest: Mapping[str, int]
) -> Iterator[Stage]:
    """Everybody at work, until the end of the block.

    Raises:
        Fatal: somebody cannot begin.
    """
    with ExitStack() as stack:
        kafka = stack.enter_context(_broker()) if backend_name == "kafka" else None
        settings = settings_in(folder, kafka)
        backend = stack.enter_context(open_backend(backend_name, settings))
        backend.log.create_topics(topic_specs(app))
        pings = PingPart(app, backend, newest)
        if kafka is None:
            crew = Crew([*(role(app, backend, settings) for role in ROLES.values()), pings])
            stage: Stage = CrewStage(crew)
        else:
            crew = Crew([pings])
            processes = [
                stack.enter_context(_member(role, number, folder, kafka))
                for number, role in enumerate(MEMBERS)
            ]
            stage = ProcessStage(crew, processes, folder)
        stack.callback(crew.stop)
        collect_seldom()
        crew.start()
        yield stage


@contextmanager
def _member(role: str, number: int, folder: Path, kafka: str) -> Iterator[subprocess.Popen[bytes]]:
    """One process of the demo; stopped in good order at the end."""
    own = folder / f"{role}-{number}"
    own.mkdir()
    command = [sys.executable, "-m", "cape_stream.demos.flights.member", role, str(own), kafka]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _broker() -> Iterator[str]:
    """A Kafka of our own, from the checkout's launcher; its address."""
    launcher = Path(cape_stream.__file__).parents[1] / "deploy" / "local" / "broker.py"
    if not launcher.exists():
        raise Fatal(
            "--backend kafka starts a broker with a script of the source checkout; clone it"
        )
    name = f"demo-{os.getpid()}"
    started = subprocess.run(
        [sys.executable, str(launcher), "start", "--name", name, "--json"],
        stdout=subprocess.PIPE,
        check=False,
    )
    try:
        if started.returncode:
            raise Fatal("the broker did not start; its launcher says why above")
        yield str(json.loads(started.stdout)["bootstrap"])
    finally:
        subprocess.run(
            [sys.executable, str(launcher), "stop", "--name", name],
            stdout=subprocess.DEVNULL,
            check=False,
        )
