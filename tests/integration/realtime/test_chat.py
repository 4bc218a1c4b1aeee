"""The example app, in a real browser: two people, one room."""

import urllib.error
import urllib.request

import pytest

from cape_stream.demos.chat.stage import opened
from tests.chromium import Browser

LINES = "[...document.querySelectorAll('#said p')].map((line) => line.textContent)"
SAY = """(() => {
    const field = document.querySelector('input');
    field.value = %r;
    field.dispatchEvent(new Event('input'));
    document.forms[0].requestSubmit();
})()"""


def test_two_people_hear_each_other(browser: Browser) -> None:
    with opened() as (address, _):
        pages = [browser.page() for _ in range(2)]
        for page, user in zip(pages, ("ada", "bob"), strict=True):
            page.go(f"{address}?user={user}")
            page.until("document.getElementById('state').textContent.includes('live')")

        pages[0].run(SAY % "<b>hello</b>")
        pages[1].until(f"{LINES}.length === 1")
        pages[1].run(SAY % "hi ada")

        for page in pages:
            page.until(f"{LINES}.length === 2")
            assert page.run(LINES) == ["ada: <b>hello</b>", "bob: hi ada"]
            page.call("Page.close")


def test_who_is_not_let_in_is_told(browser: Browser) -> None:
    with opened() as (address, _):
        page = browser.page()
        page.go(f"{address}?user=")

        page.until("document.getElementById('state').textContent.includes('closed')")

        assert "no access" in page.run("document.getElementById('state').textContent")
        page.call("Page.close")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("say", b"nonsense", 400), ("say", b'{"user":"ada"}', 400), ("other", b"{}", 404)],
)
def test_bad_calls_are_answered_and_the_next_is_served(path: str, body: bytes, status: int) -> None:
    with opened() as (address, _):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{address}{path}", body)
        refused.value.close()

        assert refused.value.code == status
        with urllib.request.urlopen(f"{address}join", b'{"user":"ada"}') as answer:
            assert answer.read().startswith(b"v1.")
