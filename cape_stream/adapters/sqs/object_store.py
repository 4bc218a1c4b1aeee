"""S3 as far as the queues need it: objects to scan, and claim checks."""

from typing import Any

from botocore.exceptions import ClientError

from cape_stream.adapters.sqs.clients import Client
from cape_stream.adapters.sqs.failures import code_of
from cape_stream.adapters.sqs.settings import SqsSettings

READ_S = 60.0
NOT_THERE = frozenset({"NoSuchKey", "NoSuchBucket", "404"})


class S3ObjectStore:
    """Implements `ObjectStore`."""

    def __init__(self, settings: SqsSettings) -> None:
        self._client = Client(
            "s3", settings, connections=settings.control_connections, read_s=READ_S
        )

    async def put(self, bucket: str, key: str, value: bytes) -> None:
        """See `ObjectStore.put`."""
        await self._client.call(
            f"write of {bucket}/{key}",
            lambda client: client.put_object(Bucket=bucket, Key=key, Body=value),
        )

    async def get(self, bucket: str, key: str) -> bytes | None:
        """See `ObjectStore.get`."""

        def work(client: Any) -> bytes | None:
            try:
                found: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
            except ClientError as error:
                if code_of(error) in NOT_THERE:
                    return None
                raise
            return found

        found: bytes | None = await self._client.call(f"read of {bucket}/{key}", work)
        return found

    async def close(self) -> None:
        """Free all."""
        await self._client.close()
