"""Clients of the third party, made from settings; nothing else knows its options."""

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


def connect(settings: ValkeySettings, read_timeout_ms: int) -> Any:
    """A synchronous client; connects when it is first used."""
    place = Place.of(settings.url)
    kwargs = options(settings, place, read_timeout_ms)
    never = RetryPolicy(NoBackoff(), 0)
    if place.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in place.hosts]
        return RedisCluster(
            startup_nodes=nodes,
            retry=RetryPolicy(NoBackoff(), CLUSTER_REDIRECTS_MAX),
            ssl=place.tls,
            **kwargs,
        )
    if place.kind == "sentinel":
        asked = {"socket_timeout": settings.connect_timeout_ms / 1_000, "protocol": 2}
        sentinels = Sentinel(list(place.hosts), sentinel_kwargs=asked)
        return sentinels.master_for(
            place.service, db=place.database, retry=never, ssl=place.tls, **kwargs
        )
    if place.tls:
        kwargs["connection_class"] = SSLConnection
    ((host, port),) = place.hosts[:1]
    pool = redis.BlockingConnectionPool(
        max_connections=settings.connections_max,
        timeout=read_timeout_ms / 1_000,
        host=host,
        port=port,
        db=place.database,
        retry=never,
        **kwargs,
    )
    return redis.Redis.from_pool(pool)


def connect_async(settings: ValkeySettings, read_timeout_ms: int) -> Any:
    """The same for an event loop."""
    place = Place.of(settings.url)
    kwargs = options(settings, place, read_timeout_ms)
    never = AsyncRetryPolicy(NoBackoff(), 0)
    if place.kind == "cluster":
        nodes = [AsyncClusterNode(host, port) for host, port in place.hosts]
        return AsyncRedisCluster(
            startup_nodes=nodes,
            retry=AsyncRetryPolicy(NoBackoff(), CLUSTER_REDIRECTS_MAX),
            ssl=place.tls,
            **kwargs,
        )
    if place.kind == "sentinel":
        asked = {"socket_timeout": settings.connect_timeout_ms / 1_000, "protocol": 2}
        sentinels = AsyncSentinel(list(place.hosts), sentinel_kwargs=asked)
        return sentinels.master_for(
            place.service, db=place.database, retry=never, ssl=place.tls, **kwargs
        )
    if place.tls:
        kwargs["connection_class"] = AsyncTlsConnection
    ((host, port),) = place.hosts[:1]
    pool = AsyncBlockingPool(
        max_connections=settings.connections_max,
        timeout=read_timeout_ms / 1_000,
        host=host,
        port=port,
        db=place.database,
        retry=never,
        **kwargs,
    )
    return AsyncRedis.from_pool(pool)
