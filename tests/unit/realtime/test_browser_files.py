"""The browser client as it ships: there, typed, and the same in both files."""

import re
from importlib.resources import files

MODE = re.MULTILINE | re.DOTALL
BROWSER = files("cape_stream.realtime").joinpath("browser")
CODE = BROWSER.joinpath("cape-realtime.js").read_text(encoding="utf-8")
TYPES = BROWSER.joinpath("cape-realtime.d.ts").read_text(encoding="utf-8")


def block(name: str) -> str:
    found = re.search(rf"export (?:interface|class) {name}\b[^{{]*\{{(.*?)^\}}", TYPES, MODE)
    assert found is not None, name
    return found.group(1)


def members(name: str) -> set[str]:
    return set(re.findall(r"^  (?:readonly )?(\w+)\??[:(]", block(name), MODE)) - {"constructor"}


def test_what_the_types_export_the_code_does() -> None:
    exported = re.findall(r"^export (?:class|function) (\w+)", TYPES, MODE)

    assert sorted(exported) == sorted(re.findall(r"^export (?:class|function) (\w+)", CODE, MODE))


def test_every_option_of_the_types_is_used_by_the_code() -> None:
    options = members("Options")

    assert len(options) > 8
    assert [name for name in options if not re.search(rf"\b{name}\b", CODE)] == []


def test_every_member_of_a_stream_is_in_the_code() -> None:
    for name in members("Stream"):
        assert re.search(rf"this\.{name}\b|^  (?:async )?{name}\(", CODE, MODE), name


def test_the_client_depends_on_nothing() -> None:
    assert not re.search(r"^import |\brequire\(", CODE, MODE)
