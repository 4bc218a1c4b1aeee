import pytest

from cape_stream.model.job import BACKLOG, LIVE
from cape_stream.model.topic_names import TopicNames

NAMES = TopicNames("flight-ops")


def test_topic_names_spell_every_topic_and_group_once() -> None:
    spelled = [
        NAMES.pings("flights"),
        NAMES.statuses("flights"),
        NAMES.changelog("flights"),
        NAMES.operations("flights"),
        NAMES.audit("flights"),
        NAMES.jobs("general"),
        NAMES.jobs("general", BACKLOG),
        NAMES.dead_letters,
        NAMES.refresh,
        NAMES.dispatcher_group,
        NAMES.worker_group,
        NAMES.refresh_group,
    ]

    assert len(set(spelled)) == len(spelled)
    assert all(name.startswith("flight-ops.") for name in spelled)


@pytest.mark.parametrize("queue", ["general", "bulk-ingest", "jobs", "a.b"])
@pytest.mark.parametrize("lane", [LIVE, BACKLOG])
def test_queue_and_lane_are_read_from_what_jobs_spells(queue: str, lane: str) -> None:
    topic = NAMES.jobs(queue, lane)

    assert (NAMES.queue_of(topic), NAMES.lane_of(topic)) == (queue, lane)


def test_job_topics_are_those_of_every_lane_live_ones_first() -> None:
    assert NAMES.job_topics(["a", "b"]) == (
        NAMES.jobs("a"),
        NAMES.jobs("b"),
        NAMES.jobs("a", BACKLOG),
        NAMES.jobs("b", BACKLOG),
    )
