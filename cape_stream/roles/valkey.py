"""`cape valkey doctor`: what the coordination layer thinks of its server."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cape_stream.errors import Fatal

if TYPE_CHECKING:
    from cape_stream.coordination.doctor import Finding

URL_VARIABLE = "CAPE_VALKEY_URL"
NOT_INSTALLED = (
    "the Valkey client is not installed; run: python -m pip install 'cape-stream[valkey]'"
)
DEFAULT_URL = "valkey://127.0.0.1:6379/0"


@dataclass(frozen=True, slots=True)
class Examination:
    """What the doctor found."""

    findings: "Sequence[Finding]"

    @property
    def is_healthy(self) -> bool:
        """Nothing failed; there may be warnings."""
        return not any(each.verdict == "fail" for each in self.findings)

    def in_words(self) -> str:
        """One line a finding, and a summary."""
        lines = [f"{each.verdict:<5} {each.name}: {each.detail}" for each in self.findings]
        counts = Counter(each.verdict for each in self.findings)
        lines.append(
            f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed"
            + ("" if self.is_healthy else "; docs/valkey.md says what is needed")
        )
        return "\n".join(lines)

    def as_json(self) -> str:
        """The same as one JSON object."""
        found = [asdict(each) for each in self.findings]
        return json.dumps({"healthy": self.is_healthy, "findings": found})


def doctor(url: str | None, prefix: str, ca_file: str | None) -> Examination:
    """Examine a server.

    Args:
        url: where it is; None: the environment's ``CAPE_VALKEY_URL``, else this machine.
        prefix: of the keys.
        ca_file: certificates that the server's is checked against, for TLS.

    Raises:
        Fatal: the URL or the prefix cannot be understood, or the client is not installed.
    """
    try:
        from cape_stream.coordination.doctor import examine
        from cape_stream.coordination.settings import ValkeySettings
        from cape_stream.coordination.store import Store
    except ImportError as error:
        raise Fatal(NOT_INSTALLED) from error
    place = url or os.environ.get(URL_VARIABLE, DEFAULT_URL)
    store = Store(ValkeySettings(url=place, prefix=prefix, ca_file=ca_file, call_timeout_ms=2_000))
    try:
        return Examination(list(examine(store)))
    finally:
        store.close()
