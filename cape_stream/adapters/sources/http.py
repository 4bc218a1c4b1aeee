"""Events behind an HTTP service of yours; `docs/http-source.md` is the contract it keeps."""

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError
from urllib3.response import BaseHTTPResponse

from cape_stream.adapters.sources.http_answers import (
    SHOWN_CHARS,
    AnswerError,
    encode_queries,
    encode_watermark,
    read_changes,
    read_pages,
)
from cape_stream.errors import Fatal, Retry
from cape_stream.model.request import EventPage, EventQuery, QueryFault, query_refusal
from cape_stream.ports.source import Changes, NotAskedError

PIECE_BYTES = 64 * 1024
HELD_BACK_MS = 1_000
"""How long a call waits in its thread while the service wants to be left alone."""

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]


class HttpEventSource:
    """Asks a service for events, many subjects in one request. Thread-safe.

    The service answers ``POST {url}/events`` and ``POST {url}/changes`` with JSON. It must keep the
    promise of `EventSource`: a page is *everything* of a subject from its start to the last event
    in it, so a service on a database has to hold rows back that a transaction still open
    could precede.

    A service that answers 429 or 503 with Retry-After is left alone for so long: calls meanwhile
    are not made, and their queries wait without harm.

    Args:
        url: where the two paths lie under, ``http://`` or ``https://``.
        headers: sent with each request, such as Authorization; a function is asked each time, for
            tokens that rotate. Never part of a message.
        timeout_ms: how long a whole answer may take, > 0. Keep it below
            ``engine.source_timeout_ms``.
        answer_bytes_max: largest body taken, >= 1.
        retry_after_max_ms: longest time a service is left alone at one wish, >= 0.
        pool_size: connections that are kept open, >= 1.
        ca_file: certificates to trust; None: those of the system.

    Raises:
        ValueError: settings that cannot be.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Headers | None = None,
        timeout_ms: int = 5_000,
        answer_bytes_max: int = 64 * 1024 * 1024,
        retry_after_max_ms: int = 300_000,
        pool_size: int = 8,
        ca_file: str | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError("the URL of an HTTP source begins with http:// or https://")
        if min(timeout_ms, answer_bytes_max, retry_after_max_ms + 1, pool_size) < 1:
            raise ValueError(
                "timeout_ms, answer_bytes_max, retry_after_max_ms or pool_size too low"
            )
        self._url = url.rstrip("/")
        self._headers = headers or {}
        self._timeout_s = timeout_ms / 1_000
        self._bytes_max = answer_bytes_max
        self._retry_after_max_ms = retry_after_max_ms
        self._pool = urllib3.PoolManager(
            maxsize=pool_size, block=False, retries=False, ca_certs=ca_file
        )
        self._lock = Lock()
        self._closed_until_s = 0.0

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        """See `cape_stream.ports.source.EventSource`.

        Raises:
            NotAskedError: the service wants to be left alone for now.
            Retry: it is away, slow, throttles, or what it says is no answer.
            Fatal: it refuses, such as for credentials; the message has the status.
        """
        refusals = [query_refusal(query) for query in queries]
        valid = [query for query, no in zip(queries, refusals, strict=True) if no is None]
        pages: list[EventPage | QueryFault] = []
        if valid:
            self._wait_until_wanted()
            body = self._post("events", encode_queries(valid))
            try:
                pages = read_pages(body, valid)
            except AnswerError as error:
                raise Retry(f"{self._url}/events answers what is no answer: {error}") from error
        answers = iter(pages)
        return [
            next(answers) if no is None else QueryFault(query, no)
            for query, no in zip(queries, refusals, strict=True)
        ]

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """See `cape_stream.ports.source.EventSource`; raises as `fetch_many`, but Retry for
        NotAskedError."""
        left_ms = self._left_alone_ms()
        if left_ms:
            raise Retry(f"{self._url} wants to be left alone", after_ms=left_ms)
        body = self._post("changes", encode_watermark(watermark, limit))
        try:
            return read_changes(body, limit)
        except AnswerError as error:
            raise Retry(f"{self._url}/changes answers what is no answer: {error}") from error

    def close(self) -> None:
        """Close the connections that are kept open."""
        self._pool.clear()

    # --- leaving it alone ----------------------------------------------------------------------

    def _left_alone_ms(self) -> int:
        with self._lock:
            return max(0, round((self._closed_until_s - time.monotonic()) * 1_000))

    def _wait_until_wanted(self) -> None:
        left_ms = self._left_alone_ms()
        if left_ms:
            time.sleep(min(left_ms, HELD_BACK_MS) / 1_000)
            if self._left_alone_ms():
                raise NotAskedError(f"{self._url} wants to be left alone for {left_ms} ms")

    def _leave_alone(self, response: BaseHTTPResponse) -> int | None:
        """How long the service wants to be left alone, in ms; None if it does not say."""
        text = response.headers.get("Retry-After")
        if text is None:
            return None
        try:
            wanted_s = urllib3.Retry().parse_retry_after(text.strip())
        except (HTTPError, ValueError, OverflowError):
            return None
        after_ms = min(int(wanted_s * 1_000), self._retry_after_max_ms)
        with self._lock:
            self._closed_until_s = max(self._closed_until_s, time.monotonic() + after_ms / 1_000)
        return after_ms

    # --- one request ---------------------------------------------------------------------------

    def _post(self, path: str, body: bytes) -> bytes:
        url = f"{self._url}/{path}"
        until_s = time.monotonic() + self._timeout_s
        try:
            response = self._send(url, body)
            try:
                text = self._body(url, response, until_s)
            except BaseException:
                response.close()  # what is left of it would be taken for the next answer
                raise
            response.release_conn()
        except HTTPError as error:
            raise Retry(f"{url} does not answer: {type(error).__name__}: {error}") from error
        self._check(url, response, text)
        return text

    def _send(self, url: str, body: bytes) -> BaseHTTPResponse:
        given = self._headers() if callable(self._headers) else self._headers
        headers = {"Accept": "application/json", **given, "Content-Type": "application/json"}
        timeout = urllib3.Timeout(total=self._timeout_s)

        def send() -> BaseHTTPResponse:
            return self._pool.request(
                "POST",
                url,
                body=body,
                headers=headers,
                timeout=timeout,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )

        try:
            return send()
        except ProtocolError:  # a kept connection that the service has closed: asking twice is safe
            return send()

    def _body(self, url: str, response: BaseHTTPResponse, until_s: float) -> bytes:
        """The whole body. A timeout of a socket counts from byte to byte, ours for all of it."""
        pieces: list[bytes] = []
        size = 0
        while piece := response.read1(PIECE_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > self._bytes_max:
                raise Retry(f"{url} answers more than the {self._bytes_max} bytes allowed")
            if time.monotonic() > until_s:
                raise Retry(f"{url} has not ended its answer within {self._timeout_s:g} s")
        return b"".join(pieces)

    def _check(self, url: str, response: BaseHTTPResponse, text: bytes) -> None:
        status = response.status
        if status == 200:
            kind = response.headers.get("Content-Type", "")
            if kind.partition(";")[0].strip().lower() != "application/json":
                raise Retry(f"{url} answers {kind or 'no type'}, not JSON: {text[:SHOWN_CHARS]!r}")
            return
        said = f"{url} answers {status} {response.reason or ''}: {text[:SHOWN_CHARS]!r}"
        if status in (408, 425, 429) or status >= 500:
            raise Retry(said, after_ms=self._leave_alone(response))
        raise Fatal(said)
