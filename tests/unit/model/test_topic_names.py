import pytest

from cape_stream.model.topic_names import TopicNames

NAMES = TopicNames("flight-ops")


def test_topic_names_spell_every_topic_and_group_once() -> None:
    spelled = [
        NAMES.pings("flights"),
        NAMES.statuses("flights"),
        NAMES.changelog("flights"),
        NAMES.jobs("general"),
        NAMES.jobs("general", backlog=True),
        NAMES.dead_letters,
        NAMES.refresh,
        NAMES.dispatcher_group,
        NAMES.worker_group,
        NAMES.refresh_group,
    ]

    assert len(set(spelled)) == len(spelled)
    assert all(name.startswith("flight-ops.") for name in spelled)


@pytest.mark.parametrize("queue", ["general", "bulk-ingest", "jobs", "a.b"])
@pytest.mark.parametrize("backlog", [False, True])
def test_queue_of_reads_what_jobs_spells(queue: str, backlog: bool) -> None:
    assert NAMES.queue_of(NAMES.jobs(queue, backlog=backlog)) == queue
