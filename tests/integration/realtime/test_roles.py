"""`cape realtime` and `cape ws` as processes: start, serve, drain, and say what is wrong."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cape_stream.cli import main
from cape_stream.coordination.credentials import ValkeyHookTokens
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from cape_stream.realtime.call_client import Asked, RequestClient, RequestWorker
from cape_stream.realtime.settings import RealtimeSettings
from cape_stream.roles.contexts import Contexts
from tests.integration.realtime.kit import SseClient, closing_clients
from tests.integration.realtime.processes import Role
from tests.valkey import LocalValkey

SECRET = "w" * 40


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = str(tmp_path / "keys")
    assert main(["realtime", "rotate-keys", "--keys-file", path]) == 0
    return path


@pytest.fixture
def roles(valkey_server: LocalValkey) -> Iterator[list[Role]]:
    """Roles that are ended with the test."""
    found: list[Role] = []
    with closing_clients():
        yield found
    for role in found:
        role.end()


def test_an_execution_reaches_a_client_of_the_role(
    valkey_server: LocalValkey, keys: str, roles: list[Role]
) -> None:
    roles.append(
        Role(
            "realtime", "--keys-file", keys, "--set", "realtime.drain_ms=100", url=valkey_server.url
        )
    )
    store = Store(ValkeySettings(url=valkey_server.url, call_timeout_ms=5_000))
    tokens = ValkeyHookTokens(store)
    contexts = Contexts(RealtimeSettings(keys_file=keys, valkey_url=valkey_server.url), tokens)
    context = contexts.of(tokens.mint("live", "app", "e-1", "", 60_000))
    client = SseClient(roles[0].port, context.grant(["room"]).token)
    client.until_event("ready")

    context.publish("room", "hello")
    assert client.until_messages(1)[0]["data"] == "hello"
    assert main(["realtime", "rotate-keys", "--keys-file", keys]) == 0
    later = SseClient(
        roles[0].port,
        contexts.of(tokens.mint("live", "app", "e-2", "", 60_000)).grant(["room"]).token,
    )
    assert later.status == 200

    assert roles[0].stop() == 0
    client.until_over()
    assert client.names[-1] == "reconnect"
    contexts.close()
    store.close()


def test_requests_reach_a_worker_through_the_role(
    valkey_server: LocalValkey, keys: str, roles: list[Role], tmp_path: Path
) -> None:
    secret = tmp_path / "worker-token"
    secret.write_text(SECRET)
    roles.append(
        Role("ws", "--keys-file", keys, "--worker-token-file", str(secret), url=valkey_server.url)
    )
    store = Store(ValkeySettings(url=valkey_server.url, call_timeout_ms=5_000))
    token = ValkeyHookTokens(store).mint("dev-7", "app", "e-1", "", 60_000)
    url = f"ws://127.0.0.1:{roles[0].port}"

    async def answer(asked: Asked) -> object:
        return [asked.scope.environment, asked.body]

    async def play() -> object:
        worker = RequestWorker(url, "db", SECRET, answer)
        running = asyncio.create_task(worker.run())
        await asyncio.wait_for(worker.is_offering.wait(), 20)
        async with RequestClient(url, token) as client:
            found = await client.call("db", "select 1")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return found

    assert asyncio.run(play()) == ["dev-7", "select 1"]
    store.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["realtime"], "rotate-keys --keys-file"),
        (["realtime", "rotate-keys"], "name the file"),
        (["realtime", "--keys-file", "/nowhere/keys"], "cannot be read"),
        (["realtime", "--set", "realtime.valkey_url=http://x"], "must begin with valkey://"),
        (["realtime", "--port", "x"], "realtime.port must be a whole number"),
        (["realtime", "--port", "99999"], "port must be 0 to 65535"),
        (["realtime", "--set", "realtime.reader_bytes_max=1"], "too small for one publish"),
        (["ws", "--worker-token-file", "/nowhere"], "worker_token_file"),
        (["ws", "--port"], "--port"),
    ],
)
def test_what_cannot_start_says_why_and_what_to_do(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) in (1, 2)

    assert said in capsys.readouterr().err


def test_a_port_that_is_taken_by_another_program_is_named(
    keys: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        assert main(["realtime", "--keys-file", keys, "--port", str(port)]) == 1

    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
