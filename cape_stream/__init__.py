"""Event delivery: pings in, every event to every subscribed application, in order.

The public names are here and load on first use, so `import cape_stream` stays cheap and a tool that
needs only an error class does not pull in a Kafka client. Whatever is not listed in `__all__` is
not promised to stay.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cape_stream.errors import CapeError, Corrupt, Fatal, Fenced, Reject, Retry

if TYPE_CHECKING:
    from cape_stream.sdk import (
        App,
        Batch,
        Context,
        DeclarationError,
        Domain,
        Event,
        EventResult,
        FencingToken,
        HandlerMisuseError,
        Invalid,
        MintedGrant,
        Permanent,
        Pinger,
        PublishBounds,
        RetrySpec,
        Throttled,
        Topology,
        Transient,
    )

__version__ = "0.1.0"

__all__ = [
    "App",
    "Batch",
    "CapeError",
    "Context",
    "Corrupt",
    "DeclarationError",
    "Domain",
    "Event",
    "EventResult",
    "Fatal",
    "Fenced",
    "FencingToken",
    "HandlerMisuseError",
    "Invalid",
    "MintedGrant",
    "Permanent",
    "Pinger",
    "PublishBounds",
    "Reject",
    "Retry",
    "RetrySpec",
    "Throttled",
    "Topology",
    "Transient",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the SDK on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'cape_stream' has no attribute {name!r}")
    value = getattr(import_module("cape_stream.sdk"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, also those not loaded yet."""
    return sorted(__all__)
