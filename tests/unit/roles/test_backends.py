"""What is opened, and how long somebody waits for a log that is away."""

import time
from pathlib import Path

import pytest

from cape_stream.errors import Fatal, Retry
from cape_stream.roles import backends
from cape_stream.roles.backends import (
    StoppedError,
    member_name,
    open_backend,
    open_table,
    patiently,
)
from cape_stream.roles.settings_loading import load_settings


class Away:
    """A log that answers at the n-th call."""

    def __init__(self, answers_at: int) -> None:
        self.calls = 0
        self._answers_at = answers_at

    def __call__(self) -> str:
        self.calls += 1
        if self.calls < self._answers_at:
            raise Retry("the broker is away", 1)
        return "here"


def test_patience_goes_on_until_the_log_answers() -> None:
    away = Away(answers_at=20)

    assert patiently(away, "broker:9092") == "here"
    assert away.calls == 20


def test_patience_ends_and_names_the_place_it_asked() -> None:
    with pytest.raises(Fatal, match="no answer from broker:9092 within 0 s: the broker is away"):
        patiently(Away(answers_at=10**9), "broker:9092", patience_ms=5)


def test_patience_ends_when_somebody_wants_to_stop() -> None:
    away = Away(answers_at=10**9)

    with pytest.raises(StoppedError):
        patiently(away, "broker:9092", stopping=lambda: away.calls >= 3)


def test_patience_tells_once_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    patiently(Away(answers_at=20), "broker:9092")

    assert [record.message for record in caplog.records] == [
        "waiting for broker:9092: the broker is away"
    ]


def test_patience_tells_what_it_waits_for_while_the_first_answer_takes_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "SAY_FIRST_S", 0.0)

    def answer_late() -> list[str]:
        while not caplog.records:
            time.sleep(0.001)
        return [record.message for record in caplog.records]

    assert patiently(answer_late, "broker:9092") == ["waiting for broker:9092"]


def test_table_of_a_second_dispatcher_in_one_folder_is_refused_with_the_way_out(
    tmp_path: Path,
) -> None:
    settings = load_settings({"process.data_dir": str(tmp_path)}, {})
    first = open_table("shop", settings)
    try:
        with pytest.raises(Fatal) as caught:
            open_table("shop", settings)
    finally:
        first.close()

    assert str(tmp_path / "state" / "shop") in caught.value.reason
    assert "in use by another process" in caught.value.reason
    assert "--data DIR" in caught.value.reason


def test_tables_of_two_apps_in_one_folder_are_apart(tmp_path: Path) -> None:
    settings = load_settings({"process.data_dir": str(tmp_path)}, {})
    first, second = open_table("shop", settings), open_table("lab", settings)
    try:
        first.write("orders-0", {b"c": b"1"}, 5)
        assert second.position("orders-0") is None
    finally:
        first.close()
        second.close()


def test_embedded_backend_keeps_its_log_in_the_data_folder(tmp_path: Path) -> None:
    settings = load_settings({"process.data_dir": str(tmp_path)}, {})

    with open_backend("embedded", settings) as backend:
        assert backend.place == str(tmp_path / "log")
        with pytest.raises(Fatal, match="in use by another process"):
            open_backend("embedded", settings)
    with open_backend("embedded", settings):
        pass


def test_member_names_are_never_used_twice() -> None:
    assert member_name("shop", "dispatcher") != member_name("shop", "dispatcher")
    assert member_name("shop", "dispatcher").startswith("shop.dispatcher.")
