"""Job tokens: what a worker shows at the gateway to report on the job it was given, and no other.

    KEY.PAYLOAD.MAC      PAYLOAD = expiry, first and last event, digest of what names the job

The MAC is HMAC-SHA-256 under a key of the file, cut to 128 bits; the digest is over App, domain,
task, subject, topology, lambda, job id, epoch and attempt. The token is no secret from its worker.
"""

import hashlib
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from enum import StrEnum

from cape_stream.model.job import Job
from cape_stream.model.status import JobStatus
from cape_stream.realtime.keys import GrantKeys
from cape_stream.roles.gateway_settings import GatewaySettings

MAC_BYTES = 16
DIGEST_BYTES = 16
TIMEOUTS = 20
"""A job lives this many timeouts at most, by heartbeats."""
LATE_MS = 3_600_000
"""So much later its report is still taken: a success is a fact."""
TOKEN_CHARACTERS_MAX = 256

_BODY = struct.Struct(f">QQQ{DIGEST_BYTES}s")


class TokenFault(StrEnum):
    """Why a token is refused."""

    MISSING = "missing_token"
    FORGED = "forged_token"
    """Malformed, or signed by no key of the file."""
    EXPIRED = "expired_token"
    FOREIGN = "foreign_token"
    """Of another job, or for other events than this report names."""


class JobTokens:
    """Signs and checks them.

    Args:
        app: name of the App; a token of another one is foreign.
        keys: the first one signs, all of them verify.
    """

    def __init__(self, app: str, keys: GrantKeys) -> None:
        self._app = app
        self._keys = keys

    def sign(self, job: Job) -> str:
        """The token of a job."""
        name, secret = self._keys.signing
        body = _BODY.pack(
            job.issued_ms + TIMEOUTS * job.timeout_ms + LATE_MS,
            job.events[0].sequence,
            job.events[-1].sequence,
            self._digest(job),
        )
        return f"{name}.{_text(body)}.{_text(_mac(secret, body))}"

    def fault(self, token: str | None, status: JobStatus, now_ms: int) -> TokenFault | None:
        """Why the token does not vouch for the report; None if it does.

        Args:
            token: as the worker has shown it.
            status: the report.
            now_ms: Unix milliseconds.
        """
        if not token:
            return TokenFault.MISSING
        body = self._verified(token)
        if body is None:
            return TokenFault.FORGED
        expires_ms, first, last, digest = _BODY.unpack(body)
        if not hmac.compare_digest(digest, self._digest(status)):
            return TokenFault.FOREIGN
        if expires_ms <= now_ms:
            return TokenFault.EXPIRED
        named = (*status.done, *status.outputs, *(each.sequence for each in status.failures))
        if any(not first <= sequence <= last for sequence in named):
            return TokenFault.FOREIGN
        return None

    def _verified(self, token: str) -> bytes | None:
        name, _, rest = token.partition(".")
        payload, _, mac = rest.partition(".")
        secret = self._keys.named(name) if len(token) <= TOKEN_CHARACTERS_MAX else None
        try:
            body, shown = _bytes(payload), _bytes(mac)
        except ValueError:
            return None
        if secret is None or len(body) != _BODY.size:
            return None
        return body if hmac.compare_digest(_mac(secret, body), shown) else None

    def _digest(self, job: Job | JobStatus) -> bytes:
        names = (self._app, job.domain, job.subject, job.topology, job.lambda_id, job.job_id)
        numbers = f"{job.partition}.{job.epoch}.{job.attempt}"
        parts = (each.encode() for each in (*names, numbers))
        framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hashlib.sha256(framed).digest()[:DIGEST_BYTES]


def job_tokens(app: str, settings: GatewaySettings) -> JobTokens | None:
    """Tokens for the jobs of an App; None where no keys are set.

    Raises:
        Fatal: the keys cannot be read.
    """
    if not settings.keys_file:
        return None
    return JobTokens(app, GrantKeys.from_file(settings.keys_file))


def _mac(secret: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, b"cape job token " + body, "sha256")[:MAC_BYTES]


def _text(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """Raises ValueError where it is none; only the one spelling of each value is taken."""
    found = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    if _text(found) != text:
        raise ValueError("not the canonical spelling")
    return found
