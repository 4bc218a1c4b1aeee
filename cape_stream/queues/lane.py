"""One queue as a processor works it: the queue, its contract, its handlers, its slots and calls."""

import asyncio
import inspect
import logging
from collections.abc import Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any

from cape_stream.errors import CapeError, Retry
from cape_stream.ports.queue import Queue, QueueMessage
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import Contract, Handler
from cape_stream.queues.settings import LaneSettings, ProcessorSettings
from cape_stream.queues.settling import Batcher
from cape_stream.queues.slots import LaneBook

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0

logger = logging.getLogger(__name__)


class Lane:
    """See the module. Used in one event loop."""

    def __init__(
        self,
        queue: Queue,
        contract: Contract,
        handlers: Mapping[str, Handler],
        settings: LaneSettings,
    ) -> None:
        """A lane that is not yet worked.

        Args:
            queue: where the messages are.
            contract: how they are read.
            handlers: label of a type → what does its work. A coroutine function runs in the event
                loop and can be cancelled; a plain one runs in a thread and has to look.
            settings: see there.
        """
        self.name = contract.queue
        self.queue = queue
        self.contract = contract
        self.handlers = handlers
        self.settings = settings
        self.book = LaneBook(
            self.name,
            concurrency=settings.concurrency,
            prefetch=settings.prefetch,
            is_fifo=queue.traits.is_fifo,
        )
        self.wakeup = asyncio.Event()
        """Set when there may be room for another receive."""
        self.is_hot = False
        """The last receive came back full: more of them at once pay."""
        self.trouble: str | None = None
        """Why receives fail at present."""
        self.tasks: set[asyncio.Task[None]] = set()
        """Runs, and messages on their way back."""
        self._pause_s = 0.0
        self.deletes: Batcher[str]
        self.changes: Batcher[tuple[str, int]]

    def begin(self, settings: ProcessorSettings) -> None:
        """Get ready, in the loop that will work it."""
        name = self.queue.traits.name
        self.deletes = Batcher(f"delete on {name}", self.queue.delete, settings.linger_ms)
        self.changes = Batcher(
            f"change of visibility on {name}", self.queue.change_visibility, settings.linger_ms
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a piece of work that the drain waits for."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s: a defect ended a piece of work", self.name, exc_info=task.exception())

    @property
    def has_dead_letters(self) -> bool:
        """True if the queue parks what was received too often."""
        return self.queue.traits.dead_letter_queue is not None

    async def receive(self, count: int, wait_s: int) -> tuple[list[QueueMessage], float]:
        """Messages, and how many seconds to wait before the next receive.

        A queue that is away, throttles or refuses our credentials costs waits that grow; it is
        said once when that begins and once when it is over.
        """
        try:
            found = await self.queue.receive(count, wait_s, self.settings.visibility_s)
        except CapeError as error:
            return [], self._troubled(error)
        except Exception as error:  # a defect of an adapter must not silence a queue for good
            logger.exception("receive on %s failed", self.queue.traits.name)
            return [], self._troubled(Retry(repr(error)))
        if self.trouble is not None:
            logger.warning("%s answers again", self.queue.traits.name)
            self.trouble, self._pause_s = None, 0.0
        self.is_hot = len(found) == count
        return found, 0.0

    def _troubled(self, error: CapeError) -> float:
        if self.trouble is None:
            logger.warning("%s cannot be read, trying on: %s", self.queue.traits.name, error.reason)
        self.trouble = error.reason
        self.is_hot = False
        self._pause_s = min(RETRY_MAX_S, max(RETRY_FIRST_S, self._pause_s * 2))
        after_ms = error.after_ms if isinstance(error, Retry) else None
        return max(self._pause_s, (after_ms or 0) / 1_000)


async def run_handler(
    handler: Handler, value: object, context: JobContext, threads: Executor
) -> None:
    """Run a handler to its end. When it is cancelled, a coroutine is cancelled with it; a thread is
    waited for, for its slot is not free before.

    Raises:
        CancelledError: it was ended from outside.
        Any exception: of the handler.
    """
    if is_coroutine_handler(handler):
        pending = handler(value, context)
        assert pending is not None, "a coroutine function returns a coroutine"
        await pending
        return
    work = asyncio.get_running_loop().run_in_executor(threads, handler, value, context)
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await _ended(work)
        raise


async def _ended(work: asyncio.Future[Any]) -> None:
    """Wait for a thread that cannot be ended, whatever comes of it."""
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            continue
    if not work.cancelled() and work.exception() is not None:
        logger.debug("a handler that was ended failed: %r", work.exception())


def is_coroutine_handler(handler: Handler) -> bool:
    """True if calling it gives a coroutine: an async function, or an object whose call is one."""
    call = getattr(handler, "__call__", None)  # noqa: B004  # its signature, not whether it has one
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
