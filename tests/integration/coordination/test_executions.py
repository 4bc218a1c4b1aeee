"""A hook token is minted for an execution of a job, and dies with it."""

import asyncio
import pickle
import threading
import time
from contextvars import copy_context

import pytest

from cape_stream.coordination.credentials import ValkeyHookTokens
from cape_stream.coordination.executions import executing, executing_async, hook_token
from cape_stream.coordination.memory_tokens import MemoryHookTokens
from cape_stream.coordination.store import Store
from cape_stream.errors import Fenced, Retry
from cape_stream.ports.credentials import HookTokens
from cape_stream.roles.executions import ExecutionHandler, Executions
from cape_stream.runtime.worker_handler import Executor
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.integration.run_app import app
from tests.valkey import World

NAMES = ("live", "shop", "job-1.1", "acct-7")


@pytest.fixture(params=["valkey", "memory"])
def tokens(request: pytest.FixtureRequest) -> HookTokens:
    if request.param == "memory":
        return MemoryHookTokens()
    store: Store = request.getfixturevalue("store")
    return ValkeyHookTokens(store)


def test_token_lives_as_long_as_its_execution(tokens: HookTokens) -> None:
    with executing(tokens, *NAMES, 60_000):
        token = hook_token()
        assert hook_token() == token
        scope = tokens.check(token)
        assert scope is not None
        assert (scope.environment, scope.app, scope.execution, scope.subject) == NAMES

    assert tokens.check(token) is None
    with pytest.raises(Fenced, match="outside an execution"):
        hook_token()


def test_execution_that_outruns_its_deadline_gets_another_token(tokens: HookTokens) -> None:
    """Heartbeats let a job run for many times its first lease."""
    with executing(tokens, *NAMES, 1) as execution:
        first = execution.token()
        time.sleep(0.01)
        second = execution.token()
        assert first != second
        assert tokens.check(second) is not None

    assert [tokens.check(each) for each in (first, second)] == [None, None]


def test_token_dies_when_the_handler_fails(tokens: HookTokens) -> None:
    kept: list[str] = []

    def run() -> None:
        with executing(tokens, *NAMES, 60_000):
            kept.append(hook_token())
            raise ValueError("a defect of the handler")

    with pytest.raises(ValueError, match="defect"):
        run()
    assert tokens.check(kept[0]) is None


def test_thread_that_outlives_its_execution_gets_no_token(tokens: HookTokens) -> None:
    refused: list[bool] = []
    go = threading.Event()
    context: list[object] = []

    def late() -> None:
        go.wait(30)
        try:
            context.append(hook_token())
        except Fenced:
            refused.append(True)

    with executing(tokens, *NAMES, 60_000):
        thread = threading.Thread(target=copy_context().run, args=(late,))
        thread.start()
    go.set()
    thread.join()

    assert refused == [True]
    assert context == []


def test_executions_of_one_loop_have_tokens_of_their_own() -> None:
    tokens = MemoryHookTokens()

    async def one(number: int) -> str:
        with executing(tokens, "live", "shop", f"job-{number}", "", 60_000):
            await asyncio.sleep(0)
            scope = tokens.check(hook_token())
            assert scope is not None
            return scope.execution

    async def main() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(5)))

    assert asyncio.run(main()) == [f"job-{number}" for number in range(5)]


def test_the_end_of_a_token_does_not_hold_up_the_event_loop() -> None:
    """Its server may take its time; here it takes until the loop has done something else."""
    elsewhere = threading.Event()
    waited: list[bool] = []

    class Slow(MemoryHookTokens):
        def end_execution(self, environment: str, app: str, execution: str) -> int:
            waited.append(elsewhere.wait(20))
            return super().end_execution(environment, app, execution)

    tokens = Slow()

    async def main() -> str:
        async with executing_async(tokens, *NAMES, 60_000) as execution:
            token = execution.token()
            asyncio.get_running_loop().call_soon(elsewhere.set)
        return token

    token = asyncio.run(main())

    assert waited == [True]
    assert tokens.check(token) is None


def test_execution_that_asks_for_none_costs_nothing(store: Store, valkey: World) -> None:
    with executing(ValkeyHookTokens(store), *NAMES, 60_000):
        pass

    assert store.figures["valkey_calls"] == 0


def test_execution_goes_on_when_no_token_can_be_minted(
    open_store: OpenStore, fault_proxy: FaultProxy
) -> None:
    tokens = ValkeyHookTokens(open_store(fault_proxy.url))
    with executing(tokens, *NAMES, 60_000):
        token = hook_token()
        fault_proxy.refuse()
    with executing(tokens, *NAMES, 60_000), pytest.raises(Retry):
        hook_token()
    fault_proxy.heal()

    assert token.startswith("hook1.")


def test_worker_makes_every_job_an_execution_where_it_can(valkey: World) -> None:
    executions = Executions(app, {"CAPE_VALKEY_URL": valkey.url, "CAPE_ENVIRONMENT": "dev"})

    here = executions.handlers(Executor.THREAD)
    elsewhere = pickle.loads(pickle.dumps(executions.handlers(Executor.PROCESS)))

    assert isinstance(executions.tokens, ValkeyHookTokens)
    assert isinstance(Executions(app, {}).tokens, MemoryHookTokens)
    for handlers in (here, elsewhere):
        assert {type(handler) for handler in handlers.values()} == {ExecutionHandler}
    executions.close()
