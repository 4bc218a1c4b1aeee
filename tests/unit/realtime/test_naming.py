"""Names that apps choose."""

import pytest

from cape_stream.errors import Reject
from cape_stream.realtime.naming import check_channel, check_channels, check_holder, check_kind


@pytest.mark.parametrize(
    "name",
    ["a", "room:7", "a/b", "*", "#", " ", "Zürich", "🚀", "x" * 200, "é" * 100, "%0A"],
)
def test_channel_takes_any_text_as_it_is(name: str) -> None:
    assert check_channel(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "x" * 201, "é" * 101, "a\nb", "a\rb", "\0", "a\tb", "\x7f", "\x85", "a\u2028b"),
        *("a\u2029b", "\ud800", 7, None, b"room", ["room"], "\x1b[31m"),
    ],
)
def test_channel_refuses_what_cannot_be_a_name(name: object) -> None:
    with pytest.raises(Reject) as refused:
        check_channel(name)

    assert refused.value.reason.isprintable(), "an error must not carry what it complains about"


def test_channels_are_a_set_in_order() -> None:
    assert check_channels(["b", "a", "b"]) == ("b", "a")
    assert check_channels(name for name in "ab") == ("a", "b")


@pytest.mark.parametrize(
    "names", [[], "room", b"room", 7, None, [f"c{n}" for n in range(33)], ["x" * 129] * 1 + ["\n"]]
)
def test_channels_refuse_what_is_no_list_of_names(names: object) -> None:
    with pytest.raises(Reject):
        check_channels(names)


def test_channels_fit_into_a_request_line() -> None:
    with pytest.raises(Reject, match="mint two"):
        check_channels([f"{number:0200}" for number in range(11)])


def test_kinds_and_holders_are_names_too() -> None:
    assert check_kind("cursor") == "cursor"
    assert check_holder("") == ""
    for check in (check_kind, check_holder):
        with pytest.raises(Reject):
            check("a\nevent: expired")
    with pytest.raises(Reject):
        check_kind("")
