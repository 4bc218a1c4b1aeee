"""boto3 clients and the threads their calls run in."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import boto3
from botocore.config import Config
from botocore.loaders import Loader
from botocore.session import get_session

from cape_stream.adapters.sqs.failures import is_credentials, retyped
from cape_stream.adapters.sqs.settings import SqsSettings

CONNECT_S = 5.0
LOADER = Loader()
"""Reads the descriptions of services, some of them megabytes, once a process, not once a client."""


class Client:
    """One client of one service with connections and threads of its own.

    Args:
        service: as boto3 names it.
        settings: where it is.
        connections: calls at a time.
        read_s: how long an answer may take.
    """

    def __init__(
        self, service: str, settings: SqsSettings, *, connections: int, read_s: float
    ) -> None:
        self._service = service
        self._settings = settings
        self._config = Config(
            max_pool_connections=connections,
            connect_timeout=CONNECT_S,
            read_timeout=read_s,
            # Whoever calls backs off; a repeat in here would hide a receive that took messages.
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path"} if settings.endpoint_url else None,
        )
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix=f"cape-{service}")
        self._lock = Lock()
        self._made: Any = None

    async def call(self, what: str, work: Callable[[Any], Any]) -> Any:
        """Result of ``work`` on the client, in a thread.

        Raises:
            Retry: away, throttled, or the credentials are refused; they are read anew next time.
            Reject: this call can never succeed.
            Fatal: the queue is gone.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._carry_out, what, work)

    async def close(self) -> None:
        """Let calls under way end, and free all."""
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        if self._made is not None:
            self._made.close()

    def _carry_out(self, what: str, work: Callable[[Any], Any]) -> Any:
        try:
            return work(self._client())
        except Exception as error:  # re-typed, or raised again as it is
            if is_credentials(error):
                with self._lock:
                    self._made = None
            raise retyped(error, what) from error

    def _client(self) -> Any:
        with self._lock:  # making clients is not safe in threads, using them is
            if self._made is None:
                settings = self._settings
                core = get_session()
                core.register_component("data_loader", LOADER)
                session = boto3.session.Session(
                    botocore_session=core,
                    profile_name=settings.profile or None,
                    region_name=settings.region,
                )
                self._made = session.client(
                    self._service,
                    endpoint_url=settings.endpoint_url or None,
                    config=self._config,
                )
            return self._made
