"""The store: carries calls out against the server, with a timeout each and one repetition."""

import threading
import time
from contextlib import suppress
from typing import Any, TypeVar

from cape_stream.coordination.breaker import Breaker
from cape_stream.coordination.clients import connect
from cape_stream.coordination.failures import LINK_ERRORS, code_of, is_link_error, typed
from cape_stream.coordination.figures import Figures
from cape_stream.coordination.keys import Keys
from cape_stream.coordination.links import Links, Words, open_links
from cape_stream.coordination.scripts import Argument, Call, Steps
from cape_stream.coordination.settings import Place, ValkeySettings
from cape_stream.errors import CapeError, Retry

WAIT_SLICE_MS = 1_000
"""The longest blocking command. A dead link is noticed after it and one call timeout."""

Result = TypeVar("Result")


class Store:
    """One per process; threads share it. Opens connections when they are first needed.

    Every call ends: with its reply, or with an error after at most two connects and two call
    timeouts. A call that was cut is repeated once, which is safe because every script carries an id
    that makes a repetition the same operation.

    Args:
        settings: where the server is.
        figures: where it counts; None: in figures of its own.

    Raises:
        Retry: (any call) the server is away, frozen, full, loading or read-only.
        Reject: (any call) a key holds what another program wrote.
        Fatal: (any call) wrong credentials or too few rights.
    """

    def __init__(self, settings: ValkeySettings, figures: Figures | None = None) -> None:
        self.settings = settings
        self.place = str(Place.of(settings.url))
        self.figures = Figures() if figures is None else figures
        self._breaker = Breaker(self.place)
        self._client = _Lazy(settings, settings.call_timeout_ms)
        self._waiting = _Lazy(settings, settings.call_timeout_ms + WAIT_SLICE_MS)

    def keys(self, service: str) -> Keys:
        """The key layout of a service."""
        return Keys(self.settings.prefix, service)

    def run(self, steps: Steps[Result]) -> Result:
        """Carry out steps to their end, and return what they return."""
        try:
            call = next(steps)
            while True:
                try:
                    reply = self.call(call)
                except CapeError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(reply)
        except StopIteration as end:
            result: Result = end.value
            return result

    def call(self, call: Call) -> Any:
        """Carry out one call and return its reply: integers, bytes, None, or lists of them."""
        (reply,) = self._called(call)
        return reply

    def call_copied(self, call: Call) -> Any:
        """The same, and wait until ``replicas_min`` replicas have what it wrote.

        Raises:
            Retry: also when not so many have it in half a call timeout; it is written all the same.
        """
        copies_min, wait_ms = self.settings.replicas_min, self.settings.call_timeout_ms // 2
        if not copies_min:
            return self.call(call)
        reply, copies = self._called(call, ("WAIT", copies_min, wait_ms))
        if copies < copies_min:
            raise Retry(
                f"{self.place} has written {call.script.name} to {copies} replicas within"
                f" {wait_ms} ms, and valkey.replicas_min asks for {copies_min}"
            )
        return reply

    def _called(self, call: Call, *more: Words) -> list[Any]:
        if not call.urgent:
            self._breaker.check()
        try:
            replies = self._repeated(call, *more)
        except Exception as error:
            if is_link_error(error):
                self._breaker.failed()
            self.figures.add("valkey_call_errors")
            raise typed(error, self.place, call.script.name) from error
        self._breaker.succeeded()
        self.figures.add("valkey_calls")
        return replies

    def wait(self, key: str, wait_ms: float) -> bool:
        """Wait until somebody pushes to the list ``key``, and take what was pushed.

        Returns False when ``wait_ms`` (at most one second a call) passes first.
        """
        return self._block("BLPOP", key, min(wait_ms, WAIT_SLICE_MS)) is not None

    def wait_together(self, key: str, wait_ms: float) -> bool:
        """The same, but leave what was pushed, so that everybody who waits is woken."""
        bound_ms = min(wait_ms, WAIT_SLICE_MS)
        return self._block("BLMOVE", key, bound_ms, key, "LEFT", "RIGHT") is not None

    def pause(self, pause_ms: float) -> bool:
        """Wait without asking the server; False, like a wait nobody ended."""
        time.sleep(pause_ms / 1_000)
        return False

    def command(self, *words: Argument) -> Any:
        """Any other command, tried once; for reading streams and for the doctor."""
        self._breaker.check()
        try:
            reply = self._client.get().execute_command(*words)
        except Exception as error:
            if is_link_error(error):
                self._breaker.failed()
            raise typed(error, self.place, str(words[0])) from error
        self._breaker.succeeded()
        return reply

    def block(self, wait_ms: float, *words: Argument) -> Any:
        """A command that blocks on the server for at most ``wait_ms`` <= one second."""
        assert wait_ms <= WAIT_SLICE_MS, f"blocks for {wait_ms} ms, at most {WAIT_SLICE_MS}"
        return self._blocking(*words)

    def subscriber(self) -> Any:
        """A connection of its own for listening; the caller closes it."""
        return self._client.get().pubsub()

    def close(self) -> None:
        """Close all connections; the store may be used again."""
        self._client.close()
        self._waiting.close()

    def _repeated(self, call: Call, *more: Words) -> list[Any]:
        links = self._client.links()
        try:
            return _send(links, call, *more)
        except Exception as error:
            # A demoted primary, or a link that broke: look again, and begin with fresh links.
            if code_of(error) != "READONLY" and not was_cut(error):
                raise
            links.renew()
            self.figures.add("valkey_repeats")
            return _send(links, call, *more)

    def _block(self, verb: str, key: str, wait_ms: float, *more: str) -> Any:
        wait_s = f"{max(wait_ms, 1) / 1_000:.3f}"
        return self._blocking(verb, key, *more, wait_s)

    def _blocking(self, *words: Argument) -> Any:
        self._breaker.check()
        try:
            reply = self._waiting.get().execute_command(*words)
        except Exception as error:
            if is_link_error(error):
                self._breaker.failed()
            raise typed(error, self.place, str(words[0])) from error
        return reply


def _send(links: Links, call: Call, *more: Words) -> list[Any]:
    try:
        return links.execute(call.by_digest(), *more)
    except Exception as error:
        if code_of(error) != "NOSCRIPT":
            raise
    return links.execute(call.whole(), *more)


def was_cut(error: BaseException) -> bool:
    """True if the link broke, and a new one may do; a timeout is not worth a second one."""
    timed_out = isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutError"
    return is_link_error(error) and not timed_out


class _Lazy:
    """A client that is made when it is first asked for."""

    def __init__(self, settings: ValkeySettings, read_timeout_ms: int) -> None:
        self._settings = settings
        self._read_timeout_ms = read_timeout_ms
        self._lock = threading.Lock()
        self._client: Any = None
        self._links: Links | None = None

    def links(self) -> Links:
        links = self._links
        if links is None:
            client, settings = self.get(), self._settings
            is_plain = Place.of(settings.url).kind == "plain"
            wait_ms, links_max = self._read_timeout_ms, settings.connections_max
            with self._lock:
                if self._links is None:
                    self._links = open_links(
                        client, is_plain=is_plain, links_max=links_max, wait_ms=wait_ms
                    )
                links = self._links
        return links

    def get(self) -> Any:
        client = self._client
        if client is None:
            with self._lock:
                if self._client is None:
                    self._client = connect(self._settings, self._read_timeout_ms)
                client = self._client
        return client

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            links, self._links = self._links, None
        if links is not None:
            links.close()
        if client is not None:
            with suppress(*LINK_ERRORS):
                client.close()
                if hasattr(client, "connection_pool"):
                    client.connection_pool.disconnect()


def retry_after_ms(error: Retry, otherwise_ms: int) -> int:
    """How long to wait before trying again."""
    return otherwise_ms if error.after_ms is None else error.after_ms
