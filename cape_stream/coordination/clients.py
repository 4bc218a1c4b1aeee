"""Clients of the third party, made from settings; nothing else knows its options."""

from dataclasses import dataclass
from typing import Any

import redis
from redis.asyncio import BlockingConnectionPool as AsyncBlockingPool
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.connection import SSLConnection as AsyncTlsConnection
from redis.asyncio.retry import Retry as AsyncRetryPolicy
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import SSLConnection
from redis.retry import Retry as RetryPolicy
from redis.sentinel import Sentinel

from cape_stream.coordination.settings import Place, ValkeySettings

CLUSTER_REDIRECTS_MAX = 3


def options(settings: ValkeySettings, place: Place, read_timeout_ms: int) -> dict[str, Any]:
    """What every connection is opened with.

    The client's own repetitions are off: a call that was cut is repeated by the store, once, and
    never by a client that knows nothing of what it repeats.
    """
    found: dict[str, Any] = {
        "username": place.username,
        "password": place.password,
        "socket_timeout": read_timeout_ms / 1_000,
        "socket_connect_timeout": settings.connect_timeout_ms / 1_000,
        "socket_keepalive": True,
        "protocol": 2,
        "driver_info": None,
    }
    if place.tls:
        found |= {"ssl_ca_certs": settings.ca_file, "ssl_cert_reqs": "required"}
    return found


@dataclass(frozen=True, slots=True)
class _Face:
    """The classes of one face of the client; both take the same options."""

    client: Any
    pool: Any
    tls_link: Any
    cluster: Any
    node: Any
    retry: Any
    sentinel: Any


_SYNC = _Face(
    client=redis.Redis,
    pool=redis.BlockingConnectionPool,
    tls_link=SSLConnection,
    cluster=RedisCluster,
    node=ClusterNode,
    retry=RetryPolicy,
    sentinel=Sentinel,
)
_ASYNC = _Face(
    client=AsyncRedis,
    pool=AsyncBlockingPool,
    tls_link=AsyncTlsConnection,
    cluster=AsyncRedisCluster,
    node=AsyncClusterNode,
    retry=AsyncRetryPolicy,
    sentinel=AsyncSentinel,
)


def connect(settings: ValkeySettings, read_timeout_ms: int) -> Any:
    """A synchronous client; connects when it is first used."""
    return _connect(_SYNC, settings, read_timeout_ms)


def connect_async(settings: ValkeySettings, read_timeout_ms: int) -> Any:
    """The same for an event loop."""
    return _connect(_ASYNC, settings, read_timeout_ms)


def _connect(face: _Face, settings: ValkeySettings, read_timeout_ms: int) -> Any:
    place = Place.of(settings.url)
    kwargs = options(settings, place, read_timeout_ms)
    if place.kind == "cluster":
        return face.cluster(
            startup_nodes=[face.node(host, port) for host, port in place.hosts],
            retry=face.retry(NoBackoff(), CLUSTER_REDIRECTS_MAX),
            ssl=place.tls,
            **kwargs,
        )
    kwargs |= {"db": place.database, "retry": face.retry(NoBackoff(), 0)}
    if place.kind == "sentinel":
        asked = {"socket_timeout": settings.connect_timeout_ms / 1_000, "protocol": 2}
        sentinels = face.sentinel(list(place.hosts), sentinel_kwargs=asked)
        return sentinels.master_for(place.service, ssl=place.tls, **kwargs)
    if place.tls:
        kwargs["connection_class"] = face.tls_link
    ((host, port),) = place.hosts[:1]
    pool = face.pool(
        max_connections=settings.connections_max,
        timeout=read_timeout_ms / 1_000,
        host=host,
        port=port,
        **kwargs,
    )
    return face.client.from_pool(pool)
