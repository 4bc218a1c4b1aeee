"""The servers that are compared, in processes of their own on the same Valkey."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import psutil

from cape_stream.ports.channels import Realm
from cape_stream.realtime.framing import message_body
from cape_stream.realtime.grants import new_grant, sign
from cape_stream.realtime.keys import GrantKeys, rotate
from cape_stream.realtime.settings import RealtimeSettings
from cape_stream.realtime.valkey_writer import ValkeyChannelWriter
from tests.bench.stream_load import Target

PROJECT = Path(__file__).resolve().parents[2]
TOOLS = PROJECT / ".cache" / "bench"
CENTRIFUGO = "github.com/centrifugal/centrifugo/v6@latest"
API_KEY = "bench"
CHANNEL = "bench"
REALM = Realm("live", "bench")
HISTORY_MESSAGES = 500
PAD_BYTES = 160
START_LIMIT_S = 60


class Server(Protocol):
    """One of them, running."""

    processes: list[psutil.Process]
    target: Target

    def publish(self, stamp_ns: int) -> None:
        """One message to everybody."""
        ...

    def close(self) -> None:
        """Stop it."""
        ...


def payload(stamp_ns: int, pad_bytes: int = PAD_BYTES) -> dict[str, object]:
    """A message of about 200 bytes, or more."""
    return {"t": stamp_ns, "pad": "x" * pad_bytes}


class Cape:
    """`cape realtime`, in one process or in several on one port."""

    def __init__(self, valkey_url: str, processes: int = 1) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="cape-bench-"))
        keys_file = str(self._folder / "keys")
        rotate(keys_file)
        self.keys = GrantKeys.from_file(keys_file)
        self.settings = RealtimeSettings(
            keys_file=keys_file, history_messages=HISTORY_MESSAGES, valkey_url=valkey_url
        )
        self.port = free_port()
        self.writer = ValkeyChannelWriter(valkey_url, self.settings.retention, 5_000)
        command = [
            *(sys.executable, "-m", "cape_stream", "realtime", "--port", str(self.port)),
            *("--keys-file", keys_file, "--set", "realtime.drain_ms=0"),
            *("--set", f"realtime.history_messages={HISTORY_MESSAGES}"),
        ]
        self._children = [
            subprocess.Popen(
                command,
                env=os.environ | {"CAPE_VALKEY_URL": valkey_url},
                stderr=subprocess.DEVNULL,
            )
            for _ in range(processes)
        ]
        self.processes = [psutil.Process(each.pid) for each in self._children]
        # The system chooses who answers: so many times in a row, and everybody has.
        ready = f"http://127.0.0.1:{self.port}/readyz"
        wait_for(lambda: all(_status(ready) == 200 for _ in range(1 + 20 * (processes - 1))))
        request = (
            "GET /v1/stream HTTP/1.1\r\nHost: bench\r\n"
            f"Authorization: Bearer {self.token()}\r\n\r\n"
        )
        self.target = Target(self.port, request.encode(), b"expires_in_ms")

    def token(self, life_ms: int = 3_600_000) -> str:
        """A grant for the channel."""
        now_ms = time.time_ns() // 1_000_000
        return sign(new_grant(REALM, [CHANNEL], now_ms=now_ms, life_ms=life_ms), self.keys)

    def publish(self, stamp_ns: int, pad_bytes: int = PAD_BYTES) -> None:
        """See `Server.publish`."""
        body = message_body(CHANNEL, "message", payload(stamp_ns, pad_bytes), 4_096)
        self.writer.publish(REALM, CHANNEL, body)

    def close(self) -> None:
        """See `Server.close`."""
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.wait(30)
        self.writer.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Centrifugo:
    """Centrifugo with its Redis engine and a history, over its unidirectional event stream."""

    def __init__(self, program: Path, valkey_url: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="cape-bench-"))
        self._port = free_port()
        config = {
            "http_server": {"address": "127.0.0.1", "port": self._port},
            "log": {"level": "error"},
            "engine": {
                "type": "redis",
                "redis": {"address": [valkey_url.replace("valkey:", "redis:")]},
            },
            "client": {"insecure": True},
            "channel": {
                "without_namespace": {
                    "history_size": HISTORY_MESSAGES,
                    "history_ttl": "300s",
                    "force_recovery": True,
                }
            },
            "uni_sse": {"enabled": True},
            "http_api": {"key": API_KEY},
            "usage_stats": {"disabled": True},
        }
        file = self._folder / "config.json"
        file.write_text(json.dumps(config))
        self._child = subprocess.Popen(
            [str(program), "--config", str(file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.processes = [psutil.Process(self._child.pid)]
        self._api = http_connection(self._port)
        wait_for(lambda: _is_listening(self._port))
        connect = urllib.parse.quote(json.dumps({"subs": {CHANNEL: {}}}))
        request = f"GET /connection/uni_sse?cf_connect={connect} HTTP/1.1\r\nHost: bench\r\n\r\n"
        self.target = Target(self._port, request.encode(), b'"connect"')

    def publish(self, stamp_ns: int) -> None:
        """See `Server.publish`."""
        body = json.dumps({"channel": CHANNEL, "data": payload(stamp_ns)})
        self._api.request("POST", "/api/publish", body, {"X-API-Key": API_KEY})
        answer = json.loads(self._api.getresponse().read())
        if "error" in answer:
            raise RuntimeError(answer)

    def close(self) -> None:
        """See `Server.close`."""
        self._child.terminate()
        self._child.wait(30)
        self._api.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def centrifugo_program() -> Path | None:
    """The peer, built once from its source at low priority; None, said in a line, if it cannot."""
    program = TOOLS / "centrifugo"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        print("LEFT OUT: Centrifugo, because there is no Go to build it with")
        return None
    TOOLS.mkdir(parents=True, exist_ok=True)
    print("building Centrifugo from the Go module proxy, some minutes")
    built = subprocess.run(
        ["nice", "-n", "19", go, "install", CENTRIFUGO],
        env=os.environ | {"GOBIN": str(TOOLS)},
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        print(f"LEFT OUT: Centrifugo, which does not build: {built.stderr.strip()[-200:]}")
        return None
    return program


def free_port() -> int:
    """A port nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def http_connection(port: int) -> Any:
    """A connection that stays open."""
    from http.client import HTTPConnection

    return HTTPConnection("127.0.0.1", port, timeout=30)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a server is up."""
    give_up_s = time.monotonic() + START_LIMIT_S
    while not condition():
        if time.monotonic() > give_up_s:
            raise TimeoutError("a server does not come up")
        time.sleep(0.05)


def _status(url: str) -> int:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as response:
        status: int = response.status
        return status
    return 0


def _is_listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
