"""A topology as users declare it: a name, its place among others, and its handlers."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from inspect import unwrap
from typing import Any, Literal, TypeVar, overload

from cape_stream.model.sequence import BadSequenceError, check_sequence
from cape_stream.model.status import FailureClass
from cape_stream.model.topology import LambdaSpec, Ordering, RetrySpec, TopologySpec
from cape_stream.ports.contexts import ContextSource
from cape_stream.runtime.worker_handler import Executor
from cape_stream.sdk.declaration import (
    DeclarationError,
    check_choice,
    check_duration,
    check_name,
    check_range,
)
from cape_stream.sdk.functions import check_function, is_async, takes_context
from cape_stream.sdk.runner import BoundHandler, HandlerFunction
from cape_stream.sdk.tally import TallyRules

MAX_BATCH_MAX = 10_000
WINDOW_MAX = 60_000
QUEUE_DEFAULT = "general"

ExecutorName = Literal["thread", "process"]
Start = int | Literal["earliest", "latest"]
H = TypeVar("H", bound=HandlerFunction)


class Topology:
    """A user application subscribed to a domain; made by `Domain.topology`."""

    def __init__(
        self,
        name: str,
        domain: str,
        *,
        ordering: Ordering,
        after: tuple[str, ...],
        start: Start,
        formerly: tuple[str, ...],
        window: int,
        retry: RetrySpec | None,
        quarantine_after: Mapping[str, int],
        in_flight_max: int | None,
        jobs_per_s_max: float | None,
    ) -> None:
        self.name = check_name(name, f"a topology of domain {domain!r}")
        self.domain = domain
        self._place = f"topology {name!r} of domain {domain!r}"
        check_choice(ordering, ("parallel", "ordered"), f"ordering of {self._place}")
        self._ordering: Ordering = ordering
        self.after = after
        """Names of the topologies that must have done an event first."""
        self._from_latest = start == "latest"
        self._start = _first_sequence(start, f"start of {self._place}")
        self.formerly = formerly
        """Names it had before, newest first."""
        self._window = check_range(window, 1, WINDOW_MAX, f"window of {self._place}")
        self._retry = _checked_retry(retry or RetrySpec(), f"retry of {self._place}")
        self._quarantine_after = _checked_limits(
            quarantine_after, f"quarantine_after of {self._place}"
        )
        self._in_flight_max = None
        if in_flight_max is not None:
            place = f"in_flight_max of {self._place}"
            self._in_flight_max = check_range(in_flight_max, 1, 2**31, place)
        self._jobs_per_s_max = _checked_rate(jobs_per_s_max, f"jobs_per_s_max of {self._place}")
        self._lambdas: dict[str, tuple[HandlerFunction, LambdaSpec, Executor | None]] = {}

    def __repr__(self) -> str:
        return f"Topology({self.domain}.{self.name}: {', '.join(self._lambdas) or 'no handler'})"

    @overload
    def handler(self, function: H, /) -> H: ...

    @overload
    def handler(
        self,
        /,
        *,
        queue: str = QUEUE_DEFAULT,
        max_batch: int = 50,
        timeout: timedelta = timedelta(seconds=30),
        inputs: HandlerFunction | Sequence[HandlerFunction] = (),
        name: str | None = None,
        executor: ExecutorName | None = None,
    ) -> Callable[[H], H]: ...

    def handler(
        self,
        function: HandlerFunction | None = None,
        /,
        *,
        queue: str = QUEUE_DEFAULT,
        max_batch: int = 50,
        timeout: timedelta = timedelta(seconds=30),
        inputs: HandlerFunction | Sequence[HandlerFunction] = (),
        name: str | None = None,
        executor: ExecutorName | None = None,
    ) -> Any:
        """Declare the decorated function as a lambda of this topology; returns it unchanged.

        Args:
            function: given when the decorator is used without parentheses. It takes the batch,
                and a `Context` if it has a parameter `ctx`.
            queue: worker queue its jobs go to.
            max_batch: most events in one job, 1 to 10,000.
            timeout: how long one job may run before it is given up and retried, >= 1 ms.
            inputs: handlers of this topology, declared above, whose outputs it takes.
            name: the lambda id; the function's name unless given. It is part of the state, so
                renaming a function without it makes a new lambda.
            executor: ``thread`` for a handler that waits, ``process`` for one that computes or
                may crash; None takes what the worker is set to. Async handlers have a loop.

        Raises:
            DeclarationError: names the value, the place, and what to write instead.
        """

        def declare(declared: H) -> H:
            lambda_id = name if name is not None else getattr(declared, "__name__", None)
            lambda_id = check_name(lambda_id, f"a handler of {self._place} (give name=...)")
            if lambda_id in self._lambdas:
                raise DeclarationError(
                    f"{self._place} has two handlers for {lambda_id!r}: give one name=..."
                )
            place = f"handler {lambda_id!r} of {self._place}"
            check_function(declared, place)
            spec = LambdaSpec(
                lambda_id=lambda_id,
                queue=check_name(queue, f"queue of {place}"),
                inputs=self._input_ids(inputs, place),
                max_batch=check_range(max_batch, 1, MAX_BATCH_MAX, f"max_batch of {place}"),
                timeout_ms=check_duration(timeout, f"timeout of {place}"),
            )
            self._lambdas[lambda_id] = (declared, spec, _checked_executor(executor, place))
            return declared

        return declare if function is None else declare(function)

    def spec(self) -> TopologySpec:
        """Everything declared, as plain data; raises DeclarationError without a handler."""
        if not self._lambdas:
            raise DeclarationError(
                f"{self._place} has no handler: decorate a function with @{self.name}.handler()"
            )
        return TopologySpec(
            name=self.name,
            lambdas=tuple(spec for _, spec, _ in self._lambdas.values()),
            ordering=self._ordering,
            after=self.after,
            start=self._start,
            from_latest=self._from_latest,
            formerly=self.formerly,
            window=self._window,
            retry=self._retry,
            quarantine_after=self._quarantine_after,
            in_flight_max=self._in_flight_max,
            jobs_per_s_max=self._jobs_per_s_max,
        )

    @property
    def context_takers(self) -> tuple[str, ...]:
        """Lambdas whose handlers take a context."""
        return tuple(name for name, (each, _, _) in self._lambdas.items() if takes_context(each))

    def bound_handlers(self, contexts: ContextSource | None = None) -> dict[str, BoundHandler]:
        """Lambda id → its handler, ready to run; see `App.job_handlers`."""
        taken = {each for _, spec, _ in self._lambdas.values() for each in spec.inputs}
        return {
            lambda_id: BoundHandler(
                function=function,
                spec=spec,
                rules=TallyRules(
                    stops_at_failure=self._ordering == "ordered",
                    keeps_outputs=lambda_id in taken,
                    place=_file_of(function),
                ),
                is_async=is_async(function),
                executor=executor,
                contexts=self._source_for(function, lambda_id, contexts),
            )
            for lambda_id, (function, spec, executor) in self._lambdas.items()
        }

    def _source_for(
        self, function: object, lambda_id: str, contexts: ContextSource | None
    ) -> ContextSource | None:
        if not takes_context(function):
            return None
        if contexts is None:
            raise DeclarationError(
                f"handler {lambda_id!r} of {self._place} takes a context, and there is none here:"
                " it runs in the worker of `cape run` or `cape worker`"
            )
        return contexts

    def _input_ids(self, inputs: object, place: str) -> tuple[str, ...]:
        wanted = [inputs] if callable(inputs) else inputs
        if isinstance(wanted, str) or not isinstance(wanted, Sequence):
            raise DeclarationError(
                f"inputs of {place} must be handler functions, not {inputs!r}: write inputs=parse"
            )
        return tuple(dict.fromkeys(self._lambda_of(each, place) for each in wanted))

    def _lambda_of(self, function: object, place: str) -> str:
        found = [name for name, (mine, _, _) in self._lambdas.items() if mine is function]
        if len(found) != 1:
            trouble = "stands for several handlers" if found else "is no handler"
            label = getattr(function, "__name__", repr(function))
            known = ", ".join(self._lambdas) or "none"
            raise DeclarationError(
                f"inputs of {place} names {label}, which {trouble} of this topology declared"
                f" above it ({known}): decorate one function for each and put it first"
            )
        return found[0]


def _first_sequence(start: object, place: str) -> int:
    if start in ("earliest", "latest"):
        return 0
    try:
        return check_sequence(start, place)
    except BadSequenceError as error:
        raise DeclarationError(f'{error}; give "earliest", "latest" or a sequence id') from error


def _checked_retry(retry: object, place: str) -> RetrySpec:
    if not isinstance(retry, RetrySpec):
        raise DeclarationError(f"{place} must be a RetrySpec, not {retry!r}")
    check_range(retry.first_ms, 1, 2**31, f"first_ms in {place}")
    check_range(retry.max_ms, retry.first_ms, 2**31, f"max_ms in {place}")
    check_range(retry.floor_ms, 0, retry.max_ms, f"floor_ms in {place}")
    return retry


def _checked_limits(limits: object, place: str) -> dict[FailureClass, int]:
    classes = ", ".join(FailureClass)
    if not isinstance(limits, Mapping):
        raise DeclarationError(
            f'{place} must map failure classes ({classes}) to attempts, such as {{"invalid": 3}},'
            f" not {limits!r}"
        )
    checked = {}
    for name, attempts in limits.items():
        failure_class = check_choice(name, tuple(FailureClass), f"a failure class in {place}")
        limit = check_range(attempts, 1, 1_000_000, f"attempts for {name!r} in {place}")
        checked[FailureClass(failure_class)] = limit
    return checked


def _checked_rate(rate: object, place: str) -> float | None:
    if rate is None:
        return None
    if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate <= 1_000_000:
        return float(rate)
    raise DeclarationError(f"{place} must be above 0 and at most 1,000,000, not {rate!r}")


def _checked_executor(executor: object, place: str) -> Executor | None:
    if executor is None:
        return None
    return Executor(check_choice(executor, tuple(Executor), f"executor of {place}"))


def _file_of(function: object) -> str:
    code = getattr(unwrap(function) if callable(function) else function, "__code__", None)
    return getattr(code, "co_filename", "")
