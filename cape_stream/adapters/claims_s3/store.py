"""One object a claim, below a prefix; a lifecycle rule of the bucket deletes them by age."""

from datetime import UTC, datetime, timedelta

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from cape_stream.errors import Retry

YOUNG = timedelta(days=1)
"""A claim that is there and younger is not sent again; an older one is, so that the bucket's rule
counts its days anew."""
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 20
TRIES = 3
CONNECTIONS_MAX = 64

ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})


class S3Claims:
    """Implements `cape_stream.ports.claims.ClaimStore`.

    Credentials, region and endpoint are found where every AWS client looks for them: the
    environment, the shared files, the role of the machine.

    Args:
        bucket: must be there.
        prefix: of every key, without a slash at its end; may be empty.
    """

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self.place = f"s3://{bucket}/{prefix}"
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"total_max_attempts": TRIES, "mode": "standard"},
            max_pool_connections=CONNECTIONS_MAX,
        )
        self._client = boto3.session.Session().client("s3", config=config)

    def put(self, name: str, value: bytes) -> None:
        """See `ClaimStore.put`."""
        try:
            if not self._is_young(name):
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=value)
        except (BotoCoreError, ClientError) as error:
            raise Retry(f"a claim cannot be written to {self.place}: {error}") from error

    def get(self, name: str) -> bytes | None:
        """See `ClaimStore.get`."""
        try:
            found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            value: bytes = found["Body"].read()
        except ClientError as error:
            if _code(error) in ABSENT:
                return None
            raise Retry(f"a claim cannot be read from {self.place}: {error}") from error
        except BotoCoreError as error:
            raise Retry(f"a claim cannot be read from {self.place}: {error}") from error
        return value

    def close(self) -> None:
        """See `ClaimStore.close`."""
        self._client.close()

    def _is_young(self, name: str) -> bool:
        try:
            found = self._client.head_object(Bucket=self._bucket, Key=self._prefix + name)
        except ClientError as error:
            if _code(error) in ABSENT:
                return False
            raise
        written: datetime = found["LastModified"]
        return datetime.now(UTC) - written < YOUNG


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
