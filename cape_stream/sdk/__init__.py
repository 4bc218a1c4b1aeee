"""What users import: App, Domain, Topology and handlers, batches with results, and the Pinger."""

from cape_stream.model.topology import RetrySpec
from cape_stream.ports.contexts import Context, MintedGrant, PublishBounds
from cape_stream.sdk.app import App, Domain
from cape_stream.sdk.batch import Batch, Event, EventResult, FencingToken
from cape_stream.sdk.declaration import DeclarationError
from cape_stream.sdk.failures import (
    HandlerMisuseError,
    Invalid,
    Permanent,
    Throttled,
    Transient,
)
from cape_stream.sdk.loading import load_app
from cape_stream.sdk.pinger import Pinger
from cape_stream.sdk.topology import Topology

__all__ = [
    "App",
    "Batch",
    "Context",
    "DeclarationError",
    "Domain",
    "Event",
    "EventResult",
    "FencingToken",
    "HandlerMisuseError",
    "Invalid",
    "MintedGrant",
    "Permanent",
    "Pinger",
    "PublishBounds",
    "RetrySpec",
    "Throttled",
    "Topology",
    "Transient",
    "load_app",
]
