"""Checks of what is left when everything has arrived and everybody is at rest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cape_stream.adapters.simulated import Disk
from cape_stream.model.topology import TopologySpec
from cape_stream.runtime.dispatching import (
    ACTIVE_PREFIX,
    ASLEEP_PREFIX,
    CURSOR_PREFIX,
    DUE_PREFIX,
)
from cape_stream.testing.history import Place
from cape_stream.testing.stage import Stage


def unfinished_rows(stage: Stage) -> Iterator[str]:
    """Rows of active subjects, and cursors that do not stand at their head."""
    heads: dict[tuple[str, str], int] = {}
    for domain, subject, sequence in stage.history.published:
        heads[domain, subject] = sequence
    reached: set[tuple[str, str]] = set()
    for (domain, _), rows in stage.history.last_rows.items():
        for key, value in rows.items():
            if key.startswith(DUE_PREFIX):
                yield f"{domain}: {key!r} is still indexed"
                continue
            subject = key[1:].decode()
            if key.startswith(ASLEEP_PREFIX):
                yield f"{domain}/{subject} is still asleep"
            elif key.startswith(ACTIVE_PREFIX):
                yield f"{domain}/{subject} is still active"
            elif key.startswith(CURSOR_PREFIX):
                head = heads.get((domain, subject))
                cursors = stage.codec.decode_cursors(value).cursors
                late = {name: at for name, at in cursors.items() if head is not None and at < head}
                if late:
                    yield f"{domain}/{subject}: cursors {late} have not reached {head}"
                reached.add((domain, subject))
    for domain, subject in heads.keys() - reached:
        yield f"{domain}/{subject} has no cursors"


def table_faults(stage: Stage, disks: Iterable[tuple[Disk, Iterable[str]]]) -> Iterator[str]:
    """Rows of owned tasks that differ from their changelog, replayed.

    Args:
        stage: the world's shared part; its changelogs have been read.
        disks: every disk with the tasks its process owns.
    """
    for disk, tasks in disks:
        for task in tasks:
            domain, _, partition = task.rpartition("-")
            wanted = stage.history.last_rows[domain, int(partition)]
            stored = disk.tasks[task].rows
            differing = sorted(
                key for key in wanted.keys() | stored.keys() if wanted.get(key) != stored.get(key)
            )
            if differing:
                yield f"{disk.folder}, task {task}: {differing} differ from the changelog"


def _unlimited(topologies: Sequence[TopologySpec]) -> Iterator[TopologySpec]:
    """Those whose jobs wait for no limit that somebody set, neither theirs nor that of one before
    them: where few may run at a time, neighbours do delay each other."""
    limited: set[str] = set()
    for topology in topologies:
        own = topology.in_flight_max is not None or topology.jobs_per_s_max is not None
        if own or limited.intersection(topology.after):
            limited.add(topology.name)
        else:
            yield topology


def late_probes(stage: Stage, probes: Mapping[tuple[str, str], int]) -> Iterator[str]:
    """Probes that some lambda has not done within the scenario's time.

    Args:
        stage: the world's shared part.
        probes: (domain, subject) → sequence id.
    """
    history = stage.history
    for domain in stage.scenario.domains:
        for (name, subject), sequence in probes.items():
            if name != domain.name:
                continue
            published = history.published[name, subject, sequence]
            for topology in _unlimited(domain.topologies):
                for entry in topology.lambdas:
                    place = Place(name, subject, topology.name, entry.lambda_id)
                    done = history.delivered.get((place, sequence))
                    if sequence >= topology.start and (
                        done is None or done.ms - published.ms > stage.scenario.probe_ms
                    ):
                        late_ms = (done.ms if done else stage.timeline.now_ms) - published.ms
                        yield f"{name}/{subject} {topology.name} {sequence} late: {late_ms} ms"
