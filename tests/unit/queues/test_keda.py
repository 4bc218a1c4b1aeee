"""The manifests of the fleets: what KEDA and Kubernetes take, and what the workers understand."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from cape_stream.cli.arguments import parse
from cape_stream.queues.fleet import Pool, queues_of
from cape_stream.queues.gauges import Gauges
from cape_stream.queues.settings import ProcessorSettings
from cape_stream.roles.fleet_services import DELIVERIES_VARIABLE
from cape_stream.roles.settings_loading import load_settings
from cape_stream.roles.valkey import URL_VARIABLE
from tests.unit.queues.keda_schema import (
    Deployment,
    PrometheusParameters,
    ScaledObject,
    SqsParameters,
    checked,
)
from tests.unit.queues.worlds import World, in_virtual_time

FOLDER = Path(__file__).parents[3] / "deploy" / "keda"
FILES = sorted(FOLDER.glob("*.yaml"))
POOLS = [Pool.GENERAL, Pool.BULK, Pool.TRAINING]
DRAIN_MARGIN_MS = 10_000
"""Of a pod beyond its drain: to start Python's own end, and for a slow node."""


def raw(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def scaled_object(pool: Pool) -> ScaledObject:
    found: ScaledObject = checked(raw(f"{pool}.scaledobject"))
    return found


def deployment(pool: Pool) -> Deployment:
    found: Deployment = checked(raw(f"{pool}.deployment"))
    return found


def variables(pool: Pool) -> dict[str, str | None]:
    container = deployment(pool).spec.template.spec.containers[0]
    return {each.name: each.value for each in container.env}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_manifest_is_what_keda_and_kubernetes_take(file: Path) -> None:
    found = checked(yaml.safe_load(file.read_text()))

    assert file.stem.rsplit(".", 1)[1] == type(found).__name__.lower()


def _set(value: object, *path: str | int) -> Callable[[Any], None]:
    def change(manifest: Any) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("bulk.scaledobject", _set("4", "spec", "maxReplicaCount"), "Expected `int`"),
        ("bulk.scaledobject", _set(0, "spec", "maxReplicaCount"), ">= 1"),
        ("bulk.scaledobject", _set(60, "spec", "minReplicaCount"), "more than maxReplicaCount"),
        ("bulk.scaledobject", _set([], "spec", "triggers"), "length >= 1"),
        ("bulk.scaledobject", _set(3, "spec", "coolDownPeriod"), "unknown field `coolDownPeriod`"),
        ("bulk.scaledobject", _set("x" * 60, "metadata", "name"), "length <= 54"),
        (
            "bulk.scaledobject",
            _set(False, "spec", "triggers", 0, "metadata", "scaleOnInFlight"),
            "Expected `str`",
        ),
        (
            "bulk.scaledobject",
            _set("x", "spec", "triggers", 0, "metadata", "scaleInFlight"),
            "unknown field",
        ),
        ("bulk.scaledobject", _set({}, "spec", "triggers", 0, "metadata"), "queueURL"),
        ("bulk.scaledobject", _set({}, "spec", "triggers", 1, "metadata"), "serverAddress"),
        ("bulk.deployment", _set({"app": "x"}, "spec", "selector", "matchLabels"), "not choose"),
        ("bulk.deployment", _set([], "spec", "template", "spec", "volumes"), "no volume"),
        (
            "bulk.deployment",
            _set({"name": "A"}, "spec", "template", "spec", "containers", 0, "env", 0),
            "just one of value and valueFrom",
        ),
        ("bulk.deployment", _set(3, "spec", "replicas"), "unknown field `replicas`"),
    ],
)
def test_manifest_that_is_wrong_is_refused(
    name: str, change: Callable[[Any], None], complaint: str
) -> None:
    wrong = copy.deepcopy(raw(name))
    change(wrong)

    with pytest.raises(msgspec.ValidationError, match=re.escape(complaint)):
        checked(wrong)


@pytest.mark.parametrize("pool", POOLS)
def test_scaled_object_scales_the_fleet_beside_it_with_an_identity_that_is_there(
    pool: Pool,
) -> None:
    spec = scaled_object(pool).spec
    identities = {raw("aws.triggerauthentication")["metadata"]["name"]}

    assert spec.scale_target_ref.name == deployment(pool).metadata.name
    for trigger in spec.triggers:
        needs_one = trigger.type == "aws-sqs-queue"
        assert (trigger.authentication_ref is not None) == needs_one
        if trigger.authentication_ref is not None:
            assert trigger.authentication_ref.name in identities


@pytest.mark.parametrize("pool", POOLS)
def test_scaled_object_watches_every_queue_of_its_pool_twice(pool: Pool) -> None:
    triggers = scaled_object(pool).spec.triggers
    by_sqs = [
        msgspec.convert(each.metadata, SqsParameters)
        for each in triggers
        if each.type == "aws-sqs-queue"
    ]
    by_query = [
        msgspec.convert(each.metadata, PrometheusParameters)
        for each in triggers
        if each.type == "prometheus"
    ]

    names = [each.name for each in queues_of(pool)]
    assert [each.queue_url.rsplit("/cape-", 1)[1] for each in by_sqs] == names
    for name, wakes, keeps in zip(names, by_sqs, by_query, strict=True):
        assert wakes.scale_on_in_flight == "false"  # a crashed worker's messages are in flight, too
        assert wakes.queue_length == keeps.threshold
        assert wakes.queue_url.split(".")[1] == wakes.aws_region
        assert f'cape_queue_live{{queue="{name}"}}' in keeps.query
        assert f'cape_queue_visible{{queue="{name}"}}' in keeps.query


@in_virtual_time
async def test_queries_ask_for_figures_that_a_worker_shows(world: World) -> None:
    lanes = [world.lane(world.queue(each.name)) for each in queues_of(Pool.DEV)]
    gauges = Gauges(world.processor(*lanes), world.clock.now_ms)
    await gauges.look()
    shown = {line.rsplit(" ", 1)[0] for line in gauges.text.splitlines()}

    asked = [
        name
        for pool in POOLS
        for trigger in scaled_object(pool).spec.triggers
        for name in re.findall(r"cape_\w+{[^}]*}", trigger.metadata.get("query", ""))
    ]

    assert len(asked) == 2 * len(lanes)
    assert set(asked) <= shown


@pytest.mark.parametrize("pool", POOLS)
def test_pod_is_given_longer_than_a_drain_takes(pool: Pool) -> None:
    grace_ms = int(variables(pool)["CAPE_PROCESSOR_GRACE_MS"] or 0)
    pod_s = deployment(pool).spec.template.spec.termination_grace_period_seconds

    assert pod_s * 1_000 >= grace_ms + DRAIN_MARGIN_MS
    ProcessorSettings(grace_ms=grace_ms)


@pytest.mark.parametrize("pool", POOLS)
def test_worker_understands_its_command_and_its_environment(pool: Pool) -> None:
    container = deployment(pool).spec.template.spec.containers[0]
    pod = deployment(pool).spec.template
    given = {name: value for name, value in variables(pool).items() if value is not None}
    secrets = {name for name, value in variables(pool).items() if value is None}

    arguments = parse(container.args)
    settings = load_settings({}, given, "/dev/null")

    assert arguments.pool == pool
    assert secrets == {URL_VARIABLE, DELIVERIES_VARIABLE}
    assert [each.container_port for each in container.ports] == [settings.processor.metrics_port]
    assert pod.metadata.annotations["prometheus.io/port"] == str(settings.processor.metrics_port)
    assert settings.process.data_dir in {each.mount_path for each in container.volume_mounts}
    assert bool(settings.processor.training_identity) == (pool is Pool.TRAINING)
