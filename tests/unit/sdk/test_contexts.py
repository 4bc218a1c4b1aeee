"""Handlers that take a context: how they ask for it, and that it is theirs."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial, wraps
from typing import Any

import pytest

from cape_stream.adapters.simulated.channels import MemoryChannelStore, MemoryChannelWriter
from cape_stream.coordination.memory_tokens import MemoryHookTokens
from cape_stream.errors import Fenced
from cape_stream.model.status import FailureClass
from cape_stream.ports.channels import Realm
from cape_stream.realtime.context import RealtimeContext
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.settings import RealtimeSettings
from cape_stream.roles.executions import current_context
from cape_stream.runtime.worker_handler import JobOutcome
from cape_stream.sdk import App, Batch, Context, DeclarationError, EventResult
from cape_stream.sdk.runner import HandlerFunction
from tests.unit.sdk.apps import bound, clock, flights, job


class Stage:
    """One execution, and the history of its realm."""

    def __init__(self) -> None:
        self.store = MemoryChannelStore(lambda: 1_000_000)
        tokens = MemoryHookTokens()
        token = tokens.mint("live", "flight-ops", "e-1", "", 60_000)
        writer = MemoryChannelWriter(self.store)
        self.context = RealtimeContext(
            token, tokens, writer, GrantKeys.ephemeral(), RealtimeSettings()
        )

    def run(self, function: HandlerFunction) -> JobOutcome:
        handler = bound(function, contexts=lambda: self.context)
        if handler.is_async:
            return asyncio.run(handler.run_async(job(), 1_030_000, clock()))
        return handler.run(job(), 1_030_000, clock())

    @property
    def published(self) -> int:
        channel = self.store.state(Realm("live", "flight-ops")).channels.get("N1")
        return 0 if channel is None else len(channel.history)


def plain(batch: Batch, ctx: Context) -> None:
    ctx.publish(batch.subject, len(batch))


def generator(batch: Batch, ctx: Context) -> Iterator[EventResult]:
    for event in batch:
        yield event.done()
    ctx.publish(batch.subject, len(batch))


async def coroutine(batch: Batch, ctx: Context) -> None:
    await ctx.publish_async(batch.subject, len(batch))


async def stream(batch: Batch, ctx: Context) -> AsyncIterator[EventResult]:
    for event in batch:
        yield event.done()
    await ctx.publish_async(batch.subject, len(batch))


def by_keyword(batch: Batch, *, ctx: Context) -> None:
    ctx.publish(batch.subject, len(batch))


def in_another_place(flag: int, batch: Batch, ctx: Context) -> None:
    ctx.publish(batch.subject, flag)


@wraps(plain)
def wrapped(*arguments: Any, **named: Any) -> Any:
    return plain(*arguments, **named)


class Callback:
    def __call__(self, batch: Batch, ctx: Context) -> None:
        ctx.publish(batch.subject, len(batch))


TAKERS: list[HandlerFunction] = [
    *(plain, generator, coroutine, stream, by_keyword, wrapped, Callback()),
    partial(in_another_place, 1),
]


@pytest.mark.parametrize("number", range(len(TAKERS)))
def test_every_shape_of_handler_may_take_a_context(number: int) -> None:
    stage = Stage()

    outcome = stage.run(TAKERS[number])

    assert outcome.done == [1, 2, 3]
    assert stage.published == 1


def test_a_parameter_with_a_value_of_its_own_is_left_alone() -> None:
    seen: list[object] = []

    def own(batch: Batch, ctx: object = "mine") -> None:
        seen.append(ctx)

    stage = Stage()
    outcomes = [stage.run(own), stage.run(partial(plain, ctx=stage.context))]

    assert seen == ["mine"]
    assert [each.done for each in outcomes] == [[1, 2, 3], [1, 2, 3]]


def test_the_first_parameter_is_the_batch_whatever_its_name() -> None:
    seen: list[str] = []

    Stage().run(lambda ctx: seen.append(ctx.subject))

    assert seen == ["N1"]


def test_an_app_knows_who_takes_a_context_and_says_where_there_is_none() -> None:
    app = App("flight-ops")
    topology = flights(app).topology("delays")
    topology.handler(name="with")(plain)
    topology.handler(name="without")(lambda batch: None)

    assert [key.lambda_id for key in app.context_takers] == ["with"]
    with pytest.raises(DeclarationError, match=r"'with' of topology 'delays'.* takes a context"):
        app.job_handlers()
    assert len(app.job_handlers(current_context)) == 2


def test_what_the_context_refuses_fails_the_events() -> None:
    stage = Stage()
    stage.context.close()

    outcome = stage.run(plain)

    assert {each.failure_class for each in outcome.failures} == {FailureClass.TRANSIENT}
    assert stage.published == 0


def test_there_is_no_context_outside_an_execution() -> None:
    with pytest.raises(Fenced, match="outside an execution"):
        current_context()
