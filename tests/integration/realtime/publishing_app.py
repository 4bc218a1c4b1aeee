"""An App whose handlers publish and grant, in every place where a handler may run.

Each also tries the context of its predecessor, and publishes what came of that.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from cape_stream import App, Batch, CapeError, Context, EventResult
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.coordination.executions import hook_token

source = MemoryEventSource()
app = App("publishes", partitions=1)
rooms = app.domain("rooms", source=source)
WHERE = ("thread", "loop", "stream", "child")
kept: dict[str, Context] = {}


def fill(folder: Path, number: int) -> None:
    """One more event, the same for every handler."""
    source.append("tea", number, str(folder).encode())


@rooms.topology("thread", ordering="ordered").handler(max_batch=1)
def in_a_thread(batch: Batch, ctx: Context) -> None:
    """The usual handler."""
    _keep_grant(batch, "thread", ctx.grant(["room"]).token)
    ctx.publish("room", _said("thread", batch, ctx, _late("thread")))


@rooms.topology("loop", ordering="ordered").handler(max_batch=1)
async def on_the_loop(batch: Batch, ctx: Context) -> None:
    """A coroutine."""
    _keep_grant(batch, "loop", (await ctx.grant_async(["room"])).token)
    await ctx.publish_async("room", _said("loop", batch, ctx, await _late_async("loop")))


@rooms.topology("stream", ordering="ordered").handler(max_batch=1)
async def as_a_stream(batch: Batch, ctx: Context) -> AsyncIterator[EventResult]:
    """An asynchronous generator."""
    late = await _late_async("stream")
    for event in batch:
        _keep_grant(batch, "stream", (await ctx.grant_async(["room"])).token)
        await ctx.publish_async("room", _said("stream", batch, ctx, late))
        yield event.done()


@rooms.topology("child", ordering="ordered").handler(max_batch=1, executor="process")
def in_a_child(batch: Batch, ctx: Context) -> None:
    """A child process, which has connections of its own."""
    _keep_grant(batch, "child", ctx.grant(["room"]).token)
    ctx.publish("room", _said("child", batch, ctx, _late("child")))


def _late(where: str) -> str:
    """What the context of the execution before says now."""
    if where not in kept:
        return "first"
    found = kept[where]
    acts: list[Callable[[], object]] = [
        lambda: found.publish("room", {"where": where, "leaked": True}),
        lambda: found.grant(["room"]),
        lambda: found.revoke(holder="somebody"),
    ]
    said = []
    for act in acts:
        try:
            act()
            said.append("allowed")
        except CapeError as error:
            said.append(type(error).__name__)
    return "+".join(said)


async def _late_async(where: str) -> str:
    """The same by its asynchronous face."""
    if where not in kept:
        return "first"
    found = kept[where]
    acts: list[Callable[[], Awaitable[object]]] = [
        lambda: found.publish_async("room", {"where": where, "leaked": True}),
        lambda: found.grant_async(["room"]),
        lambda: found.revoke_async(holder="somebody"),
    ]
    said = []
    for act in acts:
        try:
            await act()
            said.append("allowed")
        except CapeError as error:
            said.append(type(error).__name__)
    return "+".join(said)


def _said(where: str, batch: Batch, ctx: Context, late: str) -> dict[str, object]:
    kept[where] = ctx
    return {
        "where": where,
        "number": batch.events[0].sequence,
        "late": late,
        "execution": ctx.scope.execution == f"{batch.job_id}.{batch.attempt}",
        "subject": ctx.scope.subject,
        "environment": ctx.scope.environment,
        "token": hook_token(),
    }


def _keep_grant(batch: Batch, where: str, token: str) -> None:
    folder = Path(batch.events[0].payload.decode())
    (folder / f"{where}.grant").write_text(token)
