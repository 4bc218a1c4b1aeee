"""Roles as processes of their own, and what they say of themselves."""

import os
import re
import signal
import subprocess
import sys
from http.client import HTTPConnection

from tests.integration.realtime.kit import wait_until

_FIGURE = re.compile(r'^cape_realtime_(\w+)(?:\{reason="(\w+)"\})? (\d+)$', re.MULTILINE)


def page(port: int, path: str) -> tuple[int, str]:
    """Status and text of a page; status 0 if nobody listens."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError:
        return 0, ""
    finally:
        connection.close()


def figures_of(port: int) -> dict[str, int]:
    """The counters of a stream server, without their prefix: `streams`, `ended slow`."""
    found = _FIGURE.findall(page(port, "/metrics")[1])
    return {f"{name} {reason}".strip(): int(value) for name, reason, value in found}


class Role:
    """One role in a process of its own."""

    def __init__(self, *words: str, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cape_stream", *words, "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"CAPE_VALKEY_URL": url},
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        assert " on 127.0.0.1:" in line, line + self._process.stderr.read()
        self.pid = self._process.pid
        self.port = int(line.split(" on 127.0.0.1:")[1].split(";")[0])
        wait_until(lambda: page(self.port, "/readyz")[0] == 200)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.stderr is not None
        code = self._process.wait(30)
        self._process.stderr.close()
        return code

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        assert self._process.stderr is not None
        self._process.stderr.close()
