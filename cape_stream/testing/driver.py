"""CapeDriver: a user's App on a virtual clock, without a broker; the front page of its tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from cape_stream.model.event import NO_HEADERS, Event
from cape_stream.model.sequence import NO_CURSOR, check_sequence
from cape_stream.model.subject import check_subject
from cape_stream.ports.contexts import MintedGrant
from cape_stream.runtime.worker_status import result_status
from cape_stream.sdk.app import App, Domain
from cape_stream.sdk.failures import to_after_ms
from cape_stream.sdk.topology import Topology
from cape_stream.testing.driven_jobs import Delivery, DrivenJob, DriverMisuseError, JobDesk
from cape_stream.testing.driver_chaos import NO_CHAOS, Chaos, ChaosDice, Fate
from cape_stream.testing.driver_hands import Hands
from cape_stream.testing.driver_stage import DriverStage
from cape_stream.testing.driver_views import (
    ParkedEvent,
    explained,
    parked_events,
    tell,
    what_is_left,
)
from cape_stream.testing.recorded_contexts import Published

START = datetime(2026, 1, 1, tzinfo=UTC)
LEFT_LINES_MAX = 10
"""How much of what is left the error of `CapeDriver.finish` lists."""
EFFECTS_MAX = 40
"""A dispatcher that dies amid its work does so within so many effects."""

Duration = timedelta | float
"""A timedelta, or seconds."""


class CapeDriver:
    """Runs an App without a broker, on a virtual clock, in the thread of the test.

    The dispatcher and its state are the real ones; log, disk and time are simulated, and the
    driver's own source takes the place of each domain's. Nothing happens between two calls.

        with CapeDriver(app) as driver:
            driver.publish("N14228", {"delay": 4})
            driver.run()
            assert driver.cursor("N14228", "delays") == 1

    Args:
        app: what to run; its handlers are the ones that `run` calls.
        seed: makes things go wrong, by the odds of ``chaos``. The same seed, the same calls: the
            same world. A failure names it, and ``CapeDriver(app, seed=17)`` repeats it.
        chaos: what goes wrong and how often; without a seed, with seed 0.
        partitions: of each topic. Two have something to hand over in a rebalance.
        start: where the clock begins.
    """

    def __init__(
        self,
        app: App,
        *,
        seed: int | None = None,
        chaos: Chaos | None = None,
        partitions: int = 2,
        start: datetime = START,
    ) -> None:
        if not isinstance(app, App):
            raise DriverMisuseError(f"CapeDriver(app) takes an App, not {app!r}")
        self.app = app
        self.seed = 0 if seed is None and chaos is not None else seed
        self._given = chaos
        self._chaos = chaos or (NO_CHAOS if self.seed is None else Chaos())
        self._dice = ChaosDice(self.seed or 0, self._chaos)
        start_ms = int(start.timestamp() * 1_000)
        self._stage = DriverStage(
            app.topic_names, app.domain_specs(), partitions, start_ms, self._dice
        )
        self._hands = Hands(app, self._stage.timeline)
        self._desk = JobDesk(self._report, self._stage.is_out, self._hands.execute)
        self._jobs: dict[str, DrivenJob] = {}
        self._newest: dict[tuple[str, str], int] = {}
        self.deliveries: list[Delivery] = self._hands.deliveries
        """Every execution of a handler so far, in order."""
        self.published: list[Published] = self._hands.published
        """What handlers have published through their contexts, in order."""
        self.grants: list[MintedGrant] = self._hands.grants
        """What handlers have granted through their contexts and not revoked."""

    def __repr__(self) -> str:
        """The call that makes the same driver again."""
        seed = "" if self.seed is None else f", seed={self.seed}"
        chaos = "" if self._given is None else f", chaos={self._given}"
        return f"CapeDriver(app{seed}{chaos})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self.seed is not None and repr(self) not in str(error):
            error.add_note(f"the same world again: {self!r}")
        self.close()

    def close(self) -> None:
        """Free what is under it; `with` does so."""
        self._hands.close()
        self._stage.timeline.close()

    # --- what comes in -------------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        payload: object = b"",
        *,
        sequence: int | None = None,
        domain: Domain | str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        ping: bool = True,
    ) -> int:
        """The source gets an event and, unless told otherwise, says so.

        Args:
            subject: whose event it is.
            payload: bytes are taken as they are, text as UTF-8, everything else as JSON.
            sequence: of the event, above all earlier ones of the subject; the next one, from 1,
                if not given.
            domain: may be left out if the App has one.
            headers: small text attributes.
            ping: False: nobody hears of it until the next ping or the refresh of each minute.

        Returns:
            The sequence id.
        """
        name = self._domain(domain)
        check_subject(subject)
        newest = self._newest.get((name, subject), 0)
        if sequence is None:
            sequence = newest + 1
        elif check_sequence(sequence, "sequence") <= newest and (name, subject) in self._newest:
            raise DriverMisuseError(
                f"event {sequence} of {subject!r} comes after event {newest}: a source's sequence"
                " ids grow within a subject"
            )
        self._newest[name, subject] = sequence
        event = Event(sequence, _to_bytes(payload), dict(headers))
        self._stage.sources[name].publish(subject, event)
        if ping and not self._dice.happens(self._chaos.lost_ping):
            self._stage.ping(name, subject, sequence)
        return sequence

    def ping(
        self, subject: str, latest: int | None = None, *, domain: Domain | str | None = None
    ) -> None:
        """Only say that a subject has news, with its newest sequence id if that is known."""
        self._stage.ping(self._domain(domain), check_subject(subject), latest)

    def refresh(self) -> None:
        """Ask the source what has changed, now; as time passes that happens each minute."""
        self._stage.refresh()

    # --- time and work -------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """Virtual time, UTC. It stands still while a handler runs."""
        return datetime.fromtimestamp(self._stage.now_ms / 1_000, UTC)

    def advance(self, duration: Duration) -> None:
        """Let time pass, and no handler run: what is out times out, what is parked falls due."""
        end_ms = self._stage.now_ms + _to_ms(duration)
        self._stage.pass_until(end_ms, lambda: False)
        self._collect()

    def run(self, duration: Duration = 0) -> None:
        """Let the App's own handlers work for so long; by default on what is there right now."""
        end_ms = self._stage.now_ms + _to_ms(duration)
        self._work()
        while self._stage.now_ms < end_ms:
            self._stage.pass_until(end_ms, lambda: self._stage.has_jobs)
            self._work()

    def finish(self, within: Duration = timedelta(days=1)) -> None:
        """Let handlers work and time pass until every topology has done every published event.

        Args:
            within: of virtual time; what never succeeds is still open then.

        Raises:
            AssertionError: names what is left, and why, and how to have the same world again.
        """
        end_ms = self._stage.now_ms + _to_ms(within)
        self._work()
        while self._is_busy() or any(what_is_left(self._stage, self._newest)):
            if self._stage.now_ms >= end_ms:
                lines = list(what_is_left(self._stage, self._newest))
                more = [f"and {len(lines) - LEFT_LINES_MAX} more"] * (len(lines) > LEFT_LINES_MAX)
                listed = "\n  ".join([*lines[:LEFT_LINES_MAX], *more])
                raise AssertionError(
                    f"not everything was done within {_to_ms(within) / 1_000:.0f} s:\n  {listed}\n"
                    f"the same world again: {self!r}"
                )
            self._pass_to_news(end_ms)
            self._work()

    # --- jobs ----------------------------------------------------------------------------------

    def jobs(
        self,
        topology: Topology | str | None = None,
        subject: str | None = None,
        handler: str | None = None,
    ) -> list[DrivenJob]:
        """Jobs that are out and unanswered, in the order of their issue; filters are optional."""
        self._stage.settle()
        self._collect()
        name = topology.name if isinstance(topology, Topology) else topology
        return [
            job
            for job in self._jobs.values()
            if not job.taken
            and job.is_out
            and name in (None, job.topology)
            and subject in (None, job.subject)
            and handler in (None, job.handler)
        ]

    def job(
        self,
        topology: Topology | str | None = None,
        subject: str | None = None,
        handler: str | None = None,
    ) -> DrivenJob:
        """The one such job; DriverMisuseError lists what there is if it is not one."""
        found = self.jobs(topology, subject, handler)
        if len(found) != 1:
            there = "\n  ".join(map(repr, self.jobs())) or "none"
            raise DriverMisuseError(f"{len(found)} jobs are like that; these are out:\n  {there}")
        return found[0]

    # --- looking -------------------------------------------------------------------------------

    def cursor(self, subject: str, topology: Topology | str) -> int | None:
        """How far a topology has got with a subject; None before its first event."""
        domain, name = self._topology(topology)
        self._stage.settle()
        for each in tell(self._stage, domain, subject)["topologies"]:
            if each["topology"] == name and each["cursor"] != NO_CURSOR:
                cursor: int = each["cursor"]
                return cursor
        return None

    def parked(self, topology: Topology | str | None = None) -> list[ParkedEvent]:
        """Events put aside after failures: tried again later, or in quarantine."""
        self._stage.settle()
        name = topology.name if isinstance(topology, Topology) else topology
        return parked_events(self._stage, name)

    def explain(self, subject: str, domain: Domain | str | None = None) -> str:
        """Where each handler stands with a subject, and what it waits for, as `cape explain`."""
        self._stage.settle()
        return explained(tell(self._stage, self._domain(domain), subject))

    # --- harm ----------------------------------------------------------------------------------

    def crash(self, *, disk_lost: bool = False) -> None:
        """The dispatcher dies (kill -9) and another process takes its place.

        Args:
            disk_lost: the machine is gone, too; the state is restored from the changelog alone.
        """
        self._stage.crash(self._stage.dispatchers[0], disk_lost=disk_lost)

    def rebalance(self) -> None:
        """A second dispatcher joins and takes its share of the subjects; or leaves again."""
        self._stage.rebalance()

    # --- inside --------------------------------------------------------------------------------

    def _work(self) -> None:
        """Run handlers until nothing is left to do without time passing."""
        while True:
            waiting = self.jobs()
            if not waiting:
                return
            if self.seed is not None:
                self._dice.random.shuffle(waiting)
            for job in waiting:
                self._harm()
                self._serve(job)

    def _harm(self) -> None:
        stage, dice = self._stage, self._dice
        if dice.happens(self._chaos.rebalance):
            stage.rebalance()
        if dice.happens(self._chaos.crash):
            victim = dice.random.choice(stage.dispatchers)
            if dice.random.random() < 0.5:
                stage.crash(victim, disk_lost=dice.random.random() < 0.5)
            else:
                victim.kill_after(dice.random.randint(1, EFFECTS_MAX))

    def _serve(self, job: DrivenJob) -> None:
        """A worker takes the job; what it reports has a fate."""
        job.taken = True
        status = result_status(job.stored, self._hands.execute(job), 0)
        fate = self._dice.fate()
        if fate is Fate.LOST:
            return
        timeout_ms = job.stored.timeout_ms
        if fate is Fate.LATE:
            self._stage.report(status, timeout_ms + self._dice.random.randint(1, timeout_ms))
            return
        self._stage.report(status)
        if fate is Fate.TWICE:
            self._stage.report(status, self._dice.random.randint(0, 2 * timeout_ms))

    def _report(self, status: Any) -> None:
        self._stage.report(status)
        self._stage.settle()

    def _collect(self) -> None:
        """Take in what was issued; forget what was answered and settled."""
        for job in self._stage.take_jobs():
            self._jobs[job.job_id] = DrivenJob(job, self._desk)
        for job_id in [each.job_id for each in self._jobs.values() if each.taken]:
            del self._jobs[job_id]

    def _pass_to_news(self, end_ms: int) -> None:
        """Let time pass until there is work, or a late report has come, or nothing is under way."""
        was_busy = self._is_busy()
        self._stage.pass_until(
            end_ms, lambda: self._stage.take_news() or (was_busy and not self._is_busy())
        )

    def _is_busy(self) -> bool:
        return self._stage.load() > 0 or self._stage.is_waiting_for_reports

    def _domain(self, domain: Domain | str | None) -> str:
        names = list(self._stage.plans)
        if domain is None and len(names) == 1:
            return names[0]
        name = domain.name if isinstance(domain, Domain) else domain
        if name not in self._stage.plans:
            asked = "name one" if name is None else f"none is {name!r}"
            raise DriverMisuseError(f"the App has the domains {', '.join(names)}: {asked}")
        return name

    def _topology(self, topology: Topology | str) -> tuple[str, str]:
        name = topology.name if isinstance(topology, Topology) else topology
        owners = [
            domain
            for domain, plan in self._stage.plans.items()
            if name in {each.name for each in plan.topologies}
            and (isinstance(topology, str) or topology.domain == domain)
        ]
        if len(owners) != 1:
            known = [each.name for plan in self._stage.plans.values() for each in plan.topologies]
            hint = "give the Topology itself" if owners else f"there are {', '.join(known)}"
            raise DriverMisuseError(f"{len(owners)} topologies are named {name!r}: {hint}")
        return owners[0], name


def _to_ms(duration: Duration) -> int:
    try:
        return to_after_ms(duration) or 0
    except (TypeError, ValueError) as error:
        raise DriverMisuseError(
            f"{duration!r} is no duration: give a timedelta or seconds, >= 0"
        ) from error


def _to_bytes(payload: object) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    return payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
