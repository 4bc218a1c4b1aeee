"""How AWS is reached."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True, kw_only=True)
class SqsSettings:
    """Where the queues are. Credentials are none of these: they come from where boto3 looks for
    them, such as the role of the pod, ``AWS_PROFILE`` or the environment.

    Raises:
        ValueError: a value is out of its range; the message names it.
    """

    endpoint_url: str = ""
    """Address of a server that is not AWS, such as ``http://127.0.0.1:5000``; empty: AWS."""
    region: str = "us-east-1"
    """AWS region of the queues."""
    profile: str = ""
    """Profile of the AWS configuration whose credentials are used; empty: boto3's own choice."""
    prefix: str = "cape-"
    """What the names of all queues begin with."""
    receive_connections: int = 40
    """Receives under way at once, over all queues, 1 to 1,000."""
    control_connections: int = 16
    """Deletes, renewals and sends under way at once, 1 to 1,000."""
    control_timeout_ms: int = 10_000
    """How long such a call may take, 100 to 60,000."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("receive_connections", 1, 1_000),
            ("control_connections", 1, 1_000),
            ("control_timeout_ms", 100, 60_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low} to {high}, not {value}")
