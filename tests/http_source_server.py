"""A real HTTP service that keeps docs/http-source.md, and breaks it where a test says how."""

import json
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.model.request import EventPage, EventQuery, QueryFault

Answer = dict[str, Any]
Trick = Callable[["Handler", bytes], None]
"""Answers a request in place of the service; a raise or a return ends it."""


class Service(ThreadingHTTPServer):
    """Serves what is in ``events``, unless ``trick`` is set."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.events = MemoryEventSource()
        self.trick: Trick | None = None
        self.asked: list[str] = []
        """Path of every request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def pages(self, asked: Answer) -> Answer:
        queries = [EventQuery(q["subject"], q["start"], q["limit"]) for q in asked["queries"]]
        return {"pages": [page_of(each) for each in self.events.fetch_many(queries)]}

    def changes(self, asked: Answer) -> Answer:
        found = self.events.changed_since(asked["watermark"], asked["limit"])
        return {"subjects": found.subjects, "watermark": found.watermark, "more": found.more}


def page_of(answer: EventPage | QueryFault) -> Answer:
    if isinstance(answer, QueryFault):
        return {"subject": answer.query.subject, "fault": answer.reason}
    events = [
        {
            "sequence": event.sequence,
            "payload_base64": b64encode(event.payload).decode(),
            "headers": dict(event.headers),
        }
        for event in answer.events
    ]
    return {"subject": answer.query.subject, "events": events}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(self.path)
        if self.server.trick is not None:
            self.server.trick(self, body)
            return
        routes = {"/v1/events": self.server.pages, "/v1/changes": self.server.changes}
        self.reply(routes[self.path](json.loads(body)))

    def reply(self, answer: object) -> None:
        self.send(json.dumps(answer).encode())

    def send(self, body: bytes, status: int = 200, **headers: str) -> None:
        given = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self.send_response(status)
        for name, value in (given | {k.replace("_", "-"): v for k, v in headers.items()}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Say nothing on stderr."""


@contextmanager
def serving() -> Iterator[Service]:
    """A service on a port of its own."""
    service = Service()
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield service
    finally:
        service.shutdown()
        thread.join()
        service.server_close()
