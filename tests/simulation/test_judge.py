"""The judge on stories told by hand: each broken promise is seen, and nothing else is."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.model.active_row import ActiveRow, LambdaRow
from cape_stream.model.cursor import CursorInfo
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.topology import DomainSpec, LambdaSpec, TopologySpec
from cape_stream.ports.log import TopicPartition
from cape_stream.runtime.active_rows import encode_active_row
from cape_stream.runtime.recovery import META_KEY, TaskMeta
from cape_stream.testing import Scenario
from cape_stream.testing.checks import Judge
from cape_stream.testing.committed import CommittedJudge
from cape_stream.testing.history import Execution
from cape_stream.testing.stage import Stage

PARSE, STORE = (LambdaSpec(lambda_id="parse"), LambdaSpec(lambda_id="store", inputs=("parse",)))
DOMAIN = DomainSpec(
    name="d",
    topologies=(
        TopologySpec(name="line", lambdas=(LambdaSpec(lambda_id="main"),), ordering="ordered"),
        TopologySpec(name="next", lambdas=(LambdaSpec(lambda_id="main"),), after=("line",)),
        TopologySpec(name="chain", lambdas=(PARSE, STORE), start=1),
    ),
)


class Story:
    """What happened to subject ``S`` with the events 0 and 1."""

    def __init__(self) -> None:
        self.stage = Stage(Scenario(seed=0, domains=(DOMAIN,), partitions=1), AvroCodec())
        for sequence in (0, 1):
            self.stage.sources["d"].publish("S", Event(sequence, b"%d" % sequence))

    def begin(
        self,
        topology: str,
        sequence: int,
        lambda_id: str = "main",
        *,
        job: str | None = None,
        token: tuple[int, int] = (1, 1),
        inputs: Mapping[str, bytes] | None = None,
        payload: bytes | None = None,
    ) -> Execution:
        event = Event(sequence, b"%d" % sequence if payload is None else payload, {}, inputs or {})
        job_id = job or f"{topology}.{lambda_id}.{sequence}"
        epoch, attempt = token
        place = ("d", 0, "S", topology, lambda_id, "general")
        return self.stage.history.begin(
            Job(job_id, *place, epoch, attempt, 0, 1_000, [event]), event, "w"
        )

    def end(self, execution: Execution, output: bytes | None = b"out") -> None:
        self.stage.history.end(execution, output)

    def do(self, topology: str, sequence: int, lambda_id: str = "main", **terms: Any) -> None:
        self.end(self.begin(topology, sequence, lambda_id, **terms))

    def do_all(self) -> None:
        """Everything, as it should be."""
        for sequence in (0, 1):
            self.do("line", sequence)
            self.do("next", sequence)
        self.do("chain", 1, "parse")
        self.do("chain", 1, "store", inputs={"parse": b"out"})

    def commit(self, key: bytes, value: bytes) -> None:
        changelog = TopicPartition(self.stage.names.changelog("d"), 0)
        self.stage.broker.append(changelog, key, value)

    def commit_cursor(self, line: int) -> None:
        info = CursorInfo("S", 1, {"line": line, "next": -1, "chain": 0})
        self.commit(b"cS", self.stage.codec.encode_cursors(info))

    def commit_active(self, row: LambdaRow) -> None:
        self.commit(b"aS", encode_active_row(ActiveRow("S", 1, 0, [row])))

    def rules(self) -> list[str]:
        self.stage.read_changelogs()
        stage = self.stage
        return [
            each.rule for each in [*Judge(stage).violations(), *CommittedJudge(stage).violations()]
        ]


def lost(story: Story) -> None:
    story.end(story.begin("next", 1, token=(1, 2)), None)
    story.stage.sources["d"].publish("S", Event(2, b"2"))
    story.do("line", 2)
    story.do("chain", 2, "parse")
    story.do("chain", 2, "store", inputs={"parse": b"out"})


def out_of_order(story: Story) -> None:
    for sequence in (2, 3):
        story.stage.sources["d"].publish("S", Event(sequence, b"%d" % sequence))
    for sequence in (3, 2):
        story.do("line", sequence)
    for sequence in (2, 3):
        story.do("next", sequence)
        story.do("chain", sequence, "parse")
        story.do("chain", sequence, "store", inputs={"parse": b"out"})


def rival(story: Story) -> None:
    runs = story.begin("line", 0, job="again", token=(1, 2))
    story.do("line", 1, job="later", token=(1, 2))
    story.end(runs)


def overtaken_rival(story: Story) -> None:
    late = story.begin("line", 0, job="zombie", token=(1, 2))
    story.do("line", 0, job="newer", token=(1, 3))
    story.do("line", 1, job="later", token=(1, 2))
    story.end(late)


def before_its_time(story: Story) -> None:
    story.stage.sources["d"].publish("S", Event(2, b"2"))
    story.do("next", 2)
    story.do("line", 2)
    story.do("chain", 2, "parse")
    story.do("chain", 2, "store", inputs={"parse": b"out"})


def wrong_input(story: Story) -> None:
    story.do("chain", 1, "store", token=(1, 2), inputs={"parse": b"of another event"})


def missing_input(story: Story) -> None:
    story.do("chain", 1, "store", token=(1, 2))


def wrong_payload(story: Story) -> None:
    story.do("line", 1, token=(1, 2), payload=b"other")


def issued_twice(story: Story) -> None:
    story.do("line", 1, job="other", token=(2, 1))


def read_twice(story: Story) -> None:
    story.do("line", 1)


def cursor_too_far(story: Story) -> None:
    story.commit_cursor(1)
    story.stage.sources["d"].publish("S", Event(2, b"2"))
    story.commit_cursor(2)
    story.stage.timeline.run_until(story.stage.timeline.now_ms + 1)
    for place in (("line", "main"), ("next", "main"), ("chain", "parse")):
        story.do(place[0], 2, place[1])
    story.do("chain", 2, "store", inputs={"parse": b"out"})


def cursor_back(story: Story) -> None:
    story.commit_cursor(1)
    story.commit_cursor(0)


def active_cursor_back(story: Story) -> None:
    story.commit_active(LambdaRow("line", "main", 1))
    story.commit_active(LambdaRow("line", "main", 0))


def done_too_early(story: Story) -> None:
    story.commit_active(LambdaRow("line", "main", 0, done=[1, 5]))


def old_owner(story: Story) -> None:
    for epoch in (1, 2, 1):
        story.commit(META_KEY, TaskMeta(epoch).encode())


@pytest.mark.parametrize(
    ("tell", "rules"),
    [
        (lambda _: None, []),
        (overtaken_rival, []),
        (read_twice, []),
        (lost, ["lost"]),
        (out_of_order, ["order"]),
        (rival, ["rival"]),
        (before_its_time, ["dependency"]),
        (wrong_input, ["input"]),
        (missing_input, ["input"]),
        (wrong_payload, ["payload"]),
        (issued_twice, ["twice"]),
        (cursor_too_far, ["cursor"]),
        (cursor_back, ["backwards"]),
        (active_cursor_back, ["backwards"]),
        (done_too_early, ["done"]),
        (old_owner, ["owner"]),
    ],
)
def test_judge_names_the_broken_promise(tell: Callable[[Story], None], rules: list[str]) -> None:
    """Beside a world in which all is well, so that one thing at a time is wrong."""
    story = Story()
    story.do_all()
    tell(story)

    assert story.rules() == rules
