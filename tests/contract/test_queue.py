"""The queue port: the strict queue in virtual time, and two SQS servers through boto3."""

import asyncio
from collections.abc import Iterator

import pytest

from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.errors import Fatal, Reject
from cape_stream.ports.queue import (
    MESSAGE_BYTES_MAX,
    FailureKind,
    OutgoingMessage,
    Queue,
    QueueMessage,
)
from cape_stream.queues.contract import identifier
from tests.contract.implementations import expect_what_is_declared, needs
from tests.contract.queue_implementations import (
    QUEUES,
    MakesQueues,
    QueueImplementation,
    Site,
)


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, SqsServer]]:
    opened: dict[str, SqsServer] = {}
    yield opened
    for server in opened.values():
        asyncio.run(server.close())


@pytest.fixture(params=QUEUES)
def site(request: pytest.FixtureRequest, servers: dict[str, SqsServer]) -> Site:
    implementation: QueueImplementation = request.param
    expect_what_is_declared(request, implementation)
    return implementation.open(request, servers)


def out(body: str, **options: str) -> OutgoingMessage:
    return OutgoingMessage(body, **options)  # type: ignore[arg-type]  # only texts are given


async def put(queue: Queue, *messages: OutgoingMessage) -> None:
    assert await queue.send(messages) == [None] * len(messages)


async def take(queue: Queue, count: int = 10, visibility_s: int = 30) -> list[QueueMessage]:
    return await queue.receive(count, 1, visibility_s)


def test_message_arrives_as_it_was_sent(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, OutgoingMessage("naïve & <b>", {"kind": "café"}))

        (found,) = await take(queue)

        assert (found.body, found.attributes) == ("naïve & <b>", {"kind": "café"})
        assert found.receive_count == 1
        assert found.sent_ms > 0
        assert await take(queue) == []

    site.play(scene)


def test_tenant_of_a_standard_queue_comes_along(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, out("b", group="tenant-7"))

        (found,) = await take(queue)

        assert found.group == "tenant-7"

    site.play(scene)


@pytest.mark.parametrize("tenant", ["Müller & Söhne", "x" * 300, "a b", "\u0000", "plain/t-7"])
def test_tenant_of_any_name_becomes_a_group_that_the_queue_takes(site: Site, tenant: str) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, out("b", group=identifier(tenant)))

        (found,) = await take(queue)

        assert found.group == identifier(tenant)

    site.play(scene)


@needs("group of other characters is refused")
@pytest.mark.parametrize("group", ["a b", "ä", "x" * 129])
def test_group_of_other_characters_is_refused(site: Site, group: str) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())

        sent: list[object] = []
        try:
            sent += await queue.send([out("b", group=group)])
        except Reject as error:
            sent.append(error)

        assert sent != [None]
        assert await take(queue) == []

    site.play(scene)


@needs("message of 1 MiB is taken")
def test_message_of_the_size_that_the_queue_names_is_taken(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, out("x" * queue.traits.bytes_max))

        (found,) = await take(queue)

        assert len(found.body) == queue.traits.bytes_max

    site.play(scene)


def test_message_over_the_limit_of_the_service_is_not_sent(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())

        sent: list[object] = []
        try:
            sent += await queue.send([out("x" * (MESSAGE_BYTES_MAX + 1))])
        except Reject as error:
            sent.append(error)

        assert sent != [None]
        assert await take(queue) == []

    site.play(scene)


def test_deleted_message_does_not_come_back(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, out("a"), out("b"))
        found = await take(queue, visibility_s=1)
        while len(found) < 2:
            found += await take(queue, visibility_s=1)

        assert await queue.delete([each.receipt for each in found]) == [None, None]
        await asyncio.sleep(1.5)

        assert await take(queue) == []

    site.play(scene)


def test_message_shows_up_again_when_its_visibility_ends(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, out("a"))
        (first,) = await take(queue, visibility_s=1)

        await asyncio.sleep(1.2)
        (second,) = await take(queue)

        assert second.message_id == first.message_id
        assert second.receipt != first.receipt
        assert second.receive_count == 2

    site.play(scene)


def test_extended_message_stays_hidden_and_a_released_one_shows_up(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, out("a"))
        (first,) = await take(queue, visibility_s=1)

        assert await queue.change_visibility([(first.receipt, 30)]) == [None]
        await asyncio.sleep(1.2)
        assert await take(queue) == []

        assert await queue.change_visibility([(first.receipt, 0)]) == [None]
        (second,) = await take(queue)
        assert second.receive_count == 2

    site.play(scene)


@needs("delete by an old receipt is refused")
def test_old_receipt_does_not_delete(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, out("a"))
        (first,) = await take(queue, visibility_s=0)
        (second,) = await take(queue)

        await queue.delete([first.receipt])
        await queue.change_visibility([(second.receipt, 0)])

        assert len(await take(queue)) == 1

    site.play(scene)


@needs("extension by an old receipt is refused")
def test_old_receipt_does_not_extend(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, out("a"))
        (first,) = await take(queue, visibility_s=0)
        await take(queue)

        (failure,) = await queue.change_visibility([(first.receipt, 30)])

        assert failure is not None
        assert failure.kind is FailureKind.STALE

    site.play(scene)


@needs("extension of what is not in flight is refused")
def test_message_that_is_visible_cannot_be_extended(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, out("a"))
        (first,) = await take(queue, visibility_s=1)
        await asyncio.sleep(1.2)

        (failure,) = await queue.change_visibility([(first.receipt, 30)])

        assert failure is not None
        assert failure.kind is FailureKind.STALE

    site.play(scene)


@needs("second delete succeeds")
def test_delete_of_a_deleted_message_succeeds(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, out("a"))
        (found,) = await take(queue)
        assert await queue.delete([found.receipt]) == [None]

        assert await queue.delete([found.receipt]) == [None]

    site.play(scene)


def test_receipt_of_nobody_is_refused_alone(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, out("a"))
        (found,) = await take(queue)

        good, bad = await queue.change_visibility([(found.receipt, 30), ("nonsense", 30)])

        assert good is None
        assert bad is not None
        assert bad.kind is not FailureKind.TRANSIENT

    site.play(scene)


def test_message_received_too_often_is_in_the_dead_letter_queue_unchanged(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        letters = await server.create(site.name())
        queue = await server.create(
            site.name(), dead_letter_queue=letters.traits.name, receives_max=2
        )
        assert queue.traits.dead_letter_queue == letters.traits.name
        assert queue.traits.receives_max == 2
        await put(queue, OutgoingMessage("a", {"kind": "k"}))

        for _ in range(2):
            (found,) = await take(queue)
            await queue.change_visibility([(found.receipt, 0)])
        assert await take(queue) == []

        (letter,) = await take(letters)
        assert (letter.message_id, letter.body) == (found.message_id, "a")
        assert letter.attributes == {"kind": "k"}

    site.play(scene)


@needs("redrive")
def test_redrive_moves_dead_letters_back(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        letters = await server.create(site.name())
        queue = await server.create(
            site.name(), dead_letter_queue=letters.traits.name, receives_max=1
        )
        await put(queue, out("a"))
        (found,) = await take(queue, visibility_s=0)
        assert await take(queue) == []

        assert await server.redrive(letters.traits.name)
        again: list[QueueMessage] = []
        for _ in range(20):
            again = again or await take(queue)

        assert [each.body for each in again] == [found.body]

    site.play(scene)


def test_fifo_gives_a_group_in_order_and_not_while_one_is_held(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name(".fifo"))
        assert queue.traits.is_fifo
        for number in range(4):
            await put(queue, out(f"a{number}", group="a", deduplication_id=f"a{number}"))
        await put(queue, out("b0", group="b", deduplication_id="b0"))

        (first,) = await take(queue, count=1)
        others = await take(queue)
        assert first.body == "a0"
        assert [each.body for each in others] == ["b0"]

        await queue.delete([first.receipt])
        following = await take(queue)
        assert [each.body for each in following] == ["a1", "a2", "a3"][: len(following)]
        assert following

    site.play(scene)


@needs("deduplication outlives the message")
def test_fifo_drops_a_repeat_even_after_the_first_was_deleted(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name(".fifo"))
        await put(queue, out("a", group="g", deduplication_id="same"))
        (found,) = await take(queue)
        await queue.delete([found.receipt])

        await put(queue, out("a", group="g", deduplication_id="same"))

        assert await take(queue) == []

    site.play(scene)


@needs("limit of the queue's own counts bytes")
def test_batch_over_the_limit_is_not_sent(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name(), bytes_max=2_048)
        assert queue.traits.bytes_max == 2_048

        sent: list[object] = []
        try:
            sent += await queue.send([out("é" * 1_500)])
        except Exception as error:
            sent.append(error)

        assert sent != [None]
        assert await take(queue) == []

    site.play(scene)


@needs("forbidden characters are refused")
def test_character_that_is_not_allowed_is_refused_and_nothing_else(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())

        try:
            bad, good = await queue.send([out("a\ufffe"), out("b")])
        except Exception:
            return  # the whole batch was refused: nothing counts as sent
        assert bad is not None
        assert bad.kind is FailureKind.REFUSED
        assert good is None

    site.play(scene)


def test_long_poll_returns_when_a_message_arrives(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        poll = asyncio.ensure_future(queue.receive(10, 20, 30))
        await asyncio.sleep(0.3)
        assert not poll.done()

        await put(queue, out("a"))

        assert [each.body for each in await poll] == ["a"]

    site.play(scene)


def test_depth_tells_visible_held_and_delayed(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        queue = await server.create(site.name())
        await put(queue, out("a"), out("b"), OutgoingMessage("c", delay_s=60))
        await take(queue, count=1)

        depth = await queue.depth()

        assert (depth.visible, depth.in_flight, depth.delayed) == (1, 1, 1)
        await queue.purge()
        depth = await queue.depth()
        assert (depth.visible, depth.in_flight) == (0, 0)

    site.play(scene)


def test_missing_queue_is_named_with_its_account(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        with pytest.raises(Fatal, match=r"account .* has no queue 'cape-nowhere'"):
            await server.open("cape-nowhere")

    site.play(scene)


def test_names_are_listed_by_prefix(site: Site) -> None:
    async def scene(server: MakesQueues) -> None:
        name = site.name()
        await server.create(f"{name}-b")
        await server.create(f"{name}-a")

        assert await server.names(f"{name}-") == [f"{name}-a", f"{name}-b"]

    site.play(scene)
