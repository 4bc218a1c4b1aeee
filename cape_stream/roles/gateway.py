"""The gateway role: takes reports and pings over HTTP, and answers once the log has them.

Requests that come while the log is acknowledging wait together and share the next round trip.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from cape_stream.errors import Fatal, Reject
from cape_stream.model.subject import partition_of
from cape_stream.ports.log import Write
from cape_stream.realtime.keys import rotate
from cape_stream.roles.backends import Backend, StoppedError, patiently
from cape_stream.roles.gateway_items import ping_of, status_of
from cape_stream.roles.gateway_settings import GatewaySettings
from cape_stream.roles.job_tokens import JobTokens, job_tokens
from cape_stream.roles.partitions import check_counts
from cape_stream.roles.settings import Settings, SettingsError
from cape_stream.sdk.app import App

try:
    from cape_stream.adapters.http.gateway import (
        GatewayCalls,
        GatewayLimits,
        Items,
        Verdict,
        gateway_app,
    )
    from cape_stream.adapters.http.serving import HttpServer
except ImportError as missing:
    raise Fatal("the web server is not installed: pip install 'cape-stream[realtime]'") from missing

ACCEPTED = Verdict("accepted")
FULL_POLL_MS = 10
NO_KEYS = (
    "gateway.keys_file is not set, and without keys no report can be trusted: make them by `cape"
    " gateway rotate-keys --keys-file FILE`, and give the same file to the dispatchers"
)


def rotate_keys(settings: GatewaySettings) -> str:
    """Put a new key first, and say what that means.

    Raises:
        Fatal: the file is not named, or cannot be read or written.
    """
    if not settings.keys_file:
        raise SettingsError("name the file: `cape gateway rotate-keys --keys-file FILE`")
    name = rotate(settings.keys_file)
    return (
        f"{settings.keys_file}: {name} signs the tokens of new jobs, two older keys still verify;"
        " give the file to every dispatcher and gateway, to the gateways first"
    )


class Carrier:
    """Carries records to the log from one event loop, and tells of each whether it is there.

    Args:
        backend: its log; stays open.
        timeout_ms: how long the log may take.
    """

    def __init__(self, backend: Backend, timeout_ms: int) -> None:
        self._producer = backend.log.producer()
        self._timeout_ms = timeout_ms
        self._turn = asyncio.Lock()
        self._waiting: list[tuple[Sequence[Write], asyncio.Future[list[Verdict]]]] = []

    async def carry(self, writes: Sequence[Write]) -> list[Verdict]:
        """One verdict a record, once all are known."""
        done: asyncio.Future[list[Verdict]] = asyncio.get_running_loop().create_future()
        self._waiting.append((writes, done))
        async with self._turn:
            batch, self._waiting = self._waiting, []
            if batch:
                found = await asyncio.to_thread(self._sent, [w for each, _ in batch for w in each])
                for each, future in batch:
                    future.set_result(found[: len(each)])
                    del found[: len(each)]
        return await done

    def close(self) -> None:
        """Free all."""
        self._producer.close()

    def _sent(self, writes: Sequence[Write]) -> list[Verdict]:
        verdicts = [self._offer(write) for write in writes]
        settled = self._producer.flush(self._timeout_ms)
        failed = {Write(*each[:4]): each for each in self._producer.take_failed()}
        late = Verdict("retry", "log_away", f"no acknowledgement within {self._timeout_ms} ms")
        for index, write in enumerate(writes):
            loss = failed.get(write)
            if loss is not None:
                said = "refused" if loss.lasting else "retry"
                verdicts[index] = Verdict(said, "not_stored", loss.reason)
            elif not settled and verdicts[index] is ACCEPTED:
                verdicts[index] = late
        return verdicts

    def _offer(self, write: Write) -> Verdict:
        for _ in range(self._timeout_ms // FULL_POLL_MS + 1):
            try:
                if self._producer.send(*write):
                    return ACCEPTED
            except Reject as error:
                return Verdict("refused", "not_stored", error.reason)
            self._producer.poll(FULL_POLL_MS)
        return Verdict("retry", "busy", "too much is on its way to the log already")


class Gateway:
    """Reads items, checks tokens, and has the records carried; used by one event loop.

    Args:
        app: whose topics.
        backend: its codec and clock.
        tokens: what vouches for a report.
        timeout_ms: how long the log may take.
    """

    def __init__(self, app: App, backend: Backend, tokens: JobTokens, timeout_ms: int) -> None:
        self._app = app
        self._names = app.topic_names
        self._backend = backend
        self._tokens = tokens
        self._timeout_ms = timeout_ms
        self._carrier: Carrier | None = None
        self.counters: Counter[str] = Counter()
        """Accepted items by kind, refused ones by code."""

    async def report(self, items: Items) -> list[Verdict]:
        """Take reports."""
        return await self._take([self._status(item) for item in items], "statuses_accepted")

    async def ping(self, items: Items, domain: str | None) -> list[Verdict]:
        """Take pings."""
        return await self._take([self._ping(item, domain) for item in items], "pings_accepted")

    def refuse(self, code: str) -> None:
        """Count a request that was refused as a whole."""
        self.counters[f"refused_{code}"] += 1

    def close(self) -> None:
        """Free all."""
        if self._carrier is not None:
            self._carrier.close()

    async def _take(self, found: Sequence[Write | Verdict], name: str) -> list[Verdict]:
        writes = [each for each in found if isinstance(each, Write)]
        if self._carrier is None:
            self._carrier = Carrier(self._backend, self._timeout_ms)
        carried = iter(await self._carrier.carry(writes) if writes else ())
        verdicts = [each if isinstance(each, Verdict) else next(carried) for each in found]
        for each in verdicts:
            self.counters[name if each is ACCEPTED else f"{each.verdict}_{each.code}"] += 1
        return verdicts

    def _status(self, item: object) -> Write | Verdict:
        codec = self._backend.codec
        try:
            status, token = (
                codec.decode_signed_status(item) if isinstance(item, bytes) else status_of(item)
            )
            fault = self._tokens.fault(token, status, self._backend.clock.now_ms())
            if fault is not None:
                return Verdict("refused", str(fault), f"the report on {status.job_id}: {fault}")
            if status.domain not in self._app.domains or status.partition >= self._app.partitions:
                return Verdict("refused", "bad_item", "the App has no such domain or partition")
            value = codec.encode_status(status)
        except Reject as error:
            return Verdict("refused", "bad_item", error.reason)
        topic = self._names.statuses(status.domain)
        return Write(topic, status.partition, status.subject.encode(), value)

    def _ping(self, item: object, domain: str | None) -> Write | Verdict:
        codec, now_ms = self._backend.codec, self._backend.clock.now_ms()
        try:
            if isinstance(item, bytes):
                ping = codec.decode_lone_ping(item)
            else:
                domain, ping = ping_of(item, domain, now_ms)
            value = codec.encode_ping(ping)
        except Reject as error:
            return Verdict("refused", "bad_item", error.reason)
        known = self._app.domains
        if domain is None and len(known) == 1:
            domain = next(iter(known))
        if domain is None or domain not in known:
            text = f"domain must be one of {', '.join(known)}, in the item or in ?domain="
            return Verdict("refused", "bad_item", text)
        key = ping.subject.encode()
        return Write(self._names.pings(domain), partition_of(key, self._app.partitions), key, value)


class GatewayPart:
    """Implements `cape_stream.roles.crew.Part`.

    Args:
        app: whose reports and pings.
        backend: where the topics are; stays open.
        settings: everything in effect.

    Raises:
        Fatal: there are no keys.
    """

    name = "gateway"

    def __init__(self, app: App, backend: Backend, settings: Settings) -> None:
        self._app = app
        self._backend = backend
        self._settings = settings.gateway
        tokens = job_tokens(app.name, self._settings)
        if tokens is None:
            raise SettingsError(NO_KEYS)
        self._gateway = Gateway(app, backend, tokens, self._settings.log_timeout_ms)
        self._stopping = threading.Event()
        self.port = 0
        """Where it listens, once it does."""

    def run(self) -> None:
        """See `Part.run`."""
        app, backend, settings = self._app, self._backend, self._settings
        try:
            patiently(
                lambda: check_counts(backend.log, app),
                backend.place,
                stopping=self._stopping.is_set,
            )
        except StoppedError:
            return
        gateway = self._gateway
        calls = GatewayCalls(report=gateway.report, ping=gateway.ping, refuse=gateway.refuse)
        limits = GatewayLimits(
            body_bytes_max=settings.body_bytes_max,
            batch_max=settings.batch_max,
            body_timeout_ms=settings.body_timeout_ms,
            ping_token=settings.ping_token,
        )
        server = HttpServer(gateway_app(calls, limits), settings.host, settings.port, "gateway")
        self.port = server.port
        try:
            self._stopping.wait()
        finally:
            server.stop()
            gateway.close()

    def stop(self) -> None:
        """See `Part.stop`."""
        self._stopping.set()

    def figures(self) -> Mapping[str, int]:
        """See `Part.figures`."""
        counters = dict(self._gateway.counters)
        refused = sum(count for name, count in counters.items() if name.startswith("refused_"))
        return {**counters, "gateway_refused": refused}
