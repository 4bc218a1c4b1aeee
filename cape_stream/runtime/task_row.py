"""The one row of a task that is about no subject: what operators have ordered for all of them.

Its key is the prefix of the active rows and an empty subject, which no subject is: so a restart,
which reads the active rows, reads it too.
"""

import json
from collections.abc import Iterable

from cape_stream.errors import Corrupt


def encode_task_row(paused: Iterable[str]) -> bytes:
    """Bytes of the row, for topologies that are paused."""
    return json.dumps({"paused": sorted(paused)}).encode()


def decode_task_row(value: bytes) -> frozenset[str]:
    """Topologies that are paused, or `Corrupt` if the bytes are no such row."""
    try:
        paused = json.loads(value)["paused"]
        if not isinstance(paused, list) or not all(isinstance(each, str) for each in paused):
            raise TypeError(f"paused is {paused!r}")
        return frozenset(paused)
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"the task's own row does not decode: {error!r}") from error
