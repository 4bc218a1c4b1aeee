"""Event delivery: pings in, every event to every subscribed application, in order.

The public names are here and load on first use, so `import cape_stream` stays cheap and a tool that
needs only an error class does not pull in a Kafka client. Whatever is not listed in `__all__` is
not promised to stay.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cape_stream.errors import CapeError, Corrupt, Fatal, Fenced, Reject, Retry

if TYPE_CHECKING:
    from cape_stream.sdk import App, Batch, Domain, Event, Pinger, Topology

__version__ = "0.1.0"

__all__ = [
    "App",
    "Batch",
    "CapeError",
    "Corrupt",
    "Domain",
    "Event",
    "Fatal",
    "Fenced",
    "Pinger",
    "Reject",
    "Retry",
    "Topology",
    "__version__",
]

_HOME_OF = {
    "App": "cape_stream.sdk",
    "Batch": "cape_stream.sdk",
    "Domain": "cape_stream.sdk",
    "Event": "cape_stream.sdk",
    "Pinger": "cape_stream.sdk",
    "Topology": "cape_stream.sdk",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home module on first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'cape_stream' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, also those not loaded yet."""
    return sorted(__all__)
