"""A simulated world: whole dispatchers and workers under one seed, first in harm, then in peace.

    harm ──▶ peace, poisoned subjects still fail ──▶ cure ──▶ everything must have arrived
             others must not feel them

One seed decides everything, so a world can be lived through again, event by event.
"""

from collections.abc import Callable
from typing import Self

from cape_stream.adapters.simulated import STEADY
from cape_stream.ports.codec import Codec
from cape_stream.testing.checks_at_rest import late_probes, unfinished_rows
from cape_stream.testing.dispatchers import DispatcherSeat
from cape_stream.testing.harming import STRANGER, Harmer
from cape_stream.testing.inflight import inflight_faults
from cape_stream.testing.publishing import Publisher
from cape_stream.testing.real_workers import RealWorkerSeat
from cape_stream.testing.refreshers import RefresherSeat
from cape_stream.testing.scenario import Scenario
from cape_stream.testing.seat import Seat
from cape_stream.testing.stage import Stage
from cape_stream.testing.workers import WorkerSeat

LOOK_MS = 50
"""How often the world looks whether it has come to its end."""
REST_MS = 500
"""In which whatever is still under way comes to its end."""
JOIN_MS_MAX = 300
"""Processes join at different times; the last ones cause a rebalance."""


class World:
    """One world, from its first event to its end. Use `close`, or ``with``.

    Args:
        scenario: what it is like.
        codec: how records are written; the real one.
    """

    def __init__(self, scenario: Scenario, codec: Codec) -> None:
        self.stage = Stage(scenario, codec)
        self.dispatchers = [DispatcherSeat(self.stage, n) for n in range(scenario.dispatchers)]
        self.workers: list[Seat] = [WorkerSeat(self.stage, n) for n in range(scenario.workers)]
        self.workers += [RealWorkerSeat(self.stage, n) for n in range(scenario.real_workers)]
        self.publisher = Publisher(self.stage)
        self.refreshers = [RefresherSeat(self.stage, n) for n in range(scenario.refreshers)]
        self.seats: list[Seat] = [*self.dispatchers, *self.workers, *self.refreshers]
        self.harmer = Harmer(self.stage, self.dispatchers, self.workers, self.refreshers)
        self.finished = False
        """True once every event has arrived and every cursor stands at its head."""
        self.probes: dict[tuple[str, str], int] = {}
        """(domain, subject) → event published in peace, beside subjects that fail."""
        self.inflight_faults: list[str] = []
        """Books that did not add up; see `inflight_faults`."""

    def run(self) -> None:
        """Live through all of it."""
        scenario, timeline = self.stage.scenario, self.stage.timeline
        for seat in self.seats:
            timeline.after(self.stage.dice.random.randint(0, JOIN_MS_MAX), seat.start)
        self.publisher.start()
        self.harmer.start()
        self._pass(scenario.safety_ms)
        self._make_peace()
        if scenario.load.poisoned:
            self._pass(scenario.settling_ms)
            self._probe()
            self._pass(scenario.probe_ms, until=self._probes_are_done)
        self.stage.cured.update(self.stage.plans)
        self.stage.note("world", "cured")
        self.finished = self._pass(scenario.bound_ms, until=self._is_finished)
        self._pass(REST_MS)
        self.stage.note("world", "finished" if self.finished else "NOT finished")

    def close(self) -> None:
        """Free the threads under its call stacks."""
        self.stage.timeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- phases --------------------------------------------------------------------------------

    def _pass(self, duration_ms: int, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass, with a look at the books now and then; True once ``until`` says so."""
        timeline = self.stage.timeline
        end_ms = timeline.now_ms + duration_ms
        while timeline.now_ms < end_ms:
            timeline.run_until(min(timeline.now_ms + LOOK_MS, end_ms))
            self._look()
            if until is not None and until():
                return True
        return False

    def _make_peace(self) -> None:
        """Nothing goes wrong any more, and everybody who is gone comes back."""
        self.stage.safe = True
        self.stage.dice.faults = STEADY
        self.stage.note("world", "peace")

    def _probe(self) -> None:
        """One more event of every healthy subject."""
        for domain in self.stage.plans:
            for subject in self.publisher.healthy:
                sequence = self.publisher.publish(domain, subject)
                self.probes[domain, subject] = sequence

    # --- looking -------------------------------------------------------------------------------

    def _look(self) -> None:
        self.stage.read_changelogs()
        subjects = [*self.publisher.healthy, *self.publisher.poisoned, STRANGER]
        for seat in self.dispatchers:
            for processor in seat.processors():
                faults = inflight_faults(processor.scheduler, subjects)
                self.inflight_faults += [f"{seat.name}: {fault}" for fault in faults]

    def _is_finished(self) -> bool:
        """Every event delivered, every cursor at its head, nothing active, everybody at rest."""
        history = self.stage.history
        if self.publisher.left or len(history.delivered) < self._deliveries_due():
            return False
        if not all(seat.at_work for seat in self.seats):
            return False
        if any(unfinished_rows(self.stage)):
            return False
        return not any(p.load() for seat in self.dispatchers for p in seat.processors())

    def _probes_are_done(self) -> bool:
        return not any(late_probes(self.stage, self.probes))

    def _deliveries_due(self) -> int:
        due = 0
        for domain in self.stage.scenario.domains:
            sequences = [q for name, _, q in self.stage.history.published if name == domain.name]
            for topology in domain.topologies:
                wanted = sum(sequence >= topology.start for sequence in sequences)
                due += wanted * len(topology.lambdas)
        return due
