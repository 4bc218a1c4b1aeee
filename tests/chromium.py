"""A real Chromium for tests, driven by its own protocol; one visible line where there is none."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.left_out import NEEDS, Need

FIXTURE = "browser"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
START_LIMIT_S = 60
ANSWER_LIMIT_S = 60
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--remote-debugging-port=0", "--no-first-run", "--disable-extensions", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-proxy-server", "--disable-features=Translate,MediaRouter,OptimizationHints"),
)


def program() -> str | None:
    """The browser of this machine, if it has one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Page:
    """One page of the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, self._session, **parameters)

    def go(self, address: str) -> None:
        """Load an address and wait until its script has run."""
        self.call("Page.enable")
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && globalThis.ready")

    def run(self, expression: str) -> Any:
        """The value of an expression, or of what it promises."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str, wait_s: float = 30) -> Any:
        """Ask again and again until the value is true."""
        give_up_s = time.monotonic() + wait_s
        while not (found := self.run(expression)):
            assert time.monotonic() < give_up_s, f"never true: {expression}"
            time.sleep(0.03)
        return found


class Browser:
    """A headless browser with a profile of its own."""

    def __init__(self, command: str) -> None:
        self._left = ExitStack()
        folder = Path(tempfile.mkdtemp(prefix="cape-chromium-"))
        self._left.callback(shutil.rmtree, folder, ignore_errors=True)
        self._process = subprocess.Popen(
            [command, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._left.callback(self._end)
        self._numbers = itertools.count(1)
        self._socket: ClientConnection = self._left.enter_context(
            connect(self._address(folder), max_size=None, proxy=None, compression=None)
        )

    def _address(self, folder: Path) -> str:
        said = folder / "DevToolsActivePort"
        give_up_s = time.monotonic() + START_LIMIT_S
        while not (said.exists() and len(said.read_text().split()) == 2):
            assert self._process.poll() is None, "the browser ended"
            assert time.monotonic() < give_up_s, "the browser does not start"
            time.sleep(0.05)
        port, path = said.read_text().split()
        return f"ws://127.0.0.1:{port}{path}"

    def call(self, method: str, session: str = "", **parameters: Any) -> Any:
        """One command and its result; events in between are of no interest."""
        number = next(self._numbers)
        asked = {"id": number, "method": method, "params": parameters}
        self._socket.send(json.dumps(asked | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self._socket.recv(timeout=ANSWER_LIMIT_S))
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def page(self) -> Page:
        """A new page in a context of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        return Page(self, session["sessionId"])

    def close(self) -> None:
        self._left.close()

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser that the tests of a module share: use pages of your own."""
    command = program()
    assert command is not None, "tests that need it are left out"
    found = Browser(command)
    yield found
    found.close()


def _is_marked(item: pytest.Item) -> bool:
    return FIXTURE in getattr(item, "fixturenames", ())


def missing_program() -> str | None:
    """Say why there is no browser, or None."""
    return None if program() else f"none of {', '.join(PROGRAMS)} is on the path"


NEEDS.append(Need("in a real browser", _is_marked, missing_program))
