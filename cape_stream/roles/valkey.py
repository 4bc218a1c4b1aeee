"""The Valkey that `CAPE_VALKEY_URL` names: how roles open it, what they did there, and the doctor.

Its client is needed only where the variable is set, so it is imported only then.
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cape_stream.coordination.figures import Figures
from cape_stream.errors import Fatal

if TYPE_CHECKING:
    from cape_stream.coordination.async_store import AsyncStore
    from cape_stream.coordination.doctor import Finding
    from cape_stream.coordination.store import Store

URL_VARIABLE = "CAPE_VALKEY_URL"
NOT_INSTALLED = (
    "the Valkey client is not installed; run: python -m pip install 'cape-stream[valkey]'"
)
DEFAULT_URL = "valkey://127.0.0.1:6379/0"
FIGURES = Figures()
"""What the stores of this process do; `Figures.as_text` is what Prometheus reads."""


def open_store(url: str) -> "Store":
    """A store on the server that the environment names.

    Raises:
        Fatal: the URL cannot be understood, or the client is not installed.
    """
    try:
        from cape_stream.coordination.settings import ValkeySettings
        from cape_stream.coordination.store import Store
    except ImportError as error:
        raise Fatal(f"{URL_VARIABLE} is set, but {NOT_INSTALLED}") from error
    return Store(ValkeySettings(url=url), FIGURES)


def open_async_store(url: str) -> "AsyncStore":
    """The same for an event loop."""
    try:
        from cape_stream.coordination.async_store import AsyncStore
        from cape_stream.coordination.settings import ValkeySettings
    except ImportError as error:
        raise Fatal(f"{URL_VARIABLE} is set, but {NOT_INSTALLED}") from error
    return AsyncStore(ValkeySettings(url=url), FIGURES)


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
