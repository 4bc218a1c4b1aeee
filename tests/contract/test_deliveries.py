"""The delivery store port: a SQLite file on one machine, and PostgreSQL for a fleet."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy.engine import make_url

from cape_stream.adapters.deliveries_sql import SqlDeliveries
from cape_stream.errors import Reject, Retry
from cape_stream.ports.deliveries import DeliveryEvent, DeliveryStore, ReputationSignal
from deploy.local.ports import free_ports
from tests.tidy.tree import PROJECT

Scene = Callable[[DeliveryStore, DeliveryStore], Coroutine[Any, Any, None]]

WRITER = """\
import asyncio, sys
from cape_stream.adapters.deliveries_sql import SqlDeliveries
from cape_stream.ports.deliveries import DeliveryEvent

async def write(url, run, mails):
    store = SqlDeliveries(url)
    new = 0
    for number in range(mails):
        new += await store.record([
            DeliveryEvent(message_id=f"{run}-{number}", kind="delivery", recipient=name, at_ms=1)
            for name in ("b@x", "a@x")
        ])
    store.close()
    print(new)

asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def database_of_its_own(server: str) -> str:
    """The URL of a new database on a PostgreSQL."""
    name = f"d{uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as link:
        link.execute(f"CREATE DATABASE {name}")
    return str(make_url(server).set(database=name))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A database without a table."""
    if request.param == "sqlite":
        folder: Path = request.getfixturevalue("tmp_path")
        return f"sqlite:///{folder / 'deliveries.db'}"
    return database_of_its_own(request.getfixturevalue("postgres_url"))


@pytest.fixture
def play(url: str) -> Callable[[Scene], None]:
    """Play a scene on the store as one process has it, and as another one does."""

    def run(scene: Scene) -> None:
        one, other = SqlDeliveries(url), SqlDeliveries(url)
        try:
            asyncio.run(scene(one, other))
        finally:
            one.close()
            other.close()

    return run


def bounce(message_id: str, recipient: str = "a@x", **changes: Any) -> DeliveryEvent:
    event = DeliveryEvent(
        message_id=message_id,
        kind="bounce",
        recipient=recipient,
        at_ms=1_772_446_533_000,
        feedback_id=f"f-{message_id}",
        detail="Permanent/General",
    )
    return replace(event, **changes)


def alarm(account: str, name: str = "rate", **changes: Any) -> ReputationSignal:
    signal = ReputationSignal(
        account=account,
        alarm=name,
        metric="Reputation.BounceRate",
        state="ALARM",
        threshold=0.04,
        at_ms=5_000,
        reason="crossed",
    )
    return replace(signal, **changes)


def test_event_comes_back_as_it_was_to_whoever_asks(play: Any) -> None:
    async def scene(one: DeliveryStore, other: DeliveryStore) -> None:
        mail = uuid4().hex
        events = [
            bounce(mail, "naïve+tag@example.com", is_certain=False),
            bounce(mail, "b@x", feedback_id=None, at_ms=1),
        ]

        assert await one.record(events) == 2

        assert await other.history(mail) == [events[1], events[0]]
        assert await other.history("unheard of") == []

    play(scene)


def test_repeat_changes_nothing_whoever_brings_it(play: Any) -> None:
    async def scene(one: DeliveryStore, other: DeliveryStore) -> None:
        mail = uuid4().hex
        assert await one.record([bounce(mail)]) == 1

        same = bounce(mail, feedback_id=None, detail="told in the other form")
        by_feedback = bounce(f"{mail}-2", feedback_id=f"f-{mail}")

        assert await other.record([bounce(mail)]) == 0
        assert await other.record([same]) == 0
        assert await other.record([by_feedback]) == 0
        assert await other.record([bounce(mail), bounce(mail, "b@x")]) == 1
        assert [each.recipient for each in await one.history(mail)] == ["a@x", "b@x"]
        assert await one.record([]) == 0

    play(scene)


def test_what_may_happen_again_and_again_is_told_apart_by_its_occurrence(play: Any) -> None:
    async def scene(one: DeliveryStore, other: DeliveryStore) -> None:
        mail = uuid4().hex
        opened = bounce(mail, kind="open", feedback_id=None)
        times = [replace(opened, at_ms=at_ms, occurrence=at_ms) for at_ms in (7, 8, 7)]

        assert await one.record(times[:1]) == 1
        assert await other.record(times) == 1

    play(scene)


def test_signal_is_new_once_and_the_newest_of_each_alarm_is_found(play: Any) -> None:
    async def scene(one: DeliveryStore, other: DeliveryStore) -> None:
        account = uuid4().hex[:12]
        over = alarm(account, state="OK", at_ms=6_000, threshold=None)
        second = alarm(account, "complaints", metric="Reputation.ComplaintRate")
        stranger = alarm(f"{account}-other")

        assert await one.record_signal(over)
        assert await other.record_signal(alarm(account))  # older, and late
        assert not await one.record_signal(alarm(account))
        for each in (second, stranger):
            assert await other.record_signal(each)

        assert await one.newest_signals(account) == [second, over]
        everybody = await one.newest_signals()
        assert {over, second, stranger} <= set(everybody)

    play(scene)


def test_alarm_wins_over_what_else_is_said_of_the_same_moment(play: Any) -> None:
    async def scene(one: DeliveryStore, other: DeliveryStore) -> None:
        account = uuid4().hex[:12]
        await one.record_signal(alarm(account, state="OK"))
        await other.record_signal(alarm(account))

        assert [each.state for each in await one.newest_signals(account)] == ["ALARM"]

    play(scene)


def test_stores_that_begin_in_one_moment_make_the_tables_together(url: str) -> None:
    stores = [SqlDeliveries(url) for _ in range(8)]

    async def scene() -> list[int]:
        mail = uuid4().hex
        return await asyncio.gather(*(store.record([bounce(mail)]) for store in stores))

    new = asyncio.run(scene())

    assert sum(new) == 1
    for store in stores:
        store.close()


def test_writers_in_many_processes_store_each_event_once(url: str) -> None:
    run, mails = uuid4().hex, 25
    command = [sys.executable, "-c", WRITER, url, run, str(mails)]
    writers = [
        subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]

    ends = [writer.communicate(timeout=50) for writer in writers]

    assert [writer.returncode for writer in writers] == [0, 0, 0], ends
    assert sum(int(output) for output, _ in ends) == 2 * mails


def test_database_that_is_away_is_a_retry_that_hides_the_password() -> None:
    (port,) = free_ports(1)
    store = SqlDeliveries(f"postgresql://user:hush-hush@127.0.0.1:{port}/none")

    async def scene() -> None:
        with pytest.raises(Retry, match="the delivery store: ") as found:
            await store.newest_signals()
        assert "hush-hush" not in str(found.value)

    asyncio.run(scene())
    store.close()


def test_text_the_database_never_takes_is_rejected(postgres_url: str) -> None:
    store = SqlDeliveries(postgres_url)

    async def scene() -> None:
        with pytest.raises(Reject, match="will never take this"):
            await store.record([bounce(uuid4().hex, detail="a\x00b")])

    asyncio.run(scene())
    store.close()


@pytest.mark.parametrize("url", ["mysql://h/d", "postgresql//user:hush-hush@h", ""])
def test_url_of_no_database_we_know_is_refused_without_its_text(url: str) -> None:
    with pytest.raises(ValueError, match="delivery store") as found:
        SqlDeliveries(url)

    assert "hush-hush" not in str(found.value)
