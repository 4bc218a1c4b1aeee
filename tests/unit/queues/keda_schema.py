"""What KEDA and Kubernetes ask of our manifests, as types that refuse what they do not know.

Facts of KEDA 2.20 (`config/crd/bases/keda.sh_scaledobjects.yaml`, the parameters of its two
scalers, the checks of its admission webhook), of the autoscaling/v2 and of the apps/v1 interface;
of those only what we use, so a new field needs a line here.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
HpaName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=54)]
"""KEDA calls the autoscaler `keda-hpa-` and this, in at most 63 characters."""
Whole = Annotated[str, Meta(pattern=r"^[0-9]+$")]
QueueUrl = Annotated[str, Meta(pattern=r"^https://sqs\.[a-z0-9-]+\.amazonaws\.com/\d{12}/[\w-]+$")]
Flag = Literal["true", "false"]
NotNegative = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]


class Strict(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """An object that has these fields and no others."""


class HpaMetadata(Strict):
    name: HpaName


class ScaleTarget(Strict):
    name: Name
    api_version: str = "apps/v1"
    kind: str = "Deployment"


class ScalingPolicy(Strict):
    type: Literal["Pods", "Percent"]
    value: Positive
    period_seconds: Annotated[int, Meta(ge=1, le=1_800)]


class ScalingRules(Strict):
    policies: Annotated[list[ScalingPolicy], Meta(min_length=1)]
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    stabilization_window_seconds: Annotated[int, Meta(ge=0, le=3_600)] = 0


class Behavior(Strict):
    scale_down: ScalingRules | None = None
    scale_up: ScalingRules | None = None


class HpaConfig(Strict):
    behavior: Behavior


class Advanced(Strict):
    horizontal_pod_autoscaler_config: HpaConfig


class AuthenticationRef(Strict):
    name: Name
    kind: Literal["TriggerAuthentication", "ClusterTriggerAuthentication"] = "TriggerAuthentication"


class Trigger(Strict):
    type: Literal["aws-sqs-queue", "prometheus"]
    metadata: dict[str, str]
    name: str | None = None
    metric_type: Literal["AverageValue", "Value"] = "AverageValue"
    authentication_ref: AuthenticationRef | None = None


class ScaledObjectSpec(Strict):
    scale_target_ref: ScaleTarget
    triggers: Annotated[list[Trigger], Meta(min_length=1)]
    polling_interval: Positive = 30
    cooldown_period: NotNegative = 300
    min_replica_count: NotNegative = 0
    max_replica_count: Positive = 100
    advanced: Advanced | None = None


class ScaledObject(Strict):
    api_version: Literal["keda.sh/v1alpha1"]
    kind: Literal["ScaledObject"]
    metadata: HpaMetadata
    spec: ScaledObjectSpec

    def __post_init__(self) -> None:
        if max(1, self.spec.min_replica_count) > self.spec.max_replica_count:
            raise ValueError("minReplicaCount is more than maxReplicaCount")


class SqsParameters(Strict):
    """Of the trigger `aws-sqs-queue`; every value is a text."""

    queue_url: QueueUrl = msgspec.field(name="queueURL")
    aws_region: Text
    queue_length: Whole = "5"
    activation_queue_length: Whole = "0"
    scale_on_in_flight: Flag = "true"
    scale_on_delayed: Flag = "false"


class PrometheusParameters(Strict):
    """Of the trigger `prometheus`."""

    server_address: Annotated[str, Meta(pattern=r"^https?://")]
    query: Text
    threshold: Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?$")]
    activation_threshold: Whole = "0"
    ignore_null_values: Flag = "true"


PARAMETERS: dict[str, type[Strict]] = {
    "aws-sqs-queue": SqsParameters,
    "prometheus": PrometheusParameters,
}


class PodIdentity(Strict):
    provider: Literal["aws"]


class TriggerAuthenticationSpec(Strict):
    pod_identity: PodIdentity


class Metadata(Strict):
    name: Name


class TriggerAuthentication(Strict):
    api_version: Literal["keda.sh/v1alpha1"]
    kind: Literal["TriggerAuthentication"]
    metadata: Metadata
    spec: TriggerAuthenticationSpec


class SecretKey(Strict):
    name: Name
    key: Text


class ValueSource(Strict):
    secret_key_ref: SecretKey


class Variable(Strict):
    name: Annotated[str, Meta(pattern=r"^[A-Z][A-Z0-9_]*$")]
    value: str | None = None
    value_from: ValueSource | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.value_from is None):
            raise ValueError(f"{self.name} has not just one of value and valueFrom")


class Port(Strict):
    name: Annotated[str, Meta(max_length=15)]
    container_port: Annotated[int, Meta(ge=1, le=65_535)]


class Mount(Strict):
    name: Name
    mount_path: Annotated[str, Meta(pattern="^/")]


class Container(Strict):
    name: Name
    image: Text
    args: list[str]
    env: list[Variable]
    ports: list[Port]
    volume_mounts: list[Mount]


class Volume(Strict):
    name: Name
    empty_dir: dict[str, str]


class Pod(Strict):
    service_account_name: Name
    termination_grace_period_seconds: Positive
    containers: Annotated[list[Container], Meta(min_length=1, max_length=1)]
    volumes: list[Volume]

    def __post_init__(self) -> None:
        known = {each.name for each in self.volumes}
        for mount in self.containers[0].volume_mounts:
            if mount.name not in known:
                raise ValueError(f"no volume is called {mount.name}")


class PodMetadata(Strict):
    labels: dict[str, str]
    annotations: dict[str, str]


class Template(Strict):
    metadata: PodMetadata
    spec: Pod


class Selector(Strict):
    match_labels: Annotated[dict[str, str], Meta(min_length=1)]


class DeploymentSpec(Strict):
    """Without `replicas`: what applies it again would undo what KEDA has decided."""

    selector: Selector
    template: Template

    def __post_init__(self) -> None:
        if not self.selector.match_labels.items() <= self.template.metadata.labels.items():
            raise ValueError("the selector does not choose the pods of the template")


class Deployment(Strict):
    api_version: Literal["apps/v1"]
    kind: Literal["Deployment"]
    metadata: Metadata
    spec: DeploymentSpec


KINDS: dict[str, type[Strict]] = {
    "ScaledObject": ScaledObject,
    "TriggerAuthentication": TriggerAuthentication,
    "Deployment": Deployment,
}


def checked(manifest: Any) -> Any:
    """A manifest as its type.

    Raises:
        ValidationError: it is not what KEDA or Kubernetes takes; says where and why.
    """
    found = msgspec.convert(manifest, KINDS[manifest["kind"]])
    if isinstance(found, ScaledObject):
        for trigger in found.spec.triggers:
            msgspec.convert(trigger.metadata, PARAMETERS[trigger.type])
    return found
