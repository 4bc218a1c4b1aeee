"""What a user would write: two scanners, a log of their verdicts, and a topology that gets them."""

import json
import re
import threading
from collections.abc import Sequence

from cape_stream import App, Batch
from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.queues.messages.file_scan import StoredObject, Verdict
from cape_stream.sdk.pinger import Pinger

VIRUS = b"DEMO-VIRUS-SIGNATURE"
ADDRESS = re.compile(rb"[\w.]+@[\w.]+\.\w+")

source = MemoryEventSource()
app = App("queues-demo", partitions=4)
files = app.domain("files", source=source)
verdicts = files.topology("verdicts", ordering="ordered")
delivered: dict[str, list[dict[str, object]]] = {}
"""Object → the verdicts that the topology got, in order."""
_turn = threading.Lock()


class VirusScanner:
    """Finds a signature."""

    name = "virus"

    async def scan(self, found: StoredObject, content: bytes) -> Verdict:
        """See `Scanner.scan`."""
        return Verdict(self.name, is_clean=VIRUS not in content)


class AddressScanner:
    """Finds what looks like a mail address."""

    name = "personal-data"

    async def scan(self, found: StoredObject, content: bytes) -> Verdict:
        """See `Scanner.scan`."""
        addresses = ADDRESS.findall(content)
        return Verdict(self.name, is_clean=not addresses, findings=(f"{len(addresses)} addresses",))


class VerdictLog:
    """Verdicts as events of their object; a notification that comes again changes nothing."""

    def __init__(self, pinger: Pinger) -> None:
        self._pinger = pinger
        self._etags: dict[str, list[str]] = {}

    def record(self, subject: str, found: StoredObject, verdicts: Sequence[Verdict]) -> None:
        """See `ScanLog.record`."""
        seen = self._etags.setdefault(subject, [])
        if found.etag not in seen:
            seen.append(found.etag)
            row = {each.scanner: each.is_clean for each in verdicts}
            source.append(subject, len(seen), json.dumps(row).encode())
        self._pinger.ping(subject, len(seen))


@verdicts.handler()
def collect(batch: Batch) -> None:
    """Keep the verdicts of one object."""
    with _turn:
        rows = delivered.setdefault(batch.subject, [])
        rows += [json.loads(event.payload) for event in batch.events]
