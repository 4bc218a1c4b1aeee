"""Events as objects of an S3 bucket; docs/s3-source.md says how they are written."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from cape_stream.adapters.events_s3.keys import (
    BadKeyError,
    fits,
    folder_of,
    key_of,
    parse_key,
)
from cape_stream.errors import CapeError, Fatal, Retry
from cape_stream.model.event import NO_HEADERS, NO_INPUTS, Event
from cape_stream.model.request import EventPage, EventQuery, QueryFault, query_refusal
from cape_stream.ports.source import Changes

logger = logging.getLogger("cape_stream.sources")

HEADERS = "headers"
"""Name of the object's metadata that holds the event's headers as JSON in ASCII."""
CONNECT_S = 5
TRIES = 3
LIST_MAX = 1_000
LISTS_A_CALL = 20
"""Listings in one call of a sweep: it ends in time, however many objects a subject has."""
VERSION = 1
TOLD_MAX = 100
REFUSALS = frozenset(
    {"AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId", "NoSuchBucket"}
    | {"PermanentRedirect", "SignatureDoesNotMatch", "InvalidBucketName", "403"}
)


class S3EventSource:
    """Implements `EventSource` over objects named ``prefix/subject/sequence``. Thread-safe.

    Credentials, region and endpoint are found where every AWS client looks for them. Each subject
    costs one LIST a query and one GET an event, so a page of 100 events is 101 requests; a sweep
    lists all objects, 1,000 a request, and reports all subjects.

    Args:
        bucket: must be there.
        prefix: below which the events lie, without a slash at its end; may be empty.
        settle_ms: objects younger than this end a page as if they were not there, for writers that
            may write a lower sequence id after a higher one; >= 0.
        event_bytes_max: a larger object makes its subject's queries fail, >= 1.
        read_timeout_ms: longest wait for a byte of an answer, > 0.
        concurrency: requests under way at once, >= 1.

    Raises:
        ValueError: settings that cannot be.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        settle_ms: int = 0,
        event_bytes_max: int = 8 * 1024 * 1024,
        read_timeout_ms: int = 5_000,
        concurrency: int = 32,
    ) -> None:
        if min(settle_ms + 1, event_bytes_max, read_timeout_ms, concurrency) < 1:
            raise ValueError("settle_ms, event_bytes_max, read_timeout_ms or concurrency too low")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._place = f"s3://{bucket}/{prefix}"
        self._settle = timedelta(milliseconds=settle_ms)
        self._bytes_max = event_bytes_max
        config = Config(
            connect_timeout=CONNECT_S,
            read_timeout=read_timeout_ms / 1_000,
            retries={"total_max_attempts": TRIES, "mode": "standard"},
            max_pool_connections=concurrency,
        )
        self._client = boto3.session.Session().client("s3", config=config)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="cape-s3")
        self._told = 0

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        """See `cape_stream.ports.source.EventSource`.

        Raises:
            Retry: S3 is away or throttles.
            Fatal: there is no such bucket, or access is refused.
        """
        listed = list(self._pool.map(self._list, queries))
        wanted = [key for keys in listed if not isinstance(keys, QueryFault) for key in keys]
        events = dict(zip(wanted, self._pool.map(self._get, wanted), strict=True))
        return [
            keys if isinstance(keys, QueryFault) else _page(query, [events[key] for key in keys])
            for query, keys in zip(queries, listed, strict=True)
        ]

    def _list(self, query: EventQuery) -> list[str] | QueryFault:
        """Keys of the events that answer a query."""
        refusal = query_refusal(query)
        if refusal is None and not fits(self._prefix, query.subject):
            refusal = "the subject is too long for a key of S3, which has 1,024 bytes"
        if refusal is not None:
            return QueryFault(query, refusal)
        folder = folder_of(self._prefix, query.subject)
        after = key_of(self._prefix, query.subject, query.start - 1) if query.start else folder
        keys: list[str] = []
        ripe = datetime.now(UTC) - self._settle
        try:
            for found in self._objects(folder, after, query.limit):
                parse_key(self._prefix, found["Key"])
                if self._settle and found["LastModified"] > ripe:
                    break
                if found["Size"] > self._bytes_max:
                    return QueryFault(query, f"{found['Key']} has {found['Size']} bytes")
                keys.append(found["Key"])
                if len(keys) == query.limit:
                    break
        except BadKeyError as error:
            return QueryFault(query, str(error))
        return keys

    def _objects(self, prefix: str, after: str, wanted: int = LIST_MAX) -> Iterator[Any]:
        """Objects below a prefix and behind a key, in order; asks for more as they are taken."""
        while True:
            try:
                answer = self._client.list_objects_v2(
                    Bucket=self._bucket,
                    Prefix=prefix,
                    StartAfter=after,
                    MaxKeys=min(max(wanted, 1), LIST_MAX),
                )
            except (ClientError, BotoCoreError) as error:
                raise self._retyped(error) from error
            found = answer.get("Contents", ())
            yield from (each for each in found if not each["Key"].endswith("/"))
            if not answer["IsTruncated"] or not found:
                return
            after = found[-1]["Key"]

    def _get(self, key: str) -> Event | str:
        """The event of a key, or why there is none."""
        try:
            found = self._client.get_object(Bucket=self._bucket, Key=key)
            payload: bytes = found["Body"].read()
        except ClientError as error:
            if _code(error) in ("NoSuchKey", "404"):
                return f"{key} was deleted between two looks"
            raise self._retyped(error) from error
        except BotoCoreError as error:
            raise self._retyped(error) from error
        _, sequence = parse_key(self._prefix, key)
        try:
            headers = headers_of(found["Metadata"].get(HEADERS))
        except ValueError as error:
            return f"metadata {HEADERS} of {key} is no JSON object of strings: {error}"
        return Event(sequence, payload, headers, NO_INPUTS)

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        """See `cape_stream.ports.source.EventSource`; raises as `fetch_many`."""
        newest: dict[str, int] = {}
        after = self._decode(watermark)
        for number, found in enumerate(self._objects(self._prefix, after), 1):
            try:
                subject, sequence = parse_key(self._prefix, found["Key"])
            except BadKeyError as error:
                self._tell(error)
                continue
            if subject not in newest and len(newest) == limit:
                return Changes(list(newest.items()), self._encode(after), more=True)
            newest[subject] = sequence
            after = found["Key"]
            if number == LISTS_A_CALL * LIST_MAX:
                return Changes(list(newest.items()), self._encode(after), more=True)
        return Changes(list(newest.items()), self._encode(""), more=False)

    def _tell(self, error: BadKeyError) -> None:
        self._told += 1
        if self._told <= TOLD_MAX:
            logger.warning("no event in %s: %s; the sweep leaves it out", self._place, error)

    def _encode(self, after: str) -> str:
        return json.dumps({"version": VERSION, "place": self._place, "after": after})

    def _decode(self, watermark: str | None) -> str:
        """The key behind which a sweep goes on; the beginning for a watermark that is not ours."""
        try:
            read = json.loads(watermark or "null")
            is_ours = read["version"] == VERSION and read["place"] == self._place
            return str(read["after"]) if is_ours else ""
        except (ValueError, TypeError, KeyError):
            return ""

    def _retyped(self, error: ClientError | BotoCoreError) -> CapeError:
        said = f"{self._place} cannot be read: {error}"
        if isinstance(error, NoCredentialsError):
            return Fatal(said)
        if isinstance(error, ClientError) and _code(error) in REFUSALS:
            return Fatal(said)
        return Retry(said)

    def close(self) -> None:
        """See `cape_stream.ports.source.EventSource`."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()


def headers_of(text: str | None) -> Mapping[str, str]:
    """Headers of an object's metadata, else raise ValueError."""
    if text is None:
        return NO_HEADERS
    read = json.loads(text)
    if not isinstance(read, dict) or not all(isinstance(each, str) for each in read.values()):
        raise ValueError(f"it is {text[:80]!r}")
    return read


def _page(query: EventQuery, found: Sequence[Event | str]) -> EventPage | QueryFault:
    events: list[Event] = []
    for each in found:
        if isinstance(each, str):
            return QueryFault(query, each)
        events.append(each)
    return EventPage(query, events)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
