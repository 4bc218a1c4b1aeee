"""App and Domain: the front page of a user's program, compiled to plain specs for the roles."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from cape_stream.model.topic_names import TopicNames
from cape_stream.model.topology import DomainSpec, Ordering, RetrySpec
from cape_stream.ports.contexts import ContextSource
from cape_stream.ports.source import EventSource
from cape_stream.runtime.dense_source import DenseSource
from cape_stream.runtime.worker_handler import HandlerKey, JobHandler
from cape_stream.sdk.declaration import (
    DeclarationError,
    check_name,
    check_order,
    check_range,
)
from cape_stream.sdk.topology import Start, Topology

NO_LIMITS: Mapping[str, int] = MappingProxyType({})
PARTITIONS_MAX = 10_000
PAGE_LIMIT_MAX = 10_000
JOBS_DOMAIN = "jobs"
"""The topics of this domain would be those of worker queues, so no domain may have the name."""


class App:
    """Everything that is deployed together: domains, their topologies, and the handlers.

    Args:
        name: prefix of all its topics and consumer groups.
        partitions: of each of its topics; how far it can be spread over processes. Choose it
            once: a subject's partition depends on it, so it cannot change later.
    """

    def __init__(self, name: str, *, partitions: int = 8) -> None:
        self.name = check_name(name, "an App")
        self.partitions = check_range(partitions, 1, PARTITIONS_MAX, f"partitions of App {name!r}")
        self._domains: dict[str, Domain] = {}

    def __repr__(self) -> str:
        return f"App({self.name!r}: {', '.join(self._domains) or 'no domain'})"

    def domain(
        self, name: str, *, source: EventSource, page_limit: int = 100, dense: bool = False
    ) -> "Domain":
        """Declare a domain.

        Args:
            name: of the namespace; part of its topics' names.
            source: where its events are pulled from.
            page_limit: most events one query to the source may return, 1 to 10,000.
            dense: the sequence ids of a subject are 0 or 1 and all that follow. One that the source
                does not show is asked for again and again, and nothing after it is handed out
                before it is there, or a person has skipped it (`cape cursor skip` or `set`).
        """
        domain = Domain(name, self.name, source=source, page_limit=page_limit, dense=dense)
        if name in self._domains:
            raise DeclarationError(
                f"App {self.name!r} has two domains named {name!r}: rename one, or add the"
                " topologies to the first"
            )
        self._domains[name] = domain
        return domain

    @property
    def domains(self) -> Mapping[str, "Domain"]:
        """Name → domain, in the order of declaration."""
        return self._domains

    @property
    def topic_names(self) -> TopicNames:
        """Names of all its topics."""
        return TopicNames(self.name)

    @property
    def queues(self) -> tuple[str, ...]:
        """Worker queues its handlers use, by name."""
        specs = self.domain_specs()
        return tuple(
            sorted({each.queue for d in specs for t in d.topologies for each in t.lambdas})
        )

    @property
    def context_takers(self) -> tuple[HandlerKey, ...]:
        """Handlers that take a context, in the order of declaration."""
        return tuple(
            HandlerKey(domain.name, topology.name, lambda_id)
            for domain in self._domains.values()
            for topology in domain.topologies.values()
            for lambda_id in topology.context_takers
        )

    def domain_specs(self) -> tuple[DomainSpec, ...]:
        """Everything declared, as plain data, for the dispatcher.

        Raises:
            DeclarationError: something declared cannot work as a whole.
        """
        if not self._domains:
            raise DeclarationError(f"App {self.name!r} has no domain: call app.domain(...)")
        return tuple(domain.spec() for domain in self._domains.values())

    def job_handlers(self, contexts: ContextSource | None = None) -> dict[HandlerKey, JobHandler]:
        """Every handler, for a worker.

        Args:
            contexts: gives the running execution's context to handlers that take one.

        Raises:
            DeclarationError: a handler takes a context, and there are none here.
        """
        return {
            HandlerKey(domain.name, topology.name, lambda_id): handler
            for domain in self._domains.values()
            for topology in domain.topologies.values()
            for lambda_id, handler in topology.bound_handlers(contexts).items()
        }


class Domain:
    """A namespace of events built the same way, with one source; made by `App.domain`."""

    def __init__(
        self, name: str, app: str, *, source: EventSource, page_limit: int, dense: bool
    ) -> None:
        self.name = check_name(name, f"a domain of App {app!r}")
        self._place = f"domain {name!r}"
        if name == JOBS_DOMAIN:
            raise DeclarationError(
                f"a domain of App {app!r} cannot be named {name!r}: its topics would be those of"
                " worker queues; take another name"
            )
        for method in ("fetch_many", "changed_since", "close"):
            if not callable(getattr(source, method, None)):
                raise DeclarationError(
                    f"source of {self._place} is {source!r}, which has no {method}(): give an"
                    " EventSource"
                )
        self.source = DenseSource(source, name) if dense else source
        self.page_limit = check_range(page_limit, 1, PAGE_LIMIT_MAX, f"page_limit of {self._place}")
        self._topologies: dict[str, Topology] = {}

    def __repr__(self) -> str:
        return f"Domain({self.name!r}: {', '.join(self._topologies) or 'no topology'})"

    def topology(
        self,
        name: str,
        *,
        ordering: Ordering = "parallel",
        after: Sequence[Topology | str] = (),
        start: Start = "earliest",
        formerly: Sequence[str] = (),
        window: int = 1_000,
        retry: RetrySpec | None = None,
        quarantine_after: Mapping[str, int] = NO_LIMITS,
        in_flight_max: int | None = None,
        jobs_per_s_max: float | None = None,
    ) -> Topology:
        """Declare a topology.

        Args:
            name: of the application; its cursors are kept under it.
            ordering: ``parallel``: several jobs of a subject may run at once. ``ordered``: one at
                a time, ascending, and nothing after the first failing event.
            after: topologies of this domain that must have done an event first.
            start: ``"earliest"``; ``"latest"``: of each subject only what is newer than what the
                domain has seen of it by now; or the first sequence id wanted of every subject.
            formerly: names it had before, newest first: it goes on from their cursors.
            window: most events of a subject between the cursor and the newest one issued, 1 to
                60,000; where a domain has more than 60 lambdas, an equal share of that at most.
            retry: how failed events are retried; the default goes on for ever.
            quarantine_after: failure class (``transient``, ``throttled``, ``timeout``, ``invalid``,
                ``permanent``, ``bug``) → the failed attempt after which the event waits for a
                person (`cape parked`); a class that is not named is retried for ever.
            in_flight_max: most jobs out at a time over all partitions, each of which has an equal
                share; None: as many as its queues take in time.
            jobs_per_s_max: most jobs a second, likewise, with bursts of up to a second's worth.

        Raises:
            DeclarationError: names the value, the place, and what to write instead.
        """
        if name in self._topologies:
            raise DeclarationError(f"{self._place} has two topologies named {name!r}: rename one")
        topology = Topology(
            name,
            self.name,
            ordering=ordering,
            after=self._names_of(after, name),
            start=start,
            formerly=self._former_names(formerly, name),
            window=window,
            retry=retry,
            quarantine_after=quarantine_after,
            in_flight_max=in_flight_max,
            jobs_per_s_max=jobs_per_s_max,
        )
        self._topologies[name] = topology
        return topology

    @property
    def topologies(self) -> Mapping[str, Topology]:
        """Name → topology, in the order of declaration."""
        return self._topologies

    def spec(self) -> DomainSpec:
        """Everything declared, as plain data; raises DeclarationError when it cannot work."""
        if not self._topologies:
            raise DeclarationError(f"{self._place} has no topology: call {self.name}.topology(...)")
        self._check_former_names()
        check_order({each.name: each.after for each in self._topologies.values()}, self._place)
        return DomainSpec(
            name=self.name,
            topologies=tuple(topology.spec() for topology in self._topologies.values()),
            page_limit=self.page_limit,
        )

    def _former_names(self, formerly: Sequence[str], name: str) -> tuple[str, ...]:
        names = [formerly] if isinstance(formerly, str) else formerly
        return tuple(check_name(each, f"a former name of topology {name!r}") for each in names)

    def _check_former_names(self) -> None:
        """A name that is in use again, or that two topologies had, leads to no cursor of theirs."""
        owners: dict[str, str] = {}
        for topology in self._topologies.values():
            for former in topology.formerly:
                other = former if former in self._topologies else owners.get(former)
                if other is not None:
                    raise DeclarationError(
                        f"topology {topology.name!r} of {self._place} was formerly {former!r},"
                        f" which {other!r} is or was too: a cursor goes on in one topology only"
                    )
                owners[former] = topology.name

    def _names_of(self, after: Sequence[Topology | str], name: str) -> tuple[str, ...]:
        """Names may refer to topologies declared further down; `spec` checks them."""
        if isinstance(after, str | Topology):
            after = [after]
        names: dict[str, None] = {}
        for each in after:
            if isinstance(each, Topology) and self._topologies.get(each.name) is not each:
                raise DeclarationError(
                    f"topology {name!r} of {self._place} comes after {each.name!r} of domain"
                    f" {each.domain!r}: only topologies of one domain can wait for each other"
                )
            names[each.name if isinstance(each, Topology) else check_name(each, "after")] = None
        return tuple(names)
