"""Who we are to the cloud."""

from typing import Protocol


class Identity(Protocol):
    """Names the credentials in use."""

    async def caller(self) -> str:
        """The full name of the caller, such as ``arn:aws:sts::111122223333:assumed-role/x/y``.

        Raises:
            Retry: the cloud is away or does not know our credentials.
        """
        ...
