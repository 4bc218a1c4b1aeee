"""One real Kafka node on this machine: as a class for tests, as a command for `make up`.

    python deploy/local/broker.py start|stop|status [--name dev] [--json]

A broker lives in a folder of its own: `state.json` (ports, process), `broker.log`, `data`. It
listens on 127.0.0.1 only, on ports nobody else uses, so any number can run at once.
Standard library only; POSIX.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

if not __package__:  # Started as a file: `deploy.local` is found from the project's root.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from deploy.local.jars import (
    PROJECT,
    FetchFailed,
    LocalKafkaError,
    ToolMissing,
    fetch_jars,
    find_java,
    locked,
    missing_tool,
)
from deploy.local.ports import free_ports, kafka_answers
from deploy.local.processes import dismiss, is_running, watch

__all__ = [
    "BrokerFailed",
    "FetchFailed",
    "LocalBroker",
    "LocalKafkaError",
    "ToolMissing",
    "fetch_jars",
    "missing_tool",
]

HERE = Path(__file__).resolve().parent
HEAP_VARIABLE = "CAPE_KAFKA_HEAP"
HEAP_DEFAULT = "512m"
SERVER_JVM = (
    *("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
"""What Kafka's own start script gives a broker (`bin/kafka-run-class.sh`); for measurements."""
START_WAIT_S = 120.0
"""A start takes 4 s on an idle machine; this bounds it on a crowded one."""
STOP_WAIT_S = 15.0
"""A clean stop takes about 1 s; after this the broker is killed."""
STARTS_MAX = 5
"""How often a new broker looks for other ports because somebody was quicker to take its own."""
STARTED = "Kafka Server started"
"""What a broker logs last of its start, see log4j2.properties."""


class BrokerFailed(LocalKafkaError):
    """The broker did not start, or died while starting; the message ends with its last words."""


@dataclass(slots=True)
class _State:
    """What `state.json` holds."""

    port: int
    """Where clients connect; the same for the broker's whole life."""
    controller_port: int
    """Where the node talks to its own controller; part of the formatted data."""
    formatted: bool = False
    """Whether `data` is complete, so whether a broker may be started on it."""
    has_answered: bool = False
    """Whether the broker ever ran: before that nobody knows its ports, and they may change."""
    pid: int | None = None
    """The last process started; it may be long dead."""
    log_start: int = 0
    """Where in `broker.log` the words of that process begin, in bytes."""


class LocalBroker:
    """A single-node KRaft broker with a folder and a port of its own; a context manager.

    Not for several threads at once. Unless detached it dies with this process, even on kill -9.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        detached: bool = False,
        settings: Mapping[str, str] | None = None,
        jvm: Sequence[str] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            folder: where state, log and data live; one that held a broker before brings it back
                with its port and data. None for a temporary one, removed by `close`.
            detached: the broker outlives this process; it is found again by its folder.
            settings: broker settings of its own, on top of ``server.properties``.
            jvm: options of the virtual machine; None for a small heap that grows, which is right
                for tests, and pauses the broker for up to 0.4 s where the processors are busy.
        """
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(
                prefix="cape-kafka-", ignore_cleanup_errors=True
            )
            folder = Path(self._temporary.name)
        self.folder = folder.resolve()
        self._detached = detached
        self._settings = dict(settings or {})
        self._jvm = jvm
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._state = self._read_state()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # an interrupted start too must leave nothing behind
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`; known from the first start on, and never changes."""
        assert self._state is not None, "a broker has an address once it has been started"
        return f"127.0.0.1:{self._state.port}"

    @property
    def pid(self) -> int | None:
        """The running (or paused) process; None if there is none."""
        if self._process is not None:  # our own child; asking also keeps it from staying a zombie
            return self._process.pid if self._process.poll() is None else None
        pid = self._state.pid if self._state else None
        return pid if pid is not None and is_running(pid, str(self._settings_file)) else None

    @property
    def log_file(self) -> Path:
        """What the broker printed, over all its starts."""
        return self.folder / "broker.log"

    @property
    def _settings_file(self) -> Path:
        return self.folder / "server.properties"

    def start(self) -> None:
        """Starts the broker and returns when it answers requests; does nothing if it runs already.

        Raises:
            ToolMissing: Java or Maven is not here; the message is a reason to skip with.
            FetchFailed: the jars are not here and cannot be fetched.
            BrokerFailed: it died, or did not answer within `START_WAIT_S`; none is left running.
        """
        java, jars = find_java(), fetch_jars()
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "lock"):
            self._state = self._read_state()
            for _ in range(STARTS_MAX):
                if self.pid is None:
                    self._launch(str(java), f"{jars}/*")
                if self._wait_until_ready():
                    return
                self.kill()
                self._state = None
        raise BrokerFailed(f"its ports were taken {STARTS_MAX} times, see {self.log_file}")

    def stop(self) -> None:
        """Asks the broker to end (SIGTERM), kills it if it does not, returns when it is dead."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)  # a paused one hears nothing
            if not self._died_within(STOP_WAIT_S):
                os.kill(pid, signal.SIGKILL)
        self._bury()

    def kill(self) -> None:
        """Ends the broker as a power cut would (SIGKILL), returns when it is dead."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        self._bury()

    def restart(self) -> None:
        """Stops the broker if it runs and starts it again, on the same port and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freezes the broker (SIGSTOP): connections stay open, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused broker go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends the broker and removes its folder if that is temporary; harmless when repeated."""
        if self._temporary is None:
            self.stop()
        else:
            self.kill()
            self._temporary.cleanup()

    def is_ready(self) -> bool:
        """Whether the broker has started and answers a request within a second.

        The answer alone proves little: another Kafka may hold the port that ours failed to get.
        """
        return (
            self._state is not None
            and self.pid is not None
            and STARTED in self._words()
            and kafka_answers(self._state.port, wait_s=1.0)
        )

    def _launch(self, java: str, class_path: str) -> None:
        """Formats the data if there is none yet, then starts the process."""
        if self._state is None:
            port, controller_port = free_ports(2)
            self._state = _State(port, controller_port)
        state = self._state
        self._write_settings(state)
        if not state.formatted:
            self._format(java, class_path)
            state.formatted = True
            self._write_state(state)
        heap = os.environ.get(HEAP_VARIABLE, HEAP_DEFAULT)
        logging = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
        jvm = [f"-Xmx{heap}"] if self._jvm is None else self._jvm
        options = [*jvm, "-cp", class_path, logging]
        with self.log_file.open("ab") as log:
            state.log_start = log.tell()
            self._process = subprocess.Popen(
                [java, *options, "kafka.Kafka", str(self._settings_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in a terminal is for the tests, which stop us
            )
        if not self._detached:
            self._watchdog = watch(self._process.pid, self.folder if self._temporary else None)
        state.pid = self._process.pid
        self._write_state(state)

    def _write_settings(self, state: _State) -> None:
        template = string.Template((HERE / "server.properties").read_text())
        written = template.substitute(
            port=state.port,
            controller_port=state.controller_port,
            data=self.folder / "data",
        )
        own = [f"{name}={value}\n" for name, value in self._settings.items()]
        self._settings_file.write_text("".join([written, *own]))

    def _format(self, java: str, class_path: str) -> None:
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # A tool that lives for a second has no use for big heaps and the second compiler.
        quick = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path]
        tool = ["kafka.tools.StorageTool", "format", "--standalone", f"--cluster-id={cluster}"]
        done = subprocess.run(
            [java, *quick, *tool, "--config", str(self._settings_file)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BrokerFailed(f"cannot format {self.folder}: {done.stdout}{done.stderr}")

    def _wait_until_ready(self) -> bool:
        """Waits until the broker answers; False if it is new and lost its ports to somebody.

        Raises:
            BrokerFailed: any other way not to answer; the broker is dead then.
        """
        assert self._state is not None, "a launched broker has a state"
        deadline = time.monotonic() + START_WAIT_S
        while self.pid is not None and time.monotonic() < deadline:
            if self.is_ready():
                self._state.has_answered = True
                self._write_state(self._state)
                return True
            time.sleep(0.05)
        fate = f"gave no answer in {START_WAIT_S:.0f} s" if self.pid else "died while starting"
        self.kill()
        words = self._last_words()
        if not self._state.has_answered and "Address already in use" in words:
            return False
        raise BrokerFailed(f"the broker {fate}: {words}")

    def _last_words(self) -> str:
        return "\n".join([f"see {self.log_file}", *self._words().splitlines()[-40:]])

    def _words(self) -> str:
        """Returns what the last process has logged so far."""
        assert self._state is not None, "a launched broker has a state"
        with self.log_file.open("rb") as log:
            log.seek(self._state.log_start)
            return log.read().decode(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        assert pid is not None, "only a running broker can be paused or resumed"
        os.kill(pid, number)

    def _died_within(self, wait_s: float) -> bool:
        deadline = time.monotonic() + wait_s
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _bury(self) -> None:
        """Waits for a death that is certain, and sends the watchdog home."""
        while not self._died_within(1.0):
            pass
        self._process = None
        if self._watchdog is not None:
            dismiss(self._watchdog)
            self._watchdog = None

    def _read_state(self) -> _State | None:
        try:
            return _State(**json.loads((self.folder / "state.json").read_text()))
        except FileNotFoundError:
            return None

    def _write_state(self, state: _State) -> None:
        written = self.folder / "state.json.partial"
        written.write_text(json.dumps(asdict(state)))
        written.replace(self.folder / "state.json")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 1 failed, 3 asked for and not running."""
    parser = argparse.ArgumentParser(description="A real Kafka broker on this machine.")
    parser.add_argument("action", choices=["start", "stop", "status"])
    parser.add_argument("--name", default="dev", help="which broker; each has its own data")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(arguments)
    broker = LocalBroker(PROJECT / ".cache" / "brokers" / options.name, detached=True)
    try:
        if options.action == "start":
            broker.start()
        elif options.action == "stop":
            broker.stop()
    except LocalKafkaError as error:
        sys.stderr.write(f"broker {options.name}: {error}\n")
        return 1
    pid = broker.pid
    shown = {
        "name": options.name,
        "running": pid is not None,
        "ready": pid is not None and broker.is_ready(),
        "bootstrap": broker.bootstrap if pid else None,
        "pid": pid,
        "folder": str(broker.folder),
    }
    text = f"running, bootstrap.servers={shown['bootstrap']}" if pid else "not running"
    sys.stdout.write(f"{json.dumps(shown) if options.json else f'broker {options.name}: {text}'}\n")
    return 3 if options.action == "status" and pid is None else 0


if __name__ == "__main__":
    sys.exit(main())
