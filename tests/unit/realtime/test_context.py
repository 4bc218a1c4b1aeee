"""The context of an execution: alive with its hook token, and in its environment only."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from cape_stream.adapters.simulated.channels import MemoryChannelStore, MemoryChannelWriter
from cape_stream.coordination.memory_tokens import MemoryHookTokens
from cape_stream.errors import CapeError, Fenced, Reject, Retry
from cape_stream.ports.channels import Realm
from cape_stream.ports.contexts import PublishBounds
from cape_stream.ports.credentials import Scope
from cape_stream.realtime.context import RealtimeContext
from cape_stream.realtime.grants import Grant, read
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.settings import RealtimeSettings

NOW_MS = 1_800_000_000_000
KEYS = GrantKeys.ephemeral()


class Stage:
    """A store, tokens, and one execution."""

    def __init__(self, environment: str = "live", **changes: Any) -> None:
        self.store = MemoryChannelStore(lambda: NOW_MS * 1_000)
        self.tokens = MemoryHookTokens()
        self.token = self.tokens.mint(environment, "app", "e-1", "", 60_000)
        self.context = RealtimeContext(
            self.token,
            self.tokens,
            MemoryChannelWriter(self.store),
            KEYS,
            RealtimeSettings(**changes),
            lambda: NOW_MS,
        )

    def kept(self, realm: Realm, channel: str) -> list[bytes]:
        """What is in the history of a channel."""
        channels = self.store.state(realm).channels
        return [each.body for each in channels[channel].history] if channel in channels else []


def grant_of(token: str) -> Grant:
    found = read(token, KEYS, NOW_MS, 0)
    assert isinstance(found, Grant)
    return found


ACTS: dict[str, Callable[[RealtimeContext], object]] = {
    "publish": lambda context: context.publish("room", 1),
    "grant": lambda context: context.grant(["room"]),
    "revoke": lambda context: context.revoke(holder="user-7"),
}


@pytest.mark.parametrize("token", ["", "hook1.memory.x.y", "anything"])
def test_there_is_no_context_without_a_live_token(token: str) -> None:
    stage = Stage()

    with pytest.raises(Fenced):
        RealtimeContext(
            token, stage.tokens, MemoryChannelWriter(stage.store), KEYS, RealtimeSettings()
        )


def test_environment_and_app_come_from_the_token() -> None:
    stage = Stage("dev-7")

    stage.context.publish("room", {"a": 1})
    minted = stage.context.grant(["room"])

    assert stage.kept(Realm("dev-7", "app"), "room") != []
    assert stage.kept(Realm("live", "app"), "room") == []
    assert grant_of(minted.token).realm == Realm("dev-7", "app")
    assert grant_of(minted.token).execution == "e-1"


@pytest.mark.parametrize("act", ACTS)
def test_nothing_works_once_the_token_is_revoked(act: str) -> None:
    stage = Stage(context_check_interval_ms=0)
    ACTS[act](stage.context)

    stage.tokens.revoke(stage.token)

    with pytest.raises(Fenced):
        ACTS[act](stage.context)


def test_a_grant_asks_anew_every_time() -> None:
    """Unlike a publish, which goes on the word of the last check for a moment."""
    stage = Stage(context_check_interval_ms=60_000)
    stage.context.publish("room", 1)
    stage.tokens.end_execution("live", "app", "e-1")

    with pytest.raises(Fenced):
        stage.context.grant(["room"])


@pytest.mark.parametrize("act", ACTS)
def test_nothing_works_once_the_context_is_closed(act: str) -> None:
    stage = Stage()

    stage.context.close()

    with pytest.raises(Fenced, match="over"):
        ACTS[act](stage.context)


def test_an_interface_session_is_no_execution() -> None:
    """Its scope names no execution, and so it may not publish."""

    class Sessions(MemoryHookTokens):
        def check(self, token: str) -> Scope | None:
            return Scope("live", "app", "", "user-7", NOW_MS, 1_000, "t")

    with pytest.raises(Fenced):
        RealtimeContext(
            "t", Sessions(), MemoryChannelWriter(Stage().store), KEYS, RealtimeSettings()
        )


def test_a_store_that_cannot_say_fails_closed() -> None:
    class Unreachable(MemoryHookTokens):
        def check(self, token: str) -> Scope | None:
            raise Retry("the store does not answer")

    with pytest.raises(Retry):
        RealtimeContext(
            "t", Unreachable(), MemoryChannelWriter(Stage().store), KEYS, RealtimeSettings()
        )


def test_lives_are_fifteen_minutes_and_an_hour_at_most() -> None:
    stage = Stage()

    usual = stage.context.grant(["room"])
    greedy = stage.context.grant(["room"], timedelta(days=365))

    assert usual.expires_ms == NOW_MS + 900_000
    assert greedy.expires_ms == NOW_MS + 3_600_000
    assert grant_of(greedy.token).expires_ms == NOW_MS + 3_600_000


WRONG: list[Callable[[RealtimeContext], object]] = [
    lambda context: context.publish("", 1),
    lambda context: context.publish("a\nb", 1),
    lambda context: context.publish("room", object()),
    lambda context: context.publish("room", "x" * 200_000),
    lambda context: context.publish("room", 1, kind="a\nb"),
    lambda context: context.grant([]),
    lambda context: context.grant("room"),
    lambda context: context.grant(["room", "a\0"]),
    lambda context: context.grant(["room"], timedelta(0)),
    lambda context: context.grant(["room"], timedelta(seconds=-1)),
    lambda context: context.grant(["room"], publish=PublishBounds(("other",))),
    lambda context: context.grant(["room"], holder="a\nb"),
    lambda context: context.revoke(),
    lambda context: context.revoke(grant_id="a", holder="b"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_can_never_be_accepted_is_rejected(number: int) -> None:
    stage = Stage()

    with pytest.raises(Reject):
        WRONG[number](stage.context)

    assert stage.kept(Realm("live", "app"), "room") == []


def test_ephemeral_publishes_are_not_kept() -> None:
    stage = Stage()

    sequence = stage.context.publish("room", 1, ephemeral=True)

    assert sequence == 0
    assert stage.kept(Realm("live", "app"), "room") == []


def test_the_asynchronous_face_does_the_same() -> None:
    stage = Stage()

    async def run() -> None:
        await stage.context.publish_async("room", 1)
        minted = await stage.context.grant_async(["room"], holder="user-7")
        await stage.context.revoke_async(grant_id=minted.grant_id)
        grant = grant_of(minted.token)
        assert stage.store.is_revoked(grant.realm, grant.key)
        with pytest.raises(CapeError):
            await stage.context.publish_async("", 1)

    asyncio.run(run())


def test_a_publish_costs_one_call_to_the_store_and_no_check() -> None:
    class Counting(MemoryHookTokens):
        checks = 0

        def check(self, token: str) -> Scope | None:
            self.checks += 1
            return super().check(token)

    tokens = Counting()
    token = tokens.mint("live", "app", "e-1", "", 60_000)
    writer = MemoryChannelWriter(Stage().store)
    settings = RealtimeSettings(context_check_interval_ms=60_000)
    context = RealtimeContext(token, tokens, writer, KEYS, settings)

    for number in range(10):
        context.publish("room", number)

    assert tokens.checks == 1
