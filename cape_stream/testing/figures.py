"""What happened in a world, counted: so that a clean verdict can be told from an idle world."""

from collections import Counter
from collections.abc import Iterator

from cape_stream.testing.stage import START_MS, Stage
from cape_stream.testing.world import World

NOTED = {
    "killed": "processes ended",
    "stopped": "stops",
    "assigned": "assignments",
    "revoked": "revocations",
    "lost": "losses noticed",
    "put out": "members put out",
    "committed": "commits",
}
"""What a line of the trace says → the figure it counts for."""


def figures_of(world: World) -> Counter[str]:
    """Everything countable, by name."""
    stage = world.stage
    figures: Counter[str] = Counter({f"harm: {harm}": n for harm, n in world.harmer.counts.items()})
    figures["worlds"] = 1
    figures["virtual ms"] = stage.timeline.now_ms - START_MS
    figures["events"] = len(stage.history.published)
    figures["deliveries"] = len(stage.history.delivered)
    figures["executions"] = len(stage.history.executions)
    figures["dispatchers started"] = sum(seat.starts for seat in world.dispatchers)
    figures["workers started"] = sum(seat.starts for seat in world.workers)
    figures["refreshers started"] = sum(seat.starts for seat in world.refreshers)
    figures.update(_explained(stage))
    figures.update(NOTED[what] for _, _, what, _ in stage.timeline.trace if what in NOTED)
    for seat in world.dispatchers:
        for _, processor in seat.made:
            figures.update(processor.counters())
    return figures


def _explained(stage: Stage) -> Iterator[str]:
    """Why each execution beyond one a delivery happened."""
    read: set[tuple[str, int]] = set()
    for execution in stage.history.executions:
        first = stage.history.delivered.get((execution.place, execution.sequence))
        again = (execution.job_id, execution.sequence) in read
        read.add((execution.job_id, execution.sequence))
        if first is not None and execution.ended == first:
            continue
        if again:
            yield "executions again: a worker was gone before it had stored that it took the job"
        elif not execution.succeeded:
            yield "executions that did not succeed"
        elif execution.attempt > 1:
            yield "executions again: a later attempt, after a timeout, a lost or a doubled report"
        else:
            yield "executions again: a first attempt that was overtaken by a later one"
