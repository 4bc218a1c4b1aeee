"""What boto3 raises and AWS answers, re-typed by what the caller does about it."""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from cape_stream.errors import CapeError, Fatal, Reject, Retry
from cape_stream.ports.queue import EntryFailure, FailureKind

MISSING = frozenset(
    {
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
        "AWS.SimpleQueueService.QueueDoesNotExist",
    }
)
CREDENTIALS = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "AuthFailure", "ExpiredToken"),
        *("ExpiredTokenException", "IncompleteSignature", "InvalidAccessKeyId"),
        *("InvalidClientTokenId", "MissingAuthenticationToken", "SignatureDoesNotMatch"),
        *("UnrecognizedClientException", "InvalidSecurity"),
    }
)
"""We are not who may do this: may pass when somebody corrects a policy or a key."""
THROTTLED = frozenset(
    {
        *("OverLimit", "RequestThrottled", "SlowDown", "Throttling", "ThrottlingException"),
        *("TooManyRequestsException", "RequestLimitExceeded", "KmsThrottled"),
        "AWS.SimpleQueueService.PurgeQueueInProgress",
    }
)
STALE = frozenset(
    {
        *("InvalidReceiptHandle", "MessageNotInflight", "ReceiptHandleIsInvalid"),
        *("AWS.SimpleQueueService.MessageNotInflight",),
    }
)
NOT_NOW = frozenset(
    {
        *("AccountSuspendedException", "LimitExceededException", "SendingPausedException"),
        "MailFromDomainNotVerifiedException",
    }
)
"""SES takes no mail at all for now: none of it is at fault."""
NOT_NOW_WAIT_MS = 60_000
THROTTLE_WAIT_MS = 1_000
REFUSED_STATUSES = (401, 403)
"""What a proxy or another server says in the place of a code."""


def is_credentials(error: Exception) -> bool:
    """True if the fault lies in who we are."""
    if isinstance(error, ClientError):
        return code_of(error) in CREDENTIALS or _status_of(error) in REFUSED_STATUSES
    return isinstance(error, NoCredentialsError) or "redential" in type(error).__name__


def code_of(error: ClientError) -> str:
    """The error code of an answer; SQS has an older one beside it in its query form."""
    code: str = error.response.get("Error", {}).get("Code", "")
    return code


def _status_of(error: ClientError) -> int:
    status: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status


def retyped(error: Exception, what: str) -> CapeError:
    """The error of ours that says what to do.

    Args:
        error: what boto3 raised.
        what: what was tried, and with what, for the message.
    """
    if is_credentials(error):
        return Retry(f"{what}: {error}; check the credentials and their policy")
    if isinstance(error, ClientError):
        code = code_of(error)
        if code in MISSING:
            return Fatal(f"{what}: there is no such queue")
        if code in THROTTLED:
            return Retry(f"{what}: {error}", THROTTLE_WAIT_MS)
        if code in NOT_NOW or (code == "MessageRejected" and "not verified" in str(error)):
            return Retry(f"{what}: {error}", NOT_NOW_WAIT_MS)
        if _status_of(error) >= 500 or not code:
            return Retry(f"{what}: {error}")
        return Reject(f"{what}: {error}")
    if isinstance(error, BotoCoreError | OSError):
        return Retry(f"{what}: {error}")
    raise error


def entry_failures(answer: Mapping[str, Any], count: int) -> list[EntryFailure | None]:
    """One answer an entry of a batch whose entry ids are their positions."""
    failures: list[EntryFailure | None] = [None] * count
    for failed in answer.get("Failed", ()):
        failures[int(failed["Id"])] = _entry_failure(failed)
    return failures


def _entry_failure(failed: Mapping[str, Any]) -> EntryFailure:
    code = str(failed.get("Code", ""))
    reason = f"{code}: {failed.get('Message', '')}"
    # An expired receipt of a FIFO queue is told as a bad parameter, so the text has to be read.
    if code in STALE or "receipt handle" in reason.lower():
        return EntryFailure(FailureKind.STALE, reason)
    if not failed.get("SenderFault", False) or code in THROTTLED:
        return EntryFailure(FailureKind.TRANSIENT, reason)
    return EntryFailure(FailureKind.REFUSED, reason)
