"""What the server's and the client's errors mean for the caller."""

from redis import exceptions as redis_errors

from cape_stream.errors import CapeError, Fatal, Reject, Retry

LINK_ERRORS = (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError)
"""The reply did not come: whether the call was carried out is unknown."""

_LATER = {
    "BUSY": "runs a script that does not end",
    "CLUSTERDOWN": "has lost a part of its cluster",
    "LOADING": "is still loading its data",
    "MASTERDOWN": "is a replica that has lost its primary",
    "MISCONF": "cannot write its snapshot to disk and therefore refuses writes",
    "NOREPLICAS": "has too few replicas to accept writes",
    "OOM": "is full and refuses writes (maxmemory reached, policy noeviction)",
    "READONLY": "is a read-only replica",
    "TRYAGAIN": "is moving this slot",
}


_CODES: dict[type[Exception], str] = {
    redis_errors.BusyLoadingError: "LOADING",
    redis_errors.ClusterDownError: "CLUSTERDOWN",
    redis_errors.MasterDownError: "MASTERDOWN",
    redis_errors.NoScriptError: "NOSCRIPT",
    redis_errors.OutOfMemoryError: "OOM",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.TryAgainError: "TRYAGAIN",
}
"""The client cuts the code off where it has a class for it."""


def code_of(error: BaseException) -> str:
    """The first word of what the server said, such as `OOM`; empty if it was not the server."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    words = str(error).split(maxsplit=1)
    if isinstance(error, redis_errors.ResponseError) and words:
        # An error raised inside a script is quoted with some words before it, by some versions.
        return next((code for code in (*_LATER, "WRONGTYPE") if code in str(error)), words[0])
    return ""


def is_link_error(error: BaseException) -> bool:
    """True if the link or the server failed, and not this one call."""
    refused = redis_errors.AuthenticationError, redis_errors.MaxConnectionsError
    return isinstance(error, LINK_ERRORS) and not isinstance(error, refused)


def typed(error: BaseException, place: str, call: str) -> CapeError:
    """Re-type an error of the client by what the caller does about it.

    Args:
        error: what was raised.
        place: which server, without credentials.
        call: the script or command.
    """
    code = code_of(error)
    refused = (redis_errors.AuthenticationError, redis_errors.NoPermissionError)
    if isinstance(error, refused) or code in {"NOPERM", "NOAUTH", "WRONGPASS"}:
        return Fatal(
            f"{place} refuses {call}: wrong credentials or too few rights; `cape valkey doctor`"
        )
    if code in _LATER:
        return Retry(f"{place} {_LATER[code]} ({call})")
    if isinstance(error, redis_errors.TimeoutError):
        return Retry(f"{place} did not answer {call} in time")
    if isinstance(error, LINK_ERRORS):
        return Retry(f"{place} cannot be reached for {call}: {type(error).__name__}: {error}")
    if code == "WRONGTYPE":
        return Reject(
            f"a key of {call} holds what another program wrote there; delete the key or set"
            f" another valkey.prefix ({place})"
        )
    return Reject(f"{place} refuses {call}: {error}")
