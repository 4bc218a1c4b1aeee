"""Sends mail through Amazon SES, version 2 of its interface."""

from typing import Any

from cape_stream.adapters.sqs.clients import Client
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.ports.mail import Mail

CHARSET = "UTF-8"


class SesMailer:
    """Implements `Mailer`. Throttling becomes Retry, a mail SES refuses Reject."""

    def __init__(self, settings: SqsSettings) -> None:
        read_s = settings.control_timeout_ms / 1_000
        self._client = Client(
            "sesv2", settings, connections=settings.control_connections, read_s=read_s
        )

    async def send(self, mail: Mail) -> str:
        """See `Mailer.send`."""
        body = {"Text": _content(mail.text)}
        if mail.html is not None:
            body["Html"] = _content(mail.html)
        request: dict[str, Any] = {
            "FromEmailAddress": mail.sender,
            "Destination": {"ToAddresses": [mail.recipient]},
            "Content": {"Simple": {"Subject": _content(mail.subject), "Body": body}},
        }
        if mail.configuration_set is not None:
            request["ConfigurationSetName"] = mail.configuration_set
        answer = await self._client.call("mail", lambda client: client.send_email(**request))
        found: str = answer["MessageId"]
        return found

    async def close(self) -> None:
        """Free all."""
        await self._client.close()


def _content(text: str) -> dict[str, str]:
    return {"Data": text, "Charset": CHARSET}
