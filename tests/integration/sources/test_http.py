"""The HTTP source against a real server that does everything wrong, over real sockets."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from typing import Any

import pytest

from cape_stream.adapters.sources.http import HttpEventSource
from cape_stream.errors import Fatal, Retry
from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.source import NotAskedError
from tests.http_source_server import Handler, Service, Trick, serving
from tests.waiting import eventually

QUERY = EventQuery("S", 3, 2)
OTHER = EventQuery("T", 0, 9)
GOOD = {"subject": "T", "events": [{"sequence": 1, "payload": "fine"}]}


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as service:
        yield service


@pytest.fixture
def open_source(service: Service) -> Iterator[Callable[..., HttpEventSource]]:
    opened: list[HttpEventSource] = []

    def open_source(**settings: Any) -> HttpEventSource:
        opened.append(HttpEventSource(service.url, **settings))
        return opened[-1]

    yield open_source
    for source in opened:
        source.close()


@pytest.fixture
def source(open_source: Callable[..., HttpEventSource]) -> HttpEventSource:
    return open_source()


def always(answer: object) -> Trick:
    return lambda handler, _: handler.reply(answer)


def sends(body: bytes, status: int = 200, **headers: str) -> Trick:
    return lambda handler, _: handler.send(body, status, **headers)


def half_a_body(handler: Handler, _: bytes) -> None:
    """Promise more than is sent, and hang up."""
    handler.send(b'{"pages": [', Content_Length="500")
    handler.close_connection = True


def half_a_body_without_length(handler: Handler, _: bytes) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(b'{"pages": [{"subject": "S", "events": [')


def half_a_chunk(handler: Handler, _: bytes) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b'50\r\n{"pages": [')
    handler.close_connection = True


def hang_up(handler: Handler, _: bytes) -> None:
    handler.close_connection = True


# ---------------------------------------------------------------------------- whole answers


@pytest.mark.parametrize(
    ("trick", "said"),
    [
        (sends(b"try later", 500), "answers 500"),
        (sends(b"", 502), "answers 502"),
        (sends(b"<html>Sign in</html>", Content_Type="text/html; charset=utf-8"), "text/html"),
        (sends(b"<html>Sign in</html>"), "not JSON: b'<html>"),
        (sends(b""), "not JSON: b''"),
        (sends(b"[" * 100_000), "not JSON"),
        (sends(b'{"pages": "none"}'), "no list of pages"),
        (sends(b"[]"), "not an object"),
        (sends(b"\xff\xfe\x00"), "not JSON"),
        (always({"pages": []}), "0 pages for 1 queries"),
        (always({"pages": [GOOD, GOOD]}), "2 pages for 1 queries"),
        (half_a_body, "IncompleteRead"),
        (half_a_body_without_length, "not JSON"),
        (half_a_chunk, "does not answer"),
        (hang_up, "does not answer"),
    ],
)
def test_source_says_retry_when_the_answer_as_a_whole_is_none(
    service: Service, source: HttpEventSource, trick: Trick, said: str
) -> None:
    """And serves again as soon as the service does: no connection is left in a bad state."""
    service.trick = trick
    with pytest.raises(Retry, match=said):
        source.fetch_many([QUERY])

    service.trick = always({"pages": [GOOD]})
    (page,) = source.fetch_many([OTHER])
    assert isinstance(page, EventPage)
    assert page.events[0].payload == b"fine"


@pytest.mark.parametrize("status", [301, 302, 400, 401, 403, 404, 405, 413])
def test_source_says_fatal_when_only_a_person_can_help(
    service: Service, source: HttpEventSource, status: int
) -> None:
    """It follows no redirect: credentials would go along."""
    service.trick = sends(b"no", status, Location=f"{service.url}/elsewhere")

    for ask in (lambda: source.fetch_many([QUERY]), lambda: source.changed_since(None, 1)):
        with pytest.raises(Fatal, match=f"answers {status}"):
            ask()
    assert service.asked == ["/v1/events", "/v1/changes"]


def test_source_is_not_held_by_a_service_that_hangs(
    service: Service, open_source: Callable[..., HttpEventSource]
) -> None:
    released = threading.Event()
    service.trick = lambda handler, _: _wait(released)
    source = open_source(timeout_ms=100)

    with pytest.raises(Retry, match="ReadTimeoutError"):
        source.fetch_many([QUERY])
    released.set()


def test_source_is_not_held_by_a_service_that_drips(
    service: Service, open_source: Callable[..., HttpEventSource]
) -> None:
    """A byte now and then keeps every timeout of a socket alive."""
    released = threading.Event()

    def drip(handler: Handler, _: bytes) -> None:
        handler.send(b"", Content_Length="1000000")
        while not released.wait(0.01):
            handler.wfile.write(b" ")

    service.trick = drip
    source = open_source(timeout_ms=200)

    with pytest.raises(Retry, match=r"not ended its answer within 0\.2 s"):
        source.fetch_many([QUERY])
    released.set()


def _wait(released: threading.Event) -> None:
    released.wait(20)


def test_source_takes_no_more_bytes_than_allowed(
    service: Service, open_source: Callable[..., HttpEventSource]
) -> None:
    service.trick = sends(b" " * 2_000_000)

    with pytest.raises(Retry, match="more than the 1000000 bytes"):
        open_source(answer_bytes_max=1_000_000).fetch_many([QUERY])


def test_source_says_retry_when_nobody_listens() -> None:
    source = HttpEventSource("http://127.0.0.1:9")

    with pytest.raises(Retry, match="does not answer"):
        source.fetch_many([QUERY])
    with pytest.raises(Retry, match="does not answer"):
        source.changed_since(None, 5)
    source.close()


def test_source_asks_again_when_a_kept_connection_was_closed(
    service: Service, source: HttpEventSource
) -> None:
    """A service closes what was idle for long, perhaps in the moment of the next question."""
    calls = 0

    def closes_each_second(handler: Handler, _: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            handler.close_connection = True
        else:
            handler.reply({"pages": [GOOD]})

    service.trick = closes_each_second

    for _ in range(3):
        assert isinstance(source.fetch_many([OTHER])[0], EventPage)


# --------------------------------------------------------------------------- leaving it alone


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_source_leaves_a_service_alone_that_wishes_so(
    service: Service, open_source: Callable[..., HttpEventSource], status: int, form: str
) -> None:
    """Nothing is asked before the time is up; what would have been asked says nothing of it."""
    source = open_source()
    wish = "3" if form == "seconds" else formatdate(time.time() + 4, usegmt=True)
    service.trick = sends(b"slow down", status, Retry_After=wish)
    with pytest.raises(Retry) as caught:
        source.fetch_many([QUERY])
    assert caught.value.after_ms is not None
    assert 2_000 < caught.value.after_ms <= 4_000
    service.trick = None

    with pytest.raises(NotAskedError):
        source.fetch_many([QUERY])
    with pytest.raises(Retry, match="left alone"):
        source.changed_since(None, 5)
    assert len(service.asked) == 1

    def answered() -> bool:
        try:
            return isinstance(source.fetch_many([QUERY])[0], EventPage)
        except NotAskedError:
            return False

    eventually(answered)
    assert len(service.asked) == 2


@pytest.mark.parametrize("wish", [None, "", "soon", "-5", "Wed, 32 Foo 2026", "9" * 400])
def test_source_asks_on_when_the_wish_cannot_be_read(
    service: Service, open_source: Callable[..., HttpEventSource], wish: str | None
) -> None:
    service.trick = sends(b"", 429, **({} if wish is None else {"Retry_After": wish}))
    source = open_source(retry_after_max_ms=0)

    for _ in range(2):
        with pytest.raises(Retry, match="answers 429"):
            source.fetch_many([QUERY])


def test_source_leaves_a_service_alone_no_longer_than_it_may(
    service: Service, open_source: Callable[..., HttpEventSource]
) -> None:
    """A service that says a year has made a mistake."""
    service.trick = sends(b"", 429, Retry_After="31536000")

    with pytest.raises(Retry) as caught:
        open_source(retry_after_max_ms=7_000).fetch_many([QUERY])
    assert caught.value.after_ms == 7_000


# ---------------------------------------------------------------------------------- one page


def events(*sequences: object) -> dict[str, object]:
    return {"subject": "S", "events": [{"sequence": n, "payload": "x"} for n in sequences]}


def one(**fields: object) -> dict[str, object]:
    return {"subject": "S", "events": [{"sequence": 3, "payload": "x", **fields}]}


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (events(5, 4), "sequence id 4 is not ascending"),
        (events(4, 4), "sequence id 4 is not ascending"),
        (events(2, 3), "sequence id 2 is below the start"),
        (events(3, 4, 5), "3 events, more than the 2 asked for"),
        (events(-1), "negative"),
        (events(2**63), "beyond int64"),
        (events(3.0), "must be an integer"),
        (events(True), "must be an integer"),
        (events("three"), "must be an integer"),
        (events(None), "must be an integer"),
        ({"subject": "other", "events": []}, "a page of another subject: 'other'"),
        ({"events": []}, "a page of another subject: None"),
        (one(subject="T"), "an event of another subject: 'T'"),
        ({"subject": "S", "fault": "shard is moving"}, "the source says: 'shard is moving'"),
        ({"subject": "S", "events": {}}, "events are a list"),
        ({"subject": "S", "events": [7]}, "an event is an object"),
        ([], "a page is an object"),
        (one(payload=None), "needs payload or payload_base64"),
        (one(payload=7), "needs payload or payload_base64"),
        (one(payload_base64="eA=="), "needs payload or payload_base64"),
        (one(payload=None, payload_base64="?!"), "payload of 3 does not decode"),
        (one(payload="\ud800"), "payload of 3 does not decode"),
        (one(headers={"a": 1}), "headers of 3"),
        (one(headers=["a"]), "headers of 3"),
        (one(headers={"a": "\ud800"}), "headers of 3"),
    ],
)
def test_source_faults_a_page_that_breaks_the_contract_and_serves_its_neighbour(
    service: Service, source: HttpEventSource, page: object, said: str
) -> None:
    service.trick = always({"pages": [page, GOOD]})

    refused, served = source.fetch_many([QUERY, OTHER])

    assert isinstance(refused, QueryFault)
    assert refused.query == QUERY
    assert said in refused.reason
    assert isinstance(served, EventPage)


def test_source_reads_sequence_ids_written_as_text(
    service: Service, source: HttpEventSource
) -> None:
    """JavaScript's numbers end at 2**53."""
    service.trick = always({"pages": [events("9007199254740993", str(2**63 - 1))]})

    (page,) = source.fetch_many([QUERY])

    assert isinstance(page, EventPage)
    assert [each.sequence for each in page.events] == [2**53 + 1, 2**63 - 1]


# -------------------------------------------------------------------------------- the sweep


@pytest.mark.parametrize(
    "answer",
    [
        {"subjects": [["S", 1], ["T", 2]], "watermark": "w", "more": False},  # too many
        {"subjects": "S", "watermark": "w", "more": False},
        {"subjects": [], "watermark": 7, "more": False},
        {"subjects": [], "watermark": "w"},
        {"subjects": [], "watermark": "w", "more": "yes"},
    ],
)
def test_sweep_takes_nothing_of_an_answer_that_is_none(
    service: Service, source: HttpEventSource, answer: Mapping[str, object]
) -> None:
    service.trick = always(answer)

    with pytest.raises(Retry, match="no answer"):
        source.changed_since(None, 1)


def test_sweep_leaves_out_what_is_no_subject_and_says_so(
    service: Service, source: HttpEventSource, caplog: pytest.LogCaptureFixture
) -> None:
    bad: list[object] = [["", 1], ["S"], "S", [7, 7], ["S", -1], ["\ud800", 1], None]
    service.trick = always({"subjects": [*bad, ["S", "5"]], "watermark": "w", "more": False})

    changes = source.changed_since(None, 100)

    assert changes.subjects == [("S", 5)]
    assert len(caplog.records) == len(bad)


# ------------------------------------------------------------------------------ the request


def test_source_sends_headers_that_rotate_and_tells_nobody(
    service: Service, open_source: Callable[..., HttpEventSource]
) -> None:
    seen: list[str | None] = []

    def refuse(handler: Handler, _: bytes) -> None:
        seen.append(handler.headers["Authorization"])
        handler.send(b"forged", 401)

    service.trick = refuse
    tokens = iter(["Bearer one", "Bearer two"])
    source = open_source(headers=lambda: {"Authorization": next(tokens)})

    for _ in range(2):
        with pytest.raises(Fatal, match="answers 401") as caught:
            source.fetch_many([QUERY])
        assert "Bearer" not in str(caught.value)
    assert seen == ["Bearer one", "Bearer two"]


def test_source_asks_for_many_subjects_in_one_request(
    service: Service, source: HttpEventSource
) -> None:
    for number in range(50):
        service.events.append(f"S{number}", number, b"x")

    answers = source.fetch_many([EventQuery(f"S{number}", 0, 5) for number in range(50)])

    assert [len(each.events) for each in answers if isinstance(each, EventPage)] == [1] * 50
    assert service.asked == ["/v1/events"]


def test_source_keeps_its_connection(service: Service, source: HttpEventSource) -> None:
    ports: set[int] = set()

    def note(handler: Handler, body: bytes) -> None:
        ports.add(handler.client_address[1])
        handler.reply(service.pages(json.loads(body)))

    service.trick = note
    for _ in range(5):
        source.fetch_many([QUERY])

    assert len(ports) == 1


@pytest.mark.parametrize("settings", [{"timeout_ms": 0}, {"pool_size": 0}, {"answer_bytes_max": 0}])
def test_source_refuses_settings_that_cannot_be(settings: Any) -> None:
    with pytest.raises(ValueError, match="too low"):
        HttpEventSource("http://localhost", **settings)
    with pytest.raises(ValueError, match="begins with http"):
        HttpEventSource("ftp://localhost")
