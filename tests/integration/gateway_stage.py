"""A dispatcher and a gateway in this process, on the embedded log, as a worker sees them."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Self

from fastavro import schemaless_reader
from fastavro.schema import load_schema

from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.model.job import Job
from cape_stream.ports.log import TopicPartition
from cape_stream.realtime.keys import rotate
from cape_stream.roles.backends import open_backend
from cape_stream.roles.crew import Crew
from cape_stream.roles.dispatcher import DispatcherPart
from cape_stream.roles.gateway import GatewayPart
from cape_stream.roles.settings_loading import load_settings
from cape_stream.roles.topics import topic_specs
from cape_stream.sdk import App, Batch
from cape_stream.shipped import shipped
from tests.waiting import eventually

QUEUE = "node"
SCHEMA = load_schema(str(shipped("schemas") / "job.avsc"))


@dataclass(frozen=True)
class Answer:
    """What the gateway said."""

    status: int
    fields: Mapping[str, Any]

    @property
    def codes(self) -> list[str]:
        """A code an item; empty for those accepted."""
        return [each.get("code", "") for each in self.fields["verdicts"]]


class GatewayStage:
    """Use `close`, or ``with``. ``flags``: more settings."""

    def __init__(self, folder: Path, **flags: str) -> None:
        self.keys_file = folder / "job-keys"
        if not self.keys_file.exists():
            rotate(str(self.keys_file))
        self.source = MemoryEventSource()
        self.app = App("shop", partitions=2)
        orders = self.app.domain("orders", source=self.source)
        prices = orders.topology("prices")
        prices.handler(name="price", queue=QUEUE)(_never)
        settings = load_settings(
            {
                "process.data_dir": str(folder / "data"),
                "gateway.port": "0",
                "gateway.keys_file": str(self.keys_file),
                **flags,
            },
            {},
        )
        self._stack = ExitStack()
        self.backend = self._stack.enter_context(open_backend("embedded", settings, "shop"))
        self.backend.log.create_topics(topic_specs(self.app))
        self.dispatcher = DispatcherPart(self.app, self.backend, settings)
        self.gateway = GatewayPart(self.app, self.backend, settings)
        self.crew = Crew([self.dispatcher, self.gateway])
        self.crew.start()
        self._stack.callback(self.crew.stop)
        eventually(lambda: self.gateway.port != 0)

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    # --- what a worker does --------------------------------------------------------------------

    def post(
        self,
        path: str,
        body: object,
        kind: str | None = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method="POST")
        request.add_header("Content-Type", kind or "")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return Answer(answer.status, json.load(answer))
        except urllib.error.HTTPError as error:
            return Answer(error.code, json.load(error))

    def records(self) -> Iterator[bytes]:
        """Jobs as they lie in their topics."""
        reader = self.backend.log.reader()
        try:
            for number in range(self.app.partitions):
                place = TopicPartition(self.app.topic_names.jobs(QUEUE), number)
                kept = reader.watermarks(place)
                for batch in reader.read(place, kept.low, kept.high):
                    yield from (each.value for each in batch if each.value is not None)
        finally:
            reader.close()

    def jobs(self, count: int) -> list[tuple[Job, str | None]]:
        """So many jobs and their tokens, once they are issued."""
        eventually(lambda: len(list(self.records())) >= count)
        found = []
        for value in self.records():
            fields = self.backend.codec.decode_job(value, QUEUE)
            found.append((fields, token_of(value)))
        return found

    @property
    def events_done(self) -> int:
        """How many the dispatcher knows to be done."""
        return self.dispatcher.figures().get("events_done", 0)

    def statuses(self) -> int:
        """Reports in the log."""
        reader = self.backend.log.reader()
        try:
            topic = self.app.topic_names.statuses("orders")
            places = [TopicPartition(topic, number) for number in range(self.app.partitions)]
            return sum(reader.watermarks(place).high for place in places)
        finally:
            reader.close()


def token_of(record: bytes) -> str | None:
    """The token, read by an Avro library and the published schema, as a worker's program would."""
    fields: Any = schemaless_reader(BytesIO(record[5:]), SCHEMA, None)
    token: str | None = fields["token"]
    return token


def status_of(job: Job, token: str | None, **changes: object) -> dict[str, object]:
    """A report that all is done, as JSON."""
    return {
        "domain": job.domain,
        "topology": job.topology,
        "lambda_id": job.lambda_id,
        "partition": job.partition,
        "epoch": job.epoch,
        "subject": job.subject,
        "job_id": job.job_id,
        "attempt": job.attempt,
        "token": token,
        "done": [event.sequence for event in job.events],
        **changes,
    }


def _never(batch: Batch) -> None:
    raise NotImplementedError
