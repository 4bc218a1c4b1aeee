"""Interface sessions, and what is special to tokens that live on a server."""

import asyncio
import secrets

import pytest

from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.credentials import (
    AsyncInterfaceSessions,
    AsyncValkeyHookTokens,
    InterfaceSessions,
    ValkeyHookTokens,
)
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from cape_stream.errors import Reject, Retry
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalValkey, World
from tests.waiting import eventually

HOUR_MS = 3_600_000


@pytest.fixture
def sessions(store: Store) -> InterfaceSessions:
    return InterfaceSessions(store)


def rows(world: World) -> dict[bytes, bytes]:
    (key,) = world.server.ask("KEYS", f"{world.prefix}:*:tokens")
    found: dict[bytes, bytes] = world.server.ask("HGETALL", key)
    return found


def age(world: World, by_ms: int) -> None:
    """Let the only token of this world be so much older."""
    (key,) = world.server.ask("KEYS", f"{world.prefix}:*:tokens")
    for field, row in world.server.ask("HGETALL", key).items():
        expires, rest = row.split(b"|", 1)
        world.server.ask("HSET", key, field, b"%d|%s" % (int(expires) - by_ms, rest))


def test_session_is_of_a_user_and_of_no_execution(sessions: InterfaceSessions) -> None:
    scope = sessions.check(sessions.open("live", "shop", "ann", HOUR_MS))

    assert scope is not None
    assert (scope.environment, scope.app, scope.execution, scope.subject) == (
        *("live", "shop", "", "ann"),
    )


def test_fixed_session_is_not_prolonged_by_use(sessions: InterfaceSessions, valkey: World) -> None:
    token = sessions.open("live", "shop", "ann", HOUR_MS)
    age(valkey, HOUR_MS // 2)

    for _ in range(3):
        scope = sessions.check(token)

    assert scope is not None
    assert scope.remaining_ms <= HOUR_MS // 2


def test_sliding_session_is_prolonged_by_use_up_to_its_cap(
    sessions: InterfaceSessions, valkey: World
) -> None:
    token = sessions.open("live", "shop", "ann", HOUR_MS, sliding_cap_ms=HOUR_MS + 60_000)
    age(valkey, HOUR_MS // 2)

    scope = sessions.check(token)

    assert scope is not None
    assert HOUR_MS // 2 < scope.remaining_ms <= HOUR_MS
    age(valkey, HOUR_MS)
    assert sessions.check(token) is None


def test_wrong_secret_does_not_prolong_a_session(
    sessions: InterfaceSessions, valkey: World
) -> None:
    token = sessions.open("live", "shop", "ann", HOUR_MS, sliding_cap_ms=2 * HOUR_MS)
    age(valkey, HOUR_MS // 2)
    before = rows(valkey)

    forged = token[:-43] + secrets.token_urlsafe(32)
    assert sessions.check(forged) is None
    assert not sessions.revoke(forged)

    assert rows(valkey) == before


def test_logging_out_everywhere_ends_all_sessions_of_a_user(sessions: InterfaceSessions) -> None:
    mine = [sessions.open("live", "shop", "ann", HOUR_MS) for _ in range(3)]
    other = sessions.open("live", "shop", "bob", HOUR_MS)

    assert sessions.revoke_user("live", "shop", "ann") == 3

    assert [sessions.check(token) for token in mine] == [None] * 3
    assert sessions.check(other) is not None
    assert sessions.check(sessions.open("live", "shop", "ann", HOUR_MS)) is not None


def test_oldest_session_gives_way_to_one_too_many(sessions: InterfaceSessions) -> None:
    first = sessions.open("live", "shop", "ann", HOUR_MS)
    second = sessions.open("live", "shop", "ann", 2 * HOUR_MS)
    for _ in range(255):
        newest = sessions.open("live", "shop", "ann", 2 * HOUR_MS)

    assert sessions.check(first) is None
    assert sessions.check(second) is not None
    assert sessions.check(newest) is not None


@pytest.mark.parametrize(("lifetime_ms", "cap_ms"), [(0, None), (10, 5), (-1, 10), (1, 2**62)])
def test_lifetimes_out_of_range_are_refused(
    sessions: InterfaceSessions, lifetime_ms: int, cap_ms: int | None
) -> None:
    with pytest.raises(Reject, match="session may live"):
        sessions.open("live", "shop", "ann", lifetime_ms, sliding_cap_ms=cap_ms)


def test_nothing_on_the_server_is_of_use_to_who_reads_it(
    sessions: InterfaceSessions, valkey: World
) -> None:
    token = sessions.open("live", "shop", "ann", HOUR_MS)
    secret = token.rsplit(".", 1)[1].encode()

    everything = b"".join(key + value for key, value in rows(valkey).items())

    assert secret not in everything
    assert token.encode() not in everything


def test_hook_token_is_no_session_and_the_other_way_round(store: Store) -> None:
    hook = ValkeyHookTokens(store).mint("live", "shop", "job-1", "ann", HOUR_MS)
    session = InterfaceSessions(store).open("live", "shop", "ann", HOUR_MS)

    assert InterfaceSessions(store).check(hook) is None
    assert ValkeyHookTokens(store).check(session) is None


def test_token_on_the_server_that_somebody_damaged_is_refused(
    sessions: InterfaceSessions, valkey: World
) -> None:
    token = sessions.open("live", "shop", "ann", HOUR_MS)
    (key,) = valkey.server.ask("KEYS", f"{valkey.prefix}:*:tokens")
    (field,) = valkey.server.ask("HKEYS", key)

    for row in (b"9999999999999", b"9999999999999|0|0|x|[", b"9999999999999|0|0|\xff|[]"):
        valkey.server.ask("HSET", key, field, row)
        assert sessions.check(token) is None


def test_revocation_is_seen_by_every_process_at_once(open_store: OpenStore) -> None:
    here, there = (InterfaceSessions(open_store()) for _ in range(2))
    token = here.open("live", "shop", "ann", HOUR_MS)
    assert there.check(token) is not None

    here.revoke(token)

    assert there.check(token) is None


def test_checks_fail_closed_when_the_server_is_away(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    sessions = InterfaceSessions(open_store(fault_proxy.url))
    token = sessions.open("live", "shop", "ann", HOUR_MS)
    fault_proxy.refuse()

    with pytest.raises(Retry):
        sessions.check(token)


def test_revocation_works_when_the_server_is_full(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    sessions = InterfaceSessions(open_store(valkey_server.url))
    token = sessions.open("live", "shop", "ann", HOUR_MS, sliding_cap_ms=2 * HOUR_MS)
    valkey_server.ask("CONFIG", "SET", "maxmemory", "1")

    assert sessions.check(token) is not None
    assert sessions.revoke(token)
    assert sessions.check(token) is None


def test_minting_is_one_token_when_the_reply_is_lost(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    tokens = ValkeyHookTokens(open_store(fault_proxy.url))
    tokens.check(tokens.mint("live", "shop", "warm", "", HOUR_MS))

    fault_proxy.lose_replies(1)
    token = tokens.mint("live", "shop", "job-1", "", HOUR_MS)

    assert tokens.check(token) is not None
    assert tokens.end_execution("live", "shop", "job-1") == 1


def test_asynchronous_checks_say_the_same(store: Store, valkey: World) -> None:
    hook = ValkeyHookTokens(store).mint("live", "shop", "job-1", "ann", HOUR_MS)
    session = InterfaceSessions(store).open("live", "shop", "ann", HOUR_MS)

    async def main() -> None:
        settings = ValkeySettings(url=valkey.url, prefix=valkey.prefix, call_timeout_ms=5_000)
        other = AsyncStore(settings)
        hooks, sessions = AsyncValkeyHookTokens(other), AsyncInterfaceSessions(other)
        found = await hooks.check(hook)
        assert found is not None
        assert found.execution == "job-1"
        assert (await sessions.check(session)) is not None
        assert (await sessions.check(hook)) is None
        valkey.server.ask("SCRIPT", "FLUSH")
        ValkeyHookTokens(store).end_execution("live", "shop", "job-1")
        assert (await hooks.check(hook)) is None
        await other.close()

    asyncio.run(main())


def test_asynchronous_checks_survive_a_restart_and_fail_closed(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    with FaultProxy(valkey_server.port) as proxy:
        token = ValkeyHookTokens(open_store(proxy.url, prefix="p")).mint(
            "live", "shop", "job-1", "", HOUR_MS
        )

        async def main() -> None:
            store = AsyncStore(ValkeySettings(url=proxy.url, prefix="p", call_timeout_ms=5_000))
            hooks = AsyncValkeyHookTokens(store)
            assert await hooks.check(token) is not None
            valkey_server.stop()
            valkey_server.start()
            assert await hooks.check(token) is not None
            proxy.refuse()
            with pytest.raises(Retry):
                await hooks.check(token)
            await store.close()

        asyncio.run(main())


def test_expired_tokens_leave_the_server(store: Store, valkey: World) -> None:
    ValkeyHookTokens(store).mint("live", "shop", "job-1", "", 50)

    eventually(lambda: valkey.server.ask("KEYS", f"{valkey.prefix}:*") == [])
