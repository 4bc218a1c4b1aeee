"""One suite for hook tokens, on the server and in memory."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cape_stream.coordination.credentials import ValkeyHookTokens
from cape_stream.coordination.memory_tokens import MemoryHookTokens
from cape_stream.coordination.scopes import HOOK_LIFETIME_MAX_MS
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.coordination.store import Store
from cape_stream.errors import Fenced, Reject
from cape_stream.ports.credentials import HookTokens, Scope
from tests.waiting import eventually

MINUTE_MS = 60_000


@pytest.fixture(params=["valkey", "memory"])
def tokens(request: pytest.FixtureRequest) -> Iterator[HookTokens]:
    if request.param == "memory":
        yield MemoryHookTokens()
        return
    world = request.getfixturevalue("valkey")
    store = Store(ValkeySettings(url=world.url, prefix=world.prefix, call_timeout_ms=5_000))
    yield ValkeyHookTokens(store)
    store.close()


def test_check_returns_the_scope_the_token_was_minted_with(tokens: HookTokens) -> None:
    token = tokens.mint("live", "shop", "job-1", "acct-7", MINUTE_MS)

    scope = tokens.check(token)

    assert scope is not None
    named = replace(scope, expires_ms=0, remaining_ms=0, token_id="")
    assert named == Scope("live", "shop", "job-1", "acct-7", 0, 0, "")
    assert 0 < scope.remaining_ms <= MINUTE_MS
    assert scope.token_id in token


def test_check_keeps_odd_names_byte_for_byte(tokens: HookTokens) -> None:
    names = ("dev{1}", "ap|p", 'job "x" \n%00é', "né|}{😀")

    scope = tokens.check(tokens.mint(*names, MINUTE_MS))

    assert scope is not None
    assert (scope.environment, scope.app, scope.execution, scope.subject) == names


def test_token_expires_by_itself(tokens: HookTokens) -> None:
    token = tokens.mint("live", "shop", "job-1", "", 50)

    eventually(lambda: tokens.check(token) is None)
    assert not tokens.revoke(token)


def test_revoke_ends_one_token_at_once_and_only_once(tokens: HookTokens) -> None:
    first, second = (tokens.mint("live", "shop", "job-1", "", MINUTE_MS) for _ in range(2))

    assert tokens.revoke(first)

    assert tokens.check(first) is None
    assert tokens.check(second) is not None
    assert not tokens.revoke(first)


def test_end_execution_ends_its_tokens_and_no_others(tokens: HookTokens) -> None:
    ended = [tokens.mint("live", "shop", "job-1", "", MINUTE_MS) for _ in range(3)]
    others = [
        tokens.mint("live", "shop", "job-2", "", MINUTE_MS),
        tokens.mint("dev", "shop", "job-1", "", MINUTE_MS),
        tokens.mint("live", "blog", "job-1", "", MINUTE_MS),
    ]

    count = tokens.end_execution("live", "shop", "job-1")

    assert count == 3
    assert [tokens.check(token) for token in ended] == [None] * 3
    assert None not in [tokens.check(token) for token in others]
    assert tokens.end_execution("live", "shop", "job-1") == 0


def test_mint_is_refused_after_the_execution_has_ended(tokens: HookTokens) -> None:
    """A thread that outlives its execution must not open the door again."""
    tokens.end_execution("live", "shop", "job-1")

    with pytest.raises(Fenced, match="has ended"):
        tokens.mint("live", "shop", "job-1", "", MINUTE_MS)


def test_mint_is_refused_when_an_execution_mints_without_end(tokens: HookTokens) -> None:
    for _ in range(256):
        tokens.mint("live", "shop", "job-1", "", MINUTE_MS)

    with pytest.raises(Reject, match="at most 256"):
        tokens.mint("live", "shop", "job-1", "", MINUTE_MS)
    assert tokens.mint("live", "shop", "job-2", "", MINUTE_MS)


@pytest.mark.parametrize("lifetime_ms", [0, -1, HOOK_LIFETIME_MAX_MS + 1, 2**63])
def test_mint_refuses_a_lifetime_out_of_range(tokens: HookTokens, lifetime_ms: int) -> None:
    with pytest.raises(Reject, match=str(lifetime_ms)):
        tokens.mint("live", "shop", "job-1", "", lifetime_ms)


@pytest.mark.parametrize("name", ["", "a" * 1_025, "a\0b", "\ud800"])
def test_mint_refuses_names_that_cannot_be_ones(tokens: HookTokens, name: str) -> None:
    with pytest.raises(Reject):
        tokens.mint(name, "shop", "job-1", "", MINUTE_MS)
    with pytest.raises(Reject):
        tokens.mint("live", "shop", name, "", MINUTE_MS)


def test_check_refuses_whatever_is_no_living_token(tokens: HookTokens) -> None:
    token = tokens.mint("live", "shop", "job-1", "", MINUTE_MS)
    kind, locator, token_id, secret = token.split(".")
    other_secret = secret[:-2] + ("AA" if secret[-2:] != "AA" else "BB")
    wrong = [
        *("", ".", "...", "hook1", "a.b.c.d", "é" * 60, "\ud800", "x" * 100_000, token + "\n"),
        *(" " + token, token + "x", token[:-1], token.upper(), token.replace("hook", "session")),
        f"{kind}.{locator}.{token_id}.{other_secret}",
        f"{kind}.{locator}.{token_id[::-1]}.{secret}",
    ]

    assert [text for text in wrong if tokens.check(text) is not None] == []
    assert [text for text in wrong if tokens.revoke(text)] == []
    assert tokens.check(token) is not None
