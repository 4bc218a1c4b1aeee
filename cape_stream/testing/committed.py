"""What the changelogs say, held against what handlers did: the second half of the judge.

| rule | promise |
|---|---|
| cursor | a committed cursor never passes an event that is not done |
| done | no event is committed as done that is not |
| backwards | a committed cursor never goes back |
| owner | after a state of a new owner, none of an old one is committed |
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from cape_stream.model.topology import TopologySpec
from cape_stream.runtime.active_rows import decode_active_row
from cape_stream.runtime.dispatching import ACTIVE_PREFIX, CURSOR_PREFIX
from cape_stream.runtime.recovery import META_KEY, TaskMeta
from cape_stream.testing.history import CommittedRow, Place
from cape_stream.testing.stage import START_MS, Stage
from cape_stream.testing.violation import Violation


class CommittedJudge:
    """Goes through the changelogs of one world, record by record.

    Args:
        stage: of a world that has come to its end; its changelogs have been read.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._topologies = {
            (domain.name, topology.name): topology
            for domain in stage.scenario.domains
            for topology in domain.topologies
        }
        self._cursors: dict[Place, int] = {}
        """Newest cursor of each lambda."""
        self._lowest: dict[tuple[str, str, str], int] = {}
        """(domain, subject, topology) → its newest cursor, the lowest of its lambdas."""
        self._epochs: dict[tuple[str, int], int] = defaultdict(int)

    def violations(self) -> Iterator[Violation]:
        """Everything that is wrong, in the order of the log."""
        for row in self._stage.history.rows:
            if row.value is None:
                continue
            if row.key == META_KEY:
                yield from self._judge_owner(row, row.value)
            elif row.key.startswith(CURSOR_PREFIX):
                yield from self._judge_cursors(row, row.value)
            elif row.key.startswith(ACTIVE_PREFIX):
                yield from self._judge_active(row, row.value)

    def _judge_owner(self, row: CommittedRow, value: bytes) -> Iterator[Violation]:
        """Every commit that stores rows of a task stores its owner's epoch beside them."""
        task = row.domain, row.partition
        epoch, newest = TaskMeta.decode(value).epoch, self._epochs[task]
        if epoch < newest:
            text = f"{row.domain}-{row.partition}: epoch {epoch} after {newest}"
            yield _violation("owner", row, text)
        self._epochs[task] = max(epoch, newest)

    def _judge_cursors(self, row: CommittedRow, value: bytes) -> Iterator[Violation]:
        info = self._stage.codec.decode_cursors(value)
        for name, cursor in info.cursors.items():
            topology = self._topologies[row.domain, name]
            at = row.domain, info.subject, name
            last = self._lowest.get(at, topology.start - 1)
            if cursor < last:
                where = f"{row.domain}/{info.subject} {name}"
                yield _violation("backwards", row, f"{where} from {last} to {cursor}")
            self._lowest[at] = max(cursor, last)
            for entry in topology.lambdas:
                place = Place(row.domain, info.subject, name, entry.lambda_id)
                yield from self._judge_cursor(row, topology, place, cursor)

    def _judge_active(self, row: CommittedRow, value: bytes) -> Iterator[Violation]:
        state = decode_active_row(value)
        for entry in state.lambdas:
            topology = self._topologies[row.domain, entry.topology]
            place = Place(row.domain, state.subject, entry.topology, entry.lambda_id)
            if entry.cursor < (last := self._cursors.get(place, topology.start - 1)):
                yield _violation("backwards", row, f"{place.name} from {last} to {entry.cursor}")
            yield from self._judge_cursor(row, topology, place, entry.cursor)
            for sequence in self._undone(place, entry.done, row.ms):
                yield _violation("done", row, f"{place.name} {sequence} is not done")

    def _judge_cursor(
        self, row: CommittedRow, topology: TopologySpec, place: Place, cursor: int
    ) -> Iterator[Violation]:
        """The lambda has done all up to ``cursor``, perhaps more."""
        last = self._cursors.get(place, topology.start - 1)
        events = self._stage.sources[place.domain].events.get(place.subject, ())
        passed = [e.sequence for e in events if last < e.sequence <= cursor]
        for sequence in self._undone(place, passed, row.ms):
            text = f"{place.name} stands at {cursor}, {sequence} is not done"
            yield _violation("cursor", row, text)
        self._cursors[place] = max(cursor, last)

    def _undone(self, place: Place, sequences: Iterable[int], ms: int) -> Iterator[int]:
        for sequence in sequences:
            moment = self._stage.history.delivered.get((place, sequence))
            if moment is None or moment.ms > ms:
                yield sequence


def _violation(rule: str, row: CommittedRow, text: str) -> Violation:
    return Violation(rule, row.ms - START_MS, text)
