"""The browser client in a real Chromium, over both wires, with cuts in between."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from cape_stream.ports.contexts import PublishBounds
from cape_stream.realtime.context import RealtimeContext
from tests.chromium import Browser, Page
from tests.fault_proxy import FaultProxy
from tests.integration.realtime.kit import Installation, SseClient, installation, wait_until
from tests.integration.realtime.site import App

pytestmark = pytest.mark.timeout(180)
TRANSPORTS = ["sse", "websocket"]
WHOLE = "seen.length === {0} && seen.every((each, index) => each === index)"


class Stage:
    """An installation, a proxy before its server, an app, and a page of the app."""

    def __init__(
        self, site: Installation, browser: Browser, mint: Callable[[RealtimeContext], str] | None
    ) -> None:
        self.server = site.start()
        self.context = site.context()
        self.mint = mint or (lambda context: context.grant(["room"]).token)
        self.proxy = FaultProxy(self.server.port)
        self.app = App(
            f"http://127.0.0.1:{self.server.port}/v1/client.js",
            f"http://127.0.0.1:{self.proxy.port}/v1/stream",
            lambda: self.mint(self.context),
        )
        self.page: Page = browser.page()
        self.page.go(self.app.url)

    def start(self, transport: str, more: str = "") -> None:
        self.page.run(f'start({{transport: "{transport}", {more}}})')

    def live(self, transport: str, more: str = "") -> None:
        self.start(transport, more)
        self.page.until("stream.state === 'live'")

    def sees(self, count: int) -> None:
        """Each number once and in order."""
        self.page.until(f"seen.length >= {count}")
        assert self.page.run(WHOLE.format(count)), self.page.run("seen")

    def close(self) -> None:
        self.page.run("globalThis.stream && stream.close()")
        self.page.call("Page.close")
        self.app.close()
        self.proxy.__exit__()


@contextmanager
def staged(
    browser: Browser, mint: Callable[[RealtimeContext], str] | None = None, **changes: Any
) -> Iterator[Stage]:
    with installation(**changes) as site:
        stage = Stage(site, browser, mint)
        try:
            yield stage
        finally:
            stage.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_messages_arrive_as_they_were_published(browser: Browser, transport: str) -> None:
    with staged(browser) as stage:
        stage.live(transport)
        texts = [
            "line one\nline two",
            "a\r\nb",
            "",
            " a",
            "data: x",
            "\u2028\u0085\ufeff",
            "🚀" * 9,
        ]

        for text in [*texts, {"deep": [1, None]}]:
            stage.context.publish("room", text)

        stage.page.until("seen.length === 8")
        assert stage.page.run("seen") == [*texts, {"deep": [1, None]}]
        assert stage.page.run("states") == ["connecting", "live"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_cuts_of_the_network_lose_and_repeat_nothing(browser: Browser, transport: str) -> None:
    with staged(browser) as stage:
        stage.live(transport)
        told = 0
        for _ in range(4):
            for _ in range(10):
                stage.context.publish("room", told)
                told += 1
            stage.page.until("seen.length > 0")
            stage.proxy.refuse()
            stage.context.publish("room", told)
            told += 1
            stage.page.until("stream.state === 'waiting'")
            stage.proxy.heal()
            stage.page.until("stream.state === 'live'")
        stage.sees(told)
        assert stage.app.minted == 1, "a good grant is used again"
        assert stage.page.run("resets.length") == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_connection_that_went_silent_is_replaced(browser: Browser, transport: str) -> None:
    with staged(browser) as stage:
        stage.live(transport, "silenceMs: 1500")
        stage.context.publish("room", 0)
        stage.page.until("seen.length === 1")

        stage.proxy.freeze()
        stage.context.publish("room", 1)
        stage.page.until("states.length > 2")
        stage.proxy.heal()

        stage.sees(2)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_expired_grant_is_minted_anew_once_and_nothing_is_missed(
    browser: Browser, transport: str
) -> None:
    lives_ms = iter([1_500, 60_000])

    def mint(context: RealtimeContext) -> str:
        return context.grant(["room"], timedelta(milliseconds=next(lives_ms))).token

    with staged(browser, mint) as stage:
        stage.live(transport)
        number = 0
        while stage.app.minted < 2:
            stage.context.publish("room", number)
            number += 1
            time.sleep(0.01)  # slower than a history of 500 runs over
        stage.page.until("stream.state === 'live' && stream.mints === 2")
        stage.context.publish("room", number)

        stage.sees(number + 1)
        assert stage.page.run("[stream.mints, stream.connects]") == [2, 2]
        assert stage.page.run("states").count("waiting: expired") == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_withdrawn_access_ends_it_for_good(browser: Browser, transport: str) -> None:
    grants = iter([300])

    def mint(context: RealtimeContext) -> str:
        life_ms = next(grants, 0)
        return context.grant(["room"], timedelta(milliseconds=life_ms)).token if life_ms else ""

    with staged(browser, mint) as stage:
        stage.start(transport)
        stage.page.until("stream.state === 'closed'")
        opened = stage.server.counters.opened

        assert stage.page.run("stream.reason") == "the app grants no access"
        assert stage.page.run("stream.closed.then(() => stream.connects)") == opened
        assert stage.app.minted == 2


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_revoked_grant_ends_it_without_asking_again(browser: Browser, transport: str) -> None:
    with staged(browser, lambda context: context.grant(["room"], holder="u").token) as stage:
        stage.live(transport)

        stage.context.revoke(holder="u")

        stage.page.until("stream.state === 'closed'")
        assert stage.page.run("stream.reason") == "revoked"
        assert stage.app.minted == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_app_that_mints_dead_grants_is_not_asked_for_ever(
    browser: Browser, transport: str
) -> None:
    with staged(browser, lambda _: "v1.k.dead.grant") as stage:
        stage.start(transport, "mintsMax: 3")

        stage.page.until("stream.state === 'closed'")

        assert stage.app.minted == 3
        assert stage.page.run("stream.connects") == 3
        assert stage.page.run("stream.reason") == "every new grant was refused"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_gap_is_surfaced(browser: Browser, transport: str) -> None:
    with staged(browser, history_messages=2) as stage:
        stage.live(transport)
        stage.context.publish("room", 0)
        stage.page.until("seen.length === 1")

        stage.proxy.refuse()
        stage.page.until("stream.state === 'waiting'")
        for number in range(1, 6):
            stage.context.publish("room", number)
        stage.proxy.heal()

        stage.page.until("stream.state === 'live'")
        stage.context.publish("room", 6)
        stage.page.until("seen.length === 2")
        assert stage.page.run("resets") == [["room"]]
        assert stage.page.run("seen") == [0, 6]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_signals_are_published_within_bounds(browser: Browser, transport: str) -> None:
    bounds = PublishBounds(("room",), kinds=("typing",), bytes_max=20)

    with staged(browser, lambda context: context.grant(["room"], publish=bounds).token) as stage:
        stage.live(transport)

        told = stage.page.run('stream.publish("room", "typing", "me")')
        strange = stage.page.run('stream.publish("room", "message", "me")')
        large = stage.page.run('stream.publish("room", "typing", "x".repeat(99))')

        stage.page.until("seen.length === 1")
        assert (told, strange, large) == ("", "kind", "too_large")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_errors_of_the_page_do_not_end_its_stream(browser: Browser, transport: str) -> None:
    with staged(browser) as stage:
        stage.start(transport, "onMessage: (m) => { seen.push(m.data); throw new Error('mine'); }")
        stage.page.until("stream.state === 'live'")

        for number in range(3):
            stage.context.publish("room", number)

        stage.sees(3)


def test_a_plain_event_source_stops_at_a_dead_grant(browser: Browser) -> None:
    """Without our client: one `expired`, a final 401, and no loop; a cut does reconnect."""
    with staged(browser) as stage:
        token = stage.context.grant(["room"], timedelta(milliseconds=4_000)).token
        address = f"http://127.0.0.1:{stage.proxy.port}/v1/stream?grant={token}"
        stage.page.run(
            f'globalThis.source = new EventSource("{address}");'
            "globalThis.opened = 0; source.onopen = () => opened++;"
            "globalThis.expired = 0; source.addEventListener('expired', () => expired++);"
            "source.onmessage = (event) => seen.push(JSON.parse(event.data).data)"
        )
        stage.page.until("opened === 1")
        stage.context.publish("room", 0)
        stage.page.until("seen.length === 1")
        stage.proxy.cut()
        stage.context.publish("room", 1)
        stage.sees(2)

        stage.page.until("source.readyState === EventSource.CLOSED")

        assert stage.page.run("[opened, expired]") == [2, 1]
        wait_until(lambda: stage.server.counters.refused.get("expired") == 1)


PARSE = """(async () => {
    const { EventParser } = await import("%s");
    const found = [];
    const parser = new EventParser((event) => event.name && found.push([event.name, event.data]));
    for (const part of %s) parser.feed(new TextEncoder().encode(part));
    return found;
})()"""


@pytest.mark.parametrize(
    ("parts", "events"),
    [
        (["data: a\n\n"], [["message", "a"]]),
        (["da", "ta: a\r", "\n\r", "\ndata: b\r\r"], [["message", "a"], ["message", "b"]]),
        (["data: a\ndata: b\n\n"], [["message", "a\nb"]]),
        (["data\n\n"], [["message", ""]]),
        (["data:\n\n"], [["message", ""]]),
        ([": hb\nid: 7\n\n"], []),
        (["event: reset\ndata: x\n\ndata: y\n\n"], [["reset", "x"], ["message", "y"]]),
        (["data:  two spaces\n\n"], [["message", " two spaces"]]),
        (["event: x\n\n"], []),
        (["data: unfinished"], []),
    ],
)
def test_the_parser_follows_the_specification(
    browser: Browser, parts: list[str], events: list[list[str]]
) -> None:
    with staged(browser) as stage:
        client = f"http://127.0.0.1:{stage.server.port}/v1/client.js"

        assert stage.page.run(PARSE % (client, parts)) == events


def test_many_tabs_hear_the_same(browser: Browser) -> None:
    with staged(browser) as stage:
        pages = [browser.page() for _ in range(3)]
        for page in pages:
            page.go(stage.app.url)
            page.run("start({})")
            page.until("stream.state === 'live'")
        plain = SseClient(stage.server.port, stage.context.grant(["room"]).token)
        plain.until_event("ready")

        for number in range(5):
            stage.context.publish("room", number)

        plain.until_messages(5)
        for page in pages:
            page.until(WHOLE.format(5))
            page.run("stream.close()")
            page.call("Page.close")
