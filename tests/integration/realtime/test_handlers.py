"""`ctx.publish` and `ctx.grant` in handlers that a worker runs, on a real store, to a client."""

import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cape_stream.cli import main
from cape_stream.coordination.credentials import ValkeyHookTokens
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from cape_stream.errors import Fatal
from cape_stream.ports.channels import Realm
from cape_stream.realtime.grants import new_grant, sign
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.settings import RealtimeSettings
from cape_stream.roles.executions import Executions
from cape_stream.roles.run import opened
from cape_stream.roles.settings_loading import load_settings
from tests.integration import run_app
from tests.integration.realtime import publishing_app
from tests.integration.realtime.kit import (
    RunningServer,
    SseClient,
    ValkeyStage,
    closing_clients,
    settings,
    wait_until,
)
from tests.valkey import LocalValkey

PAGE = Path(__file__).parents[3] / "docs" / "realtime.md"
LATE = "Fenced+Fenced+Fenced"


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    path = str(tmp_path / "keys")
    assert main(["realtime", "rotate-keys", "--keys-file", path]) == 0
    return path


@pytest.fixture
def server(valkey_server: LocalValkey, keys_file: str) -> Iterator[RunningServer]:
    kept = settings(valkey_url=valkey_server.url, keys_file=keys_file)
    stage = ValkeyStage(valkey_server.url, kept)
    with closing_clients():
        running = RunningServer(stage, GrantKeys.from_file(keys_file), kept)
        yield running
        running.stop()
        stage.writer.close()


def grant(keys_file: str, environment: str) -> str:
    """What nobody but a test can mint so: a grant for any environment."""
    realm, now_ms = Realm(environment, publishing_app.app.name), time.time_ns() // 1_000_000
    minted = new_grant(realm, ["room"], now_ms=now_ms, life_ms=60_000)
    return sign(minted, GrantKeys.from_file(keys_file))


def test_handlers_publish_and_grant_wherever_they_run_and_never_afterwards(
    valkey_server: LocalValkey,
    keys_file: str,
    server: RunningServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CAPE_VALKEY_URL", valkey_server.url)
    monkeypatch.setenv("CAPE_ENVIRONMENT", "dev-7")
    given = {
        "process.data_dir": str(tmp_path / "data"),
        "realtime.keys_file": keys_file,
        "worker.concurrency": 1,  # one child, which remembers its predecessor
    }
    client = SseClient(server.port, grant(keys_file, "dev-7"))
    stranger = SseClient(server.port, grant(keys_file, "live"))
    for each in (client, stranger):
        each.until_event("ready")
    count = len(publishing_app.WHERE)

    # One right after the other, while the word of the last check of a token still counts.
    for number in (1, 2):
        publishing_app.fill(tmp_path, number)
    with opened(publishing_app.app, load_settings(given, {})) as crew:
        crew.start()
        client.until_messages(2 * count)

    said = [each["data"] for each in client.messages]
    assert sorted((each["where"], each["number"], each["late"]) for each in said) == sorted(
        (where, number, late)
        for where in publishing_app.WHERE
        for number, late in ((1, "first"), (2, LATE))
    )
    assert {(each["execution"], each["subject"], each["environment"]) for each in said} == {
        (True, "tea", "dev-7")
    }
    store = Store(ValkeySettings(url=valkey_server.url, call_timeout_ms=5_000))
    tokens = ValkeyHookTokens(store)
    assert [tokens.check(each["token"]) for each in said] == [None] * len(said)
    store.close()
    assert stranger.messages == []
    for where in publishing_app.WHERE:
        granted = SseClient(server.port, (tmp_path / f"{where}.grant").read_text())
        assert granted.status == 200
        granted.until_event("ready")


def test_the_example_of_the_page_runs(
    valkey_server: LocalValkey, keys_file: str, server: RunningServer, tmp_path: Path
) -> None:
    found = re.search(r"^```python run\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    (tmp_path / "chat.py").write_text(found.group(1))
    say(tmp_path, "tea", 1, '{"user": "ada", "text": "/join"}')
    arguments = ("run", "chat:app", "--set", f"realtime.keys_file={keys_file}")

    process = run_app.start(
        tmp_path,
        *arguments,
        environment={"CAPE_VALKEY_URL": valkey_server.url},
        working_in=tmp_path,
    )
    wait_until(lambda: (tmp_path / "ada.grant").exists() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    client = SseClient(server.port, (tmp_path / "ada.grant").read_text())
    client.until_event("ready")
    say(tmp_path, "tea", 2, '{"user": "bob", "text": "hello"}')

    assert client.until_messages(1)[0]["data"] == {"user": "bob", "text": "hello"}
    assert client.messages[0]["channel"] == "room:tea"
    assert run_app.end(process)[0] == 0


def say(folder: Path, room: str, number: int, body: str) -> None:
    with sqlite3.connect(folder / "chat.db") as database:
        database.execute("CREATE TABLE IF NOT EXISTS said (room TEXT, number INTEGER, body TEXT)")
        database.execute("INSERT INTO said VALUES (?, ?, ?)", (room, number, body))


def test_a_worker_without_keys_does_not_start_and_says_for_whom(
    valkey_server: LocalValkey, tmp_path: Path
) -> None:
    with pytest.raises(Fatal, match=r"handler thread\.in_a_thread takes a context: .*keys_file"):
        Executions(publishing_app.app, {"CAPE_VALKEY_URL": valkey_server.url}, RealtimeSettings())


def test_an_app_that_publishes_nothing_needs_no_keys() -> None:
    Executions(run_app.app, {}, RealtimeSettings()).close()
