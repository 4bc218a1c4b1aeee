"""Orders that cannot be sent are refused before anything is, and so are unsafe settings."""

from typing import Any

import pytest

from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.errors import Reject
from cape_stream.roles.admin_settings import AdminSettings
from cape_stream.roles.orders import operation_of
from cape_stream.sdk.app import App
from cape_stream.sdk.batch import Batch

GOOD = {
    "verb": "skip",
    "domain": "orders",
    "topology": "ledger",
    "subject": "S",
    "sequence": 3,
    "who": "ann",
    "why": "it cannot be read",
}


def book(batch: Batch) -> None:
    """A handler that is declared and never called."""


def shop() -> App:
    app = App("shop", partitions=2)
    app.domain("orders", source=MemoryEventSource()).topology("ledger").handler(book)
    return app


def test_fields_of_a_request_become_an_order() -> None:
    operation = operation_of(shop(), GOOD, 7)

    assert (operation.verb, operation.subject, operation.sequence) == ("skip", "S", 3)
    assert (operation.who, operation.why, operation.issued_ms) == ("ann", GOOD["why"], 7)
    assert operation.operation_id != operation_of(shop(), GOOD, 7).operation_id


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verb": "explode"}, "there is no verb 'explode'; known: pause, drain"),
        ({"verb": 7}, "verb must be text"),
        ({"domain": "x"}, "there is no domain 'x'; known: orders"),
        ({"topology": "x"}, "there is no topology 'x'; known: ledger"),
        ({"subject": None}, "skip is about one subject: name it"),
        ({"sequence": None}, "skip needs a sequence id"),
        ({"verb": "pause"}, "pause is about a whole topology and takes no subject"),
        ({"who": ""}, "who must be text of one character or more"),
        ({"subject": 7}, "subject must be a string, not int"),
        ({"sequence": "3"}, "sequence must be an integer, not '3'"),
        ({"sequence": -2}, "sequence is negative: -2"),
        ({"howdy": 1}, "unknown field 'howdy'"),
    ],
)
def test_wrong_fields_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Reject) as refused:
        operation_of(shop(), GOOD | changes, 7)

    assert said in refused.value.reason


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"port": 70_000}, "port must be from 0 to 65535"),
        ({"port": 1, "host": "0.0.0.0"}, "set a token"),
        ({"token": "short"}, "16 characters or more"),
    ],
)
def test_settings_that_would_let_anybody_in_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AdminSettings(**values)


def test_settings_tell_the_address_and_hide_the_token() -> None:
    settings = AdminSettings(port=8120, advertised_host="d1.example", token="x" * 16)

    assert settings.advertised == "d1.example:8120"
    assert AdminSettings(port=8120, host="::1").advertised == "[::1]:8120"
    assert AdminSettings().advertised == ""
    assert "xxxx" not in repr(settings)
