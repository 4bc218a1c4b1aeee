"""Opens the claim store that the settings name."""

from pathlib import Path

from cape_stream.adapters.claims_file import FileClaims
from cape_stream.errors import Fatal
from cape_stream.ports.claims import ClaimStore
from cape_stream.runtime.worker_settings import FILE_CLAIMS, S3_CLAIMS, WorkerSettings


def open_claims(settings: WorkerSettings) -> ClaimStore | None:
    """The store, None if the settings name none.

    Raises:
        Fatal: it cannot be opened; the message says what to do.
    """
    if settings.claims.startswith(FILE_CLAIMS):
        return FileClaims(Path(settings.claims.removeprefix(FILE_CLAIMS)))
    if settings.claims.startswith(S3_CLAIMS):
        bucket, _, prefix = settings.claims.removeprefix(S3_CLAIMS).partition("/")
        try:
            from cape_stream.adapters.claims_s3 import S3Claims  # an extra, so only on demand
        except ImportError as error:
            raise Fatal(
                f"worker.claims = {settings.claims!r} needs the S3 client: install cape-stream[sqs]"
            ) from error
        return S3Claims(bucket, prefix.strip("/"))
    return None
