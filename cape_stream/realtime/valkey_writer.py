"""The publishing side of channels on Valkey: one script, one round trip."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry as ClientRetry

from cape_stream.errors import Fatal, Reject, Retry
from cape_stream.ports.channels import Realm, Retention, Revocation
from cape_stream.realtime.scripts import PUBLISH, REVOKE_GRANT, REVOKE_HOLDER, TELL, Names

PASSING = ("LOADING", "READONLY", "OOM", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS")
"""How refusals begin that end without anybody's help, or on another server."""


CONNECTIONS_MAX = 32
"""Threads that publish at the same moment; more wait, as long as for an answer."""
SCHEMES = {"valkey": "redis", "valkeys": "rediss"}
SCHEMES |= {"redis": "redis", "rediss": "rediss", "unix": "unix"}


def client_url(url: str) -> str:
    """The URL as the client library spells it: it knows the older names of the schemes only.

    Raises:
        Fatal: it is none of those; the URL is not repeated, for it may hold a password.
    """
    scheme, colon, rest = url.partition(":")
    if scheme not in SCHEMES or not rest.startswith("//"):
        raise Fatal(
            "the channel store's address (realtime.valkey_url, else CAPE_VALKEY_URL) must begin"
            f" with valkey://, valkeys:// or unix://, not {scheme[:20]!r}; where sentinels or a"
            " cluster serve, name the primary, or the node, that has the realtime slots"
        )
    return f"{SCHEMES[scheme]}{colon}{rest}"


@contextmanager
def store_errors(doing: str) -> Iterator[None]:
    """Re-type what the client raises, by what the caller does about it."""
    try:
        yield
    except ResponseError as error:
        reason = f"{doing}: the channel store refused: {error}"
        raise (Retry if str(error).startswith(PASSING) else Reject)(reason) from error
    except (RedisError, OSError) as error:
        raise Retry(f"{doing}: the channel store does not answer: {error}") from error


class ValkeyChannelWriter:
    """See `cape_stream.ports.channels.ChannelWriter`."""

    def __init__(self, url: str, retention: Retention, timeout_ms: int) -> None:
        """Connect when first needed.

        Args:
            url: ``valkey://``, ``valkeys://`` (TLS) or ``unix://``.
            retention: how much is kept.
            timeout_ms: of one call, > 0.
        """
        pool = redis.BlockingConnectionPool.from_url(
            client_url(url),
            max_connections=CONNECTIONS_MAX,
            timeout=timeout_ms / 1_000,
            socket_timeout=timeout_ms / 1_000,
            socket_connect_timeout=timeout_ms / 1_000,
            # A publish that timed out may have happened: whoever called decides about a repeat.
            retry=ClientRetry(NoBackoff(), 0),
        )
        self._client = redis.Redis.from_pool(pool)
        self._retention = retention
        self._publish = self._client.register_script(PUBLISH)
        self._tell = self._client.register_script(TELL)
        self._revoke_grant = self._client.register_script(REVOKE_GRANT)
        self._revoke_holder = self._client.register_script(REVOKE_HOLDER)

    def publish(
        self, realm: Realm, channel: str, body: bytes, *, is_ephemeral: bool = False
    ) -> int:
        """See `ChannelWriter.publish`."""
        names = Names(realm)
        with store_errors("publish"):
            if is_ephemeral:
                return int(self._tell(keys=[names.place], args=[body, names.topic(channel)]))
            return int(
                self._publish(
                    keys=[names.place, names.history(channel), names.last(channel)],
                    args=[
                        body,
                        secrets.token_hex(8),
                        self._retention.messages,
                        self._retention.age_ms,
                        names.topic(channel),
                    ],
                )
            )

    def revoke(self, revocation: Revocation) -> None:
        """See `ChannelWriter.revoke`."""
        names = Names(revocation.realm)
        with store_errors("revoke"):
            if revocation.grant_id:
                self._revoke_grant(
                    keys=[names.grant(revocation.grant_id)],
                    args=[names.control, revocation.grant_id],
                )
            else:
                self._revoke_holder(
                    keys=[names.holder(revocation.holder)],
                    args=[names.control, revocation.before_ms, revocation.holder],
                )

    def close(self) -> None:
        """See `ChannelWriter.close`."""
        self._client.close()
