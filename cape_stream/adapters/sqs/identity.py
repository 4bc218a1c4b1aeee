"""Who we are to AWS."""

from cape_stream.adapters.sqs.clients import Client
from cape_stream.adapters.sqs.settings import SqsSettings


class StsIdentity:
    """Implements `Identity`."""

    def __init__(self, settings: SqsSettings) -> None:
        self._client = Client("sts", settings, connections=1, read_s=5.0)

    async def caller(self) -> str:
        """See `Identity.caller`."""
        answer = await self._client.call("who we are", lambda client: client.get_caller_identity())
        await self._client.close()
        found: str = answer["Arn"]
        return found
