"""Workflow steps that a caller waits for: a request with a deadline, answered through `Results`.

Nobody waits longer than the deadline, so a request that comes too late is not run, and a failure is
an answer, not a retry.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec

from cape_stream.errors import Reject, Retry
from cape_stream.ports.queue import Queue
from cape_stream.ports.results import Results
from cape_stream.queues.context import JobContext
from cape_stream.queues.contract import MessageType, OwnContract
from cape_stream.queues.envelopes import wall_ms
from cape_stream.queues.sending import send_all

QUEUE = "steps"
ANSWER_KEEP_MS = 60_000
"""How long an answer waits for its waiter beyond the deadline."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One call of one step."""

    request_id: str
    step: str
    arguments: dict[str, Any] = {}
    deadline_ms: int
    """Unix milliseconds after which nobody waits."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of it: a result or an error, not both."""

    result: Any = None
    error: str | None = None


TYPE = MessageType("step", Step)
CONTRACT = OwnContract(QUEUE, (TYPE,))

StepFunction = Callable[[Mapping[str, Any], JobContext], Awaitable[Any]]


class StepTimeoutError(Exception):
    """No answer within the deadline. The step may run all the same."""


class StepFailedError(Exception):
    """The step ran and failed; the message is its error."""


@dataclass(slots=True)
class StepCaller:
    """Calls steps and waits for their answers."""

    queue: Queue
    results: Results

    async def call(
        self,
        step: str,
        arguments: Mapping[str, Any],
        *,
        timeout_ms: int,
        tenant: str | None = None,
    ) -> Any:
        """The result of a step.

        Args:
            step: a name some worker has registered.
            arguments: JSON values by name.
            timeout_ms: how long to wait, queueing included; > 0.
            tenant: whose call it is, for fairness.

        Raises:
            StepTimeoutError: no answer in time.
            StepFailedError: the step failed.
            Retry: the queue is away.
        """
        request_id = uuid4().hex
        request = Step(
            request_id=request_id,
            step=step,
            arguments=dict(arguments),
            deadline_ms=wall_ms() + timeout_ms,
        )
        message = TYPE.outgoing(
            request,
            message_id=request_id,
            tenant=tenant,
            bytes_max=self.queue.traits.bytes_max,
        )
        await send_all(self.queue, [message])
        reply = await self.results.wait(request_id, timeout_ms)
        if reply is None:
            raise StepTimeoutError(f"no answer of step {step!r} within {timeout_ms} ms")
        answer = msgspec.json.decode(reply, type=Answer)
        if answer.error is not None:
            raise StepFailedError(answer.error)
        return answer.result


@dataclass(slots=True)
class StepHandler:
    """Runs the step a request names and leaves the answer."""

    functions: Mapping[str, StepFunction]
    results: Results
    expired: int = 0
    """Requests that came after their deadline, and were not run."""

    async def __call__(self, request: Step, context: JobContext) -> None:
        """See `cape_stream.queues.contract.Handler`."""
        left_ms = request.deadline_ms - wall_ms()
        if left_ms <= 0:
            self.expired += 1
            return
        function = self.functions.get(request.step)
        if function is None:
            raise Reject(f"no step {request.step!r} here, only {sorted(self.functions)}")
        try:
            answer = Answer(result=await function(request.arguments, context))
            encoded = msgspec.json.encode(answer)
        except Retry:
            raise
        except Exception as error:  # noqa: BLE001  # a step is user code; its error is the answer
            encoded = msgspec.json.encode(Answer(error=f"{type(error).__name__}: {error}"))
        keep_ms = max(0, request.deadline_ms - wall_ms()) + ANSWER_KEEP_MS
        await self.results.put(request.request_id, encoded, keep_ms)
