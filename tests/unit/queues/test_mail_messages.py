"""B42: alarms on the account's reputation; and mail in chunks."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from cape_stream.adapters.deliveries_sql import SqlDeliveries
from cape_stream.adapters.local import LocalLimit, MemoryProgress, SqliteProgress
from cape_stream.adapters.simulated.virtual_loop import VirtualClock
from cape_stream.errors import Reject, Retry
from cape_stream.ports.limits import CallOutcome
from cape_stream.ports.mail import Mail
from cape_stream.queues.context import HandedBackError, JobContext
from cape_stream.queues.contract import Contract, Decoded
from cape_stream.queues.messages import email_send, ses_reputation
from tests.unit.queues.test_envelopes import read, unwrapped
from tests.unit.queues.worlds import World, in_virtual_time


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlDeliveries]:
    found = SqlDeliveries(f"sqlite:///{tmp_path / 'deliveries.db'}")
    yield found
    found.close()


def run_real(scene: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """SQLite has a thread, so these scenes live in real time; nothing in them is timed."""
    return asyncio.run(scene())


def value(contract: Contract, body: str) -> Any:
    decoded = contract.decode(body)
    assert isinstance(decoded, Decoded), decoded
    return decoded.value


def context(world: World | None = None) -> JobContext:
    async def extend(seconds: int) -> None: ...

    clock = world.clock if world else VirtualClock(asyncio.get_running_loop())

    return JobContext(
        queue="q",
        message_id="m",
        attempt=1,
        clock=clock,
        deadline_ms=clock.now_ms() + 1_000_000,
        extend=extend,
    )


def test_alarm_is_stored_shrinks_the_limit_and_pauses_until_it_is_over(
    store: SqlDeliveries,
) -> None:
    limit = LocalLimit("ses", start=10)
    handler = ses_reputation.SesReputationHandler(store, limit)
    over = json.loads(unwrapped("ses-reputation.json"))
    over |= {"NewStateValue": "OK", "StateChangeTime": "2026-03-02T13:00:00.000+0000"}

    async def scene() -> tuple[Any, Any, Any]:
        alarm = value(ses_reputation.CONTRACT, read("ses-reputation.json"))
        await handler(alarm, context())
        await handler(alarm, context())
        during = limit.paused, limit.ceiling
        stored = await store.newest_signals("111122223333")
        ok = value(ses_reputation.CONTRACT, json.dumps(over))
        await handler(ok, context())
        return during, stored, limit.paused

    during, stored, after = run_real(scene)

    assert during == ("SES reputation: ses-bounce-rate-high", 5.0)
    (signal,) = stored
    assert (signal.state, signal.metric, signal.threshold) == (
        "ALARM",
        "Reputation.BounceRate",
        0.04,
    )
    assert signal.at_ms == 1_772_452_800_000
    assert after is None


class Post:
    """A mailer that does as told."""

    def __init__(self, *faults: Exception | None) -> None:
        self.sent: list[str] = []
        self._faults = list(faults)

    async def send(self, mail: Mail) -> str:
        fault = self._faults.pop(0) if self._faults else None
        if fault is not None:
            raise fault
        self.sent.append(mail.recipient)
        return f"id-{len(self.sent)}"


def chunk(*recipients: str) -> email_send.Chunk:
    return email_send.Chunk(
        chunk_id="c", tenant="t", sender="s@x", subject="s", text="t", recipients=recipients
    )


@in_virtual_time
async def test_chunk_that_was_throttled_goes_on_behind_its_last_mail(world: World) -> None:
    limit = LocalLimit("ses", start=8)
    post = Post(None, Retry("Throttling", 5_000))
    handler = email_send.EmailSendHandler(post, limit, MemoryProgress())

    with pytest.raises(Retry):
        await handler(chunk("a@x", "b@x", "c@x"), context(world))
    await handler(chunk("a@x", "b@x", "c@x"), context(world))

    assert post.sent == ["a@x", "b@x", "c@x"]
    assert limit.ceiling == 4.0
    assert world.now_s >= 5


@in_virtual_time
async def test_mail_that_is_refused_does_not_stop_the_chunk(world: World) -> None:
    post = Post(Reject("MessageRejected: address"))
    handler = email_send.EmailSendHandler(post, LocalLimit("ses"), MemoryProgress())

    await handler(chunk("bad", "b@x"), context(world))

    assert post.sent == ["b@x"]
    assert handler.refused == 1


@in_virtual_time
async def test_chunk_is_handed_back_between_two_mails_when_the_process_stops(
    world: World,
) -> None:
    post = Post()
    handler = email_send.EmailSendHandler(post, LocalLimit("ses"), MemoryProgress())
    stopping = context(world)
    stopping.stop_soon()

    with pytest.raises(HandedBackError):
        await handler(chunk("a@x"), stopping)

    assert post.sent == []


@in_virtual_time
async def test_paused_limit_gives_no_permit_and_the_chunk_comes_later(world: World) -> None:
    limit = LocalLimit("ses")
    await limit.pause("alarm")
    handler = email_send.EmailSendHandler(Post(), limit, MemoryProgress())

    with pytest.raises(Retry, match="no permit"):
        await handler(chunk("a@x"), context(world))


@in_virtual_time
async def test_burst_of_refusals_shrinks_once_and_success_grows_again(world: World) -> None:
    limit = LocalLimit("ses", start=8, most=8)
    permits = [await limit.acquire(0) for _ in range(9)]
    assert permits[8] is None

    for permit in permits[:8]:
        await limit.release(str(permit), CallOutcome.REFUSED)
    shrunk = limit.ceiling
    for _ in range(40):
        held = [await limit.acquire(0) for _ in range(int(limit.ceiling))]
        for permit in held:
            await limit.release(str(permit), CallOutcome.SUCCESS)

    assert shrunk == 4.0
    assert limit.ceiling == 8.0


def test_progress_in_sqlite_is_seen_by_another_process(tmp_path: Path) -> None:
    one, other = (SqliteProgress(tmp_path / "progress.db") for _ in range(2))

    async def scene() -> list[int]:
        await one.add("a")
        await other.add("a")
        await one.advance("b", 5)
        await other.advance("b", 3)
        found = [await one.read("a"), await other.read("b"), await one.read("c")]
        await one.forget("a")
        return [*found, await other.read("a")]

    assert run_real(scene) == [2, 5, 0, 0]
    one.close()
    other.close()
