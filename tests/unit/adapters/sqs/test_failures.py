"""What boto3 raises, and what becomes of it."""

from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
)

from cape_stream.adapters.sqs.failures import entry_failures, is_credentials, retyped
from cape_stream.adapters.sqs.settings import SqsSettings
from cape_stream.errors import Fatal, Reject, Retry
from cape_stream.ports.queue import FailureKind


def answer(code: str, status: int = 400) -> ClientError:
    error: dict[str, Any] = {
        "Error": {"Code": code, "Message": "text"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(error, "Operation")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer("ExpiredToken"), Retry),
        (answer("403", 403), Retry),
        (NoCredentialsError(), Retry),
        (answer("ThrottlingException"), Retry),
        (answer("InternalError", 500), Retry),
        (answer("SendingPausedException"), Retry),
        (answer("MessageRejected"), Reject),
        (answer("", 503), Retry),
        (EndpointConnectionError(endpoint_url="http://x"), Retry),
        (ConnectTimeoutError(endpoint_url="http://x"), Retry),
        (ConnectionResetError(), Retry),
        (answer("AWS.SimpleQueueService.NonExistentQueue"), Fatal),
        (answer("QueueDoesNotExist"), Fatal),
        (answer("InvalidParameterValue"), Reject),
    ],
)
def test_error_becomes_what_the_caller_does_about_it(error: Exception, kind: type) -> None:
    found = retyped(error, "receive on cape-steps")

    assert type(found) is kind
    assert found.reason.startswith("receive on cape-steps: ")


def test_defect_is_not_dressed_up() -> None:
    with pytest.raises(KeyError):
        retyped(KeyError("x"), "receive")


def test_credentials_are_told_from_other_faults() -> None:
    assert is_credentials(answer("InvalidClientTokenId"))
    assert not is_credentials(answer("ThrottlingException"))
    assert "check the credentials" in retyped(answer("ExpiredToken"), "x").reason


@pytest.mark.parametrize(
    ("code", "message", "is_sender", "kind"),
    [
        ("ReceiptHandleIsInvalid", "", True, FailureKind.STALE),
        ("InvalidParameterValue", "The receipt handle has expired", True, FailureKind.STALE),
        ("InternalError", "", False, FailureKind.TRANSIENT),
        ("RequestThrottled", "", True, FailureKind.TRANSIENT),
        ("InvalidMessageContents", "", True, FailureKind.REFUSED),
    ],
)
def test_entry_that_failed_says_what_to_do(
    code: str, message: str, is_sender: bool, kind: FailureKind
) -> None:
    failed = {"Id": "1", "Code": code, "Message": message, "SenderFault": is_sender}

    found = entry_failures({"Failed": [failed]}, 3)

    assert [each and each.kind for each in found] == [None, kind, None]


def test_setting_out_of_its_range_is_named() -> None:
    with pytest.raises(ValueError, match="receive_connections"):
        SqsSettings(receive_connections=0)
    with pytest.raises(ValueError, match="control_timeout_ms"):
        SqsSettings(control_timeout_ms=60_001)
