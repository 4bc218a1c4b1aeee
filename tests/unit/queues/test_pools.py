"""Which queues a worker opens: those of its pool that it has code for, under the right identity."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.deliveries_sql import SqlDeliveries
from cape_stream.adapters.local import LocalLimit, MemoryProgress, MemoryResults
from cape_stream.errors import Fatal, Retry
from cape_stream.model.job import Job
from cape_stream.queues.equipment import Equipment, Services
from cape_stream.queues.fleet import FLEET, Pool, queues_of
from cape_stream.queues.messages.jobs import JobsHandler
from cape_stream.roles.processor import allowed, lane_settings, open_lanes
from cape_stream.roles.settings import Settings
from cape_stream.roles.settings_loading import load_settings
from tests.unit.queues.test_bad_messages import Length, Log, Store
from tests.unit.queues.test_mail_messages import Post
from tests.unit.queues.test_work_messages import FUNCTIONS, Corpus
from tests.unit.queues.worlds import World, in_virtual_time

TRAINER = "arn:aws:sts::111122223333:assumed-role/trainer/"


class Gym:
    async def train(self, job: object, context: object) -> None: ...


class Runner:
    async def run(self, job: Job, remaining_ms: int) -> None: ...


class Caller:
    """Who we are to AWS, once it answers."""

    def __init__(self, name: str, *, failures: int = 0) -> None:
        self.name = name
        self.asked = 0
        self._failures = failures

    async def caller(self) -> str:
        self.asked += 1
        if self.asked <= self._failures:
            raise Retry("the token is not valid")
        return self.name


EVERYTHING = Equipment(
    steps=FUNCTIONS,
    ingestor=Corpus(),
    scanners=[Length()],
    scan_log=Log(),
    trainer=Gym(),
    jobs=JobsHandler(AvroCodec(), Runner()),
)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    deliveries = SqlDeliveries(f"sqlite:///{tmp_path / 'deliveries.db'}")
    yield Services(
        results=MemoryResults(),
        progress=MemoryProgress(),
        deliveries=deliveries,
        mail_limit=LocalLimit("ses"),
        mailer=Post(),
        objects=Store(),
    )
    deliveries.close()


def opened(pool: Pool, equipment: Equipment, services: Services, *, missing: str = "") -> list[str]:
    """Names of the lanes that a worker of a pool opens where all queues but one are there."""

    @in_virtual_time
    async def scene(world: World) -> list[str]:
        for spec in FLEET:
            if spec.name != missing:
                world.queue(f"cape-{spec.name}")
        lanes = await open_lanes(
            *(queues_of(pool), world.server, equipment, services, Settings()),
            asyncio.Event(),
        )
        return [lane.name for lane in lanes]

    return scene()


def test_worker_of_each_pool_opens_its_queues_and_no_others(services: Services) -> None:
    found = {pool: set(opened(pool, EVERYTHING, services)) for pool in Pool}

    everything = {spec.name for spec in FLEET}
    assert found[Pool.BULK] == {"bulk-ingest"}
    assert found[Pool.TRAINING] == {"training"}
    assert found[Pool.DEV] == everything
    assert found[Pool.GENERAL] == everything - {"bulk-ingest", "training"}


def test_queue_without_code_is_left_to_a_worker_that_has_it(services: Services) -> None:
    assert opened(Pool.GENERAL, Equipment(), services) == [
        "email-send",
        "ses-events",
        "ses-reputation",
    ]
    with pytest.raises(Fatal, match="no code for any queue of this pool"):
        opened(Pool.BULK, Equipment(), services)


def test_queue_that_is_missing_is_named_with_the_account(services: Services) -> None:
    with pytest.raises(Fatal, match="account 111122223333 has no queue 'cape-ingest'"):
        opened(Pool.GENERAL, EVERYTHING, services, missing="ingest")


def allow(pool: Pool, identity: Any, wanted: str = "") -> set[str]:
    settings = load_settings({"processor.training_identity": wanted}, {}, "/dev/null")

    @in_virtual_time
    async def scene(world: World) -> set[str]:
        specs = await allowed(pool, settings, identity, asyncio.Event())
        return {spec.name for spec in specs}

    return scene()


def test_training_is_read_by_the_trainer_only() -> None:
    stranger, trainer = Caller("arn:aws:sts::999999999999:user/me"), Caller(f"{TRAINER}pod-1")

    assert allow(Pool.TRAINING, trainer, TRAINER) == {"training"}
    for pool in (Pool.TRAINING, Pool.DEV):
        with pytest.raises(Fatal, match=f"the training queue is for {TRAINER}"):
            allow(pool, stranger, TRAINER)
    with pytest.raises(Fatal, match=r"needs processor\.training_identity"):
        allow(Pool.TRAINING, trainer)


def test_nobody_is_asked_who_they_are_for_queues_that_all_may_read() -> None:
    stranger = Caller("arn:aws:sts::999999999999:user/me")

    assert allow(Pool.BULK, stranger, TRAINER) == {"bulk-ingest"}
    assert "training" not in allow(Pool.GENERAL, stranger, TRAINER)
    assert stranger.asked == 0


def test_identity_that_cannot_be_told_yet_is_waited_for() -> None:
    trainer = Caller(f"{TRAINER}pod-1", failures=3)

    assert allow(Pool.TRAINING, trainer, TRAINER) == {"training"}
    assert trainer.asked == 4


def test_ceiling_of_a_process_lowers_that_of_its_queues_and_never_raises_it() -> None:
    own = queues_of(Pool.BULK)[0].settings
    low, high = (
        load_settings({"processor.ceiling_s": value}, {}, "/dev/null").processor
        for value in (60, 1_800)
    )

    assert lane_settings(own, low).ceiling_s == 60
    assert lane_settings(lane_settings(own, low), high).ceiling_s == 60
