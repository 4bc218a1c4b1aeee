"""Sends one mail: SES, or a twin of it."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, frozen=True, kw_only=True)
class Mail:
    """One mail to one recipient."""

    sender: str
    recipient: str
    subject: str
    text: str
    html: str | None = None
    configuration_set: str | None = None
    """Names the set whose event destination reports deliveries."""


class Mailer(Protocol):
    """Hands mails to a provider."""

    async def send(self, mail: Mail) -> str:
        """The provider's message id, once it has taken the mail.

        Raises:
            Retry: the provider throttles or is away; try this mail again later.
            Reject: the provider will never take this mail, such as one to a malformed address.
        """
        ...
