"""Lambdas that feed one another: gates, inputs, and outputs that are kept as long as needed."""

from cape_stream.core.scheduler import SchedulerSettings
from cape_stream.model.status import StatusKind
from cape_stream.model.topology import LambdaSpec, TopologySpec
from tests.desk import Desk, topology


def served(*topologies: TopologySpec, events: int, page_limit: int = 100) -> Desk:
    """Events 1 to ``events`` of S have been pinged and fetched."""
    desk = Desk(*topologies, page_limit=page_limit)
    desk.publish("S", range(1, events + 1))
    desk.ping("S", events)
    desk.serve()
    return desk


STAGES = topology(
    "T1",
    LambdaSpec(lambda_id="parse", max_batch=2),
    LambdaSpec(lambda_id="store", inputs=("parse",), max_batch=10),
)


def inputs_of(desk: Desk, name: str) -> dict[int, dict[str, bytes]]:
    return {each.sequence: dict(each.inputs) for each in desk.jobs[name].events}


def test_second_lambda_gets_the_outputs_of_the_first() -> None:
    desk = served(STAGES, events=3)
    assert [job.lambda_id for job in desk.jobs.values()] == ["parse", "parse"]
    desk.report("J1", outputs={1: b"one", 2: b"two"})

    assert desk.newest().lambda_id == "store"
    assert inputs_of(desk, "J3") == {1: {"parse": b"one"}, 2: {"parse": b"two"}}
    assert [each.payload for each in desk.newest().events] == [b"e1", b"e2"]
    assert desk.cursor("S", "T1") == -1
    desk.report("J3")
    assert desk.cursor("S", "T1") == 2


def test_second_lambda_gets_no_input_where_the_first_gave_none() -> None:
    desk = served(STAGES, events=2)
    desk.report("J1", outputs={2: b"two"})

    assert inputs_of(desk, "J2") == {1: {}, 2: {"parse": b"two"}}


def test_outputs_are_dropped_once_all_who_take_them_are_done() -> None:
    spec = topology(
        "T1",
        LambdaSpec(lambda_id="parse"),
        LambdaSpec(lambda_id="left", inputs=("parse",)),
        LambdaSpec(lambda_id="right", inputs=("parse",)),
        LambdaSpec(lambda_id="join", inputs=("left", "right")),
    )
    desk = served(spec, events=1)
    desk.report("J1", outputs={1: b"p"})
    assert [job.lambda_id for job in desk.jobs.values()] == ["parse", "left", "right"]
    desk.report("J2", outputs={1: b"l"})
    assert desk.lambda_state("S", "T1", "parse").outputs == {1: b"p"}
    desk.report("J3", outputs={1: b"r"})
    assert desk.lambda_state("S", "T1", "parse").outputs == {}
    assert inputs_of(desk, "J4") == {1: {"left": b"l", "right": b"r"}}
    desk.report("J4")
    assert desk.scheduler.active_subjects == 0


def test_outputs_survive_a_restart_and_a_failure_of_the_second_lambda() -> None:
    desk = served(STAGES, events=1)
    desk.report("J1", outputs={1: b"one"})
    desk.report("J2", failed=[1])
    desk.commit()
    desk.crash()
    while not desk.out():
        desk.tick(100)
        desk.serve()

    assert inputs_of(desk, desk.names_out()[0]) == {1: {"parse": b"one"}}


def test_outputs_count_into_the_bytes_of_a_job() -> None:
    desk = Desk(STAGES, settings=SchedulerSettings(job_bytes_max=1_000))
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.serve()
    desk.report("J1", outputs={1: b"x" * 700, 2: b"y" * 700})

    assert [job.lambda_id for job in desk.jobs.values()] == ["parse", "store", "store"]
    assert desk.out() == [[1], [2]]


def test_output_that_fits_no_job_is_told() -> None:
    desk = Desk(STAGES, settings=SchedulerSettings(job_bytes_max=1_000))
    desk.publish("S", [1, 2])
    desk.ping("S", 2)
    desk.serve()
    desk.report("J1", outputs={1: b"x" * 2_000, 2: b"y"})

    assert desk.out() == [[2]]
    assert [(each.lambda_index, each.sequence) for each in desk.oversized] == [(1, 1)]


def test_handed_back_second_stage_goes_out_with_its_inputs_again() -> None:
    desk = served(STAGES, events=1)
    desk.report("J1", outputs={1: b"one"})
    desk.report("J2", kind=StatusKind.HANDED_BACK)

    assert inputs_of(desk, "J3") == {1: {"parse": b"one"}}


def test_second_lambda_may_end_where_the_first_gave_no_output() -> None:
    desk = served(STAGES, events=1)
    desk.report("J1")
    desk.report("J2")

    assert desk.scheduler.active_subjects == 0
    assert desk.cursor("S", "T1") == 1


def test_adopted_second_stage_is_tried_again_only_after_the_first_when_that_is_forgotten() -> None:
    """The changelog and the first's status are lost: its output is made anew, not left out."""
    desk = served(STAGES, events=1)
    desk.report("J1", outputs={1: b"one"})
    desk.crash(adopting=["J2"])
    desk.report("J2", failed=[1])
    desk.tick(300_000)
    desk.ping("S", 1)
    desk.serve()

    assert desk.newest().lambda_id == "parse"
    desk.report(desk.names_out()[0], outputs={1: b"anew"})
    assert inputs_of(desk, desk.names_out()[0]) == {1: {"parse": b"anew"}}
