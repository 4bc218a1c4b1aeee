"""The topic files: they agree with the names in the model, and with what the system relies on."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cape_stream.adapters.kafka.committer import STATE_BYTES_MAX
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.core.rows import ERROR_BYTES_MAX
from cape_stream.core.settling import SUBJECT_OUTPUT_BYTES_MAX
from cape_stream.errors import Fatal
from cape_stream.ports.log import TopicSpec
from cape_stream.roles.topics import topic_files, topic_specs
from cape_stream.sdk.app import App
from cape_stream.sdk.batch import Batch
from cape_stream.shipped import shipped

DAY_MS = 24 * 60 * 60 * 1000
KINDS = [
    "audit",
    "changelog",
    "dead_letters",
    "job_statuses",
    "jobs",
    "operations",
    "pings",
    "refresh",
]


def parse(batch: Batch) -> None:
    """A handler that is declared and never called."""


def store(batch: Batch) -> None:
    """Another one."""


def flight_ops() -> App:
    app = App("flight-ops", partitions=4)
    delays = app.domain("flights", source=MemoryEventSource()).topology("delays")
    first = delays.handler(queue="general")(parse)
    delays.handler(inputs=first, queue="bulk")(store)
    rosters = app.domain("crews", source=MemoryEventSource()).topology("rosters")
    rosters.handler(queue="bulk")(store)
    return app


@pytest.fixture(name="specs")
def specs_of_flight_ops() -> dict[str, TopicSpec]:
    return {spec.name: spec for spec in topic_specs(flight_ops())}


def changed(folder: Path, file: str, change: Callable[[str], str]) -> Path:
    shutil.copytree(str(shipped("topics")), folder)
    (folder / file).write_text(change((folder / file).read_text()))
    return folder


def test_specs_bear_the_names_of_the_model(specs: dict[str, TopicSpec]) -> None:
    names = flight_ops().topic_names

    assert set(specs) == {
        *(names.pings(domain) for domain in ("flights", "crews")),
        *(names.statuses(domain) for domain in ("flights", "crews")),
        *(names.changelog(domain) for domain in ("flights", "crews")),
        *(names.operations(domain) for domain in ("flights", "crews")),
        *(names.audit(domain) for domain in ("flights", "crews")),
        *names.job_topics(("general", "bulk")),
        names.dead_letters,
        names.refresh,
    }


def test_specs_have_the_partitions_of_the_app_and_refresh_has_one(
    specs: dict[str, TopicSpec],
) -> None:
    refresh = flight_ops().topic_names.refresh

    assert specs[refresh].partitions == 1
    assert {spec.partitions for name, spec in specs.items() if name != refresh} == {4}


def test_specs_keep_state_by_key_and_the_rest_by_time(specs: dict[str, TopicSpec]) -> None:
    names = flight_ops().topic_names
    compacted = {name for name, spec in specs.items() if spec.config["cleanup.policy"] == "compact"}

    assert compacted == {names.changelog("flights"), names.changelog("crews"), names.refresh}
    for name in compacted:
        assert float(specs[name].config["min.cleanable.dirty.ratio"]) <= 0.1
        assert "retention.ms" not in specs[name].config


def test_jobs_outlive_the_longest_lease(specs: dict[str, TopicSpec]) -> None:
    jobs = specs[flight_ops().topic_names.jobs("general")].config

    assert int(jobs["retention.ms"]) >= 7 * DAY_MS


def test_statuses_are_kept_as_long_as_jobs(specs: dict[str, TopicSpec]) -> None:
    names = flight_ops().topic_names

    kept_ms = [
        int(specs[name].config["retention.ms"])
        for name in (names.statuses("flights"), names.jobs("general"))
    ]
    assert kept_ms[0] >= kept_ms[1]


def test_dead_letters_hold_the_largest_record_of_the_others(specs: dict[str, TopicSpec]) -> None:
    names = flight_ops().topic_names
    letters = int(specs[names.dead_letters].config["max.message.bytes"])

    for name in (names.pings("flights"), names.statuses("flights"), names.jobs("general")):
        # A record may be nearly all key, which is the key of its letter and stands in it, too.
        assert letters >= 2 * int(specs[name].config["max.message.bytes"]) + 100_000
    assert letters <= STATE_BYTES_MAX


def test_changelog_takes_the_largest_row_that_a_commit_may_have(
    specs: dict[str, TopicSpec],
) -> None:
    changelog = specs[flight_ops().topic_names.changelog("flights")]

    assert int(changelog.config["max.message.bytes"]) == STATE_BYTES_MAX
    assert STATE_BYTES_MAX > SUBJECT_OUTPUT_BYTES_MAX + ERROR_BYTES_MAX + 3_000_000


@pytest.mark.parametrize(("replication", "in_sync"), [(None, None), (1, None), (2, None), (3, "2")])
def test_specs_ask_for_two_copies_in_sync_from_three_on(
    replication: int | None, in_sync: str | None
) -> None:
    specs = topic_specs(flight_ops(), replication=replication)

    assert {spec.replication for spec in specs} == {replication}
    assert {spec.config.get("min.insync.replicas") for spec in specs} == {in_sync}


def test_every_kind_tells_its_owner_and_why() -> None:
    files = topic_files()

    assert sorted(files) == KINDS
    for kind, file in files.items():
        assert file.owner, kind
        assert len(file.why.split()) > 15, kind


def test_folder_of_an_operator_takes_the_place_of_ours(tmp_path: Path) -> None:
    folder = changed(
        tmp_path / "topics", "pings.toml", lambda text: text.replace("259_200_000", "1000")
    )
    (folder / "README.md").write_text("ours, with shorter retention")

    specs = {spec.name: spec for spec in topic_specs(flight_ops(), folder=folder)}

    assert specs["flight-ops.flights.pings"].config["retention.ms"] == "1000"
    assert len(specs) == len(topic_specs(flight_ops()))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("owner =", "keeper ="),
        lambda text: text.replace('owner = "', "owner = "),
        lambda text: text + "\n[extra]\n",
    ],
    ids=["field missing", "no TOML", "field unknown"],
)
def test_wrong_file_is_refused_by_name(change: Callable[[str], str], tmp_path: Path) -> None:
    folder = changed(tmp_path / "topics", "jobs.toml", change)

    with pytest.raises(Fatal, match=r"jobs\.toml does not describe a topic"):
        topic_specs(flight_ops(), folder=folder)
