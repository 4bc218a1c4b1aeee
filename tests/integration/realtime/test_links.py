"""A connection whose client reads now and then: every byte once, in order, and shared till then."""

import asyncio
import random
import socket

import pytest

from cape_stream.realtime.links import PART_BYTES, Link


class Protocol(asyncio.Protocol):
    """What the stream protocols do about writing."""

    link: Link

    def resume_writing(self) -> None:
        self.link.resume()


async def connected() -> tuple[Link, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, protocol = await asyncio.get_running_loop().create_connection(Protocol, sock=ours)
    transport.set_write_buffer_limits(high=0)
    protocol.link = Link(transport)
    return protocol.link, theirs


async def read_all(theirs: socket.socket, size: int) -> bytes:
    loop, found = asyncio.get_running_loop(), b""
    while len(found) < size:
        part = await asyncio.wait_for(loop.sock_recv(theirs, 65_536), 20)
        assert part, "it ended before everything was there"
        found += part
    return found


@pytest.mark.parametrize("seed", range(5))
def test_everything_arrives_once_and_in_order(seed: int) -> None:
    dice = random.Random(seed)

    async def scene() -> None:
        link, theirs = await connected()
        written = found = b""
        for _ in range(60):
            for _ in range(dice.randrange(20)):
                message = dice.randbytes(dice.choice((1, 300, 9_000, 70_000)))
                link.write(message)
                written += message
            if dice.random() < 0.5:
                found += await read_all(theirs, dice.randrange(len(written) - len(found) + 1))
        link.flush()  # what the transport says itself comes behind it
        link.transport.write(b"the end")
        written += b"the end"

        found += await read_all(theirs, len(written) - len(found))

        assert found == written
        assert link.waiting == 0
        link.abort()
        theirs.close()

    asyncio.run(scene())


def test_what_waits_is_not_copied_and_counts_as_waiting() -> None:
    async def scene() -> None:
        link, theirs = await connected()
        message = bytes(PART_BYTES)
        while not link.waiting:
            link.write(message)
        held = link.transport.get_write_buffer_size()

        for count in range(1, 100):
            assert link.write(message) == held + count * len(message)

        assert link.transport.get_write_buffer_size() == held
        assert all(each is message for each in link._waiting)
        taken = link.taken
        await read_all(theirs, taken + 1)
        assert link.taken > taken
        link.abort()
        assert link.waiting == 0
        theirs.close()

    asyncio.run(scene())


def test_a_closing_connection_takes_nothing_more() -> None:
    async def scene() -> None:
        link, theirs = await connected()
        while not link.waiting:
            link.write(bytes(PART_BYTES))
        link.write(b"waits")
        link.transport.close()

        assert link.write(b"too late") == 0
        link.flush()

        assert link.waiting == link.transport.get_write_buffer_size()
        link.abort()
        theirs.close()

    asyncio.run(scene())
