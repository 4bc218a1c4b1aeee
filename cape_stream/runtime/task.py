"""One task: a partition's processor, its offsets, and its rows on their way to the changelog."""

from collections import deque
from collections.abc import Iterator, Sequence

from cape_stream.ports.log import TopicPartition, Write
from cape_stream.ports.table import Table
from cape_stream.runtime.lifecycle import NEXT_STATES, TaskState
from cape_stream.runtime.processor import Processor, TaskGroup, TaskId


class Task:
    """State of one task on this member. A new object each time the partition is assigned."""

    __slots__ = (
        "bounds",
        "changelog",
        "claimed",
        "committed",
        "due_ahead_ms",
        "due_from_ms",
        "due_scan",
        "due_scan_ms",
        "epoch",
        "group",
        "id",
        "inputs",
        "landed_ms",
        "name",
        "offsets",
        "outbox",
        "processor",
        "proof_ms",
        "replay_ends",
        "state",
        "sweep",
        "sweep_due_ms",
        "table",
        "unlanded",
        "unlanded_writes",
    )

    def __init__(self, group: TaskGroup, partition: int, table: Table) -> None:
        self.group = group
        self.id = TaskId(group.name, partition)
        self.name = str(self.id)
        self.inputs = [TopicPartition(topic, partition) for topic in group.inputs]
        self.changelog = TopicPartition(group.changelog, partition)
        self.table = table
        self.state = TaskState.RESTORING
        self.processor: Processor | None = None
        self.epoch = 0
        self.bounds: dict[str, int] = {}
        """Output topic → offset below which every output is accounted for in the rows."""
        self.claimed = False
        """True once a commit with our epoch was taken."""
        self.replay_ends: dict[TopicPartition, int] = {}
        """Inputs to replay first, and where they ended when the task was restored."""
        self.offsets: dict[TopicPartition, int] = {}
        """Per input, the next offset that is not yet in the processor's state."""
        self.committed: dict[TopicPartition, int] = {}
        """The same as of the last commit that landed."""
        self.outbox: deque[Write] = deque()
        """Outputs not handed to the producer yet: its queue is full, or the proof is too old."""
        self.unlanded: dict[bytes, bytes | None] = {}
        """Rows taken for a commit that has not landed; newer than the table."""
        self.unlanded_writes: list[Write] = []
        """Records that must go out with the state, not taken for a commit yet."""
        self.proof_ms: int | None = None
        """When the newest commit that proves our ownership began; None before the first."""
        self.sweep: Iterator[tuple[bytes, bytes]] | None = None
        self.sweep_due_ms: int | None = None
        self.due_scan: Iterator[bytes] | None = None
        """A scan of the due index that goes on in the next turn."""
        self.due_scan_ms = 0
        """When the next one begins."""
        self.due_from_ms = 0
        """Index rows due before this were found by an earlier scan. The next one begins here, and
        does not walk over everything that has been deleted since the table was last compacted."""
        self.landed_ms = 0
        """When the last commit that landed was taken. A row made since then is due after it."""
        self.due_ahead_ms = 0
        """How far the clock of the process that stored the state was ahead of ours: the first scan
        looks so much further, for what it meant by its times is due sooner by ours."""

    def move_to(self, state: TaskState) -> None:
        """Enter the next state of the life."""
        assert state in NEXT_STATES[self.state], f"{self.name}: {self.state} cannot become {state}"
        self.state = state

    @property
    def open(self) -> bool:
        """True while the partition is ours."""
        return self.state is not TaskState.CLOSED

    def read_rows(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Stored values, the ones on their way included."""
        if not self.unlanded:
            return self.table.get_many(self.name, keys)
        unlanded = self.unlanded
        missing = [key for key in keys if key not in unlanded]
        found = dict(zip(missing, self.table.get_many(self.name, missing), strict=True))
        return [unlanded[key] if key in unlanded else found[key] for key in keys]
