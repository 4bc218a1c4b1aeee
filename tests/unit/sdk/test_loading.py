import sys
from pathlib import Path

import pytest

from cape_stream.sdk import DeclarationError, load_app

FLIGHTS = """
from cape_stream import App
app = App("flight-ops")
other = {"app": app}
class Deploy:
    inner = app
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of a user, with their modules in it."""
    (tmp_path / "cape_flights_example.py").write_text(FLIGHTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", ".")])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def test_load_app_finds_it_in_the_working_directory() -> None:
    assert load_app("cape_flights_example:app").name == "flight-ops"
    assert load_app("cape_flights_example:Deploy.inner").name == "flight-ops"


@pytest.mark.parametrize("target", ["", ":", "flights", "flights:", ":app"])
def test_load_app_wants_a_module_and_an_attribute(target: str) -> None:
    with pytest.raises(DeclarationError, match="does not name an App: write module:attribute"):
        load_app(target)


def test_load_app_turns_a_file_name_into_the_module_it_should_have_been() -> None:
    with pytest.raises(DeclarationError, match=r"such as examples\.flights:app"):
        load_app("examples/flights.py:app")


def test_load_app_says_which_module_is_missing_and_where_it_looked(workplace: Path) -> None:
    with pytest.raises(DeclarationError, match="no module 'no_such_thing', neither in") as caught:
        load_app("no_such_thing.deeper:app")
    assert str(workplace) in caught.value.reason


def test_load_app_tells_a_missing_module_from_a_missing_import_in_it(workplace: Path) -> None:
    (workplace / "cape_broken_example.py").write_text("import no_such_library")

    with pytest.raises(DeclarationError, match="importing it failed: No module named 'no_such_l"):
        load_app("cape_broken_example:app")


def test_load_app_passes_on_what_the_module_raised(workplace: Path) -> None:
    (workplace / "cape_failing_example.py").write_text("1 / 0")

    with pytest.raises(DeclarationError, match="importing it raised ZeroDivisionError") as caught:
        load_app("cape_failing_example:app")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_load_app_lists_the_apps_there_are() -> None:
    message = "has no 'ap'; it holds cape_flights_example:app"
    with pytest.raises(DeclarationError, match=message):
        load_app("cape_flights_example:ap")

    with pytest.raises(DeclarationError, match="is a dict, not an App; it holds cape_flights_"):
        load_app("cape_flights_example:other")


def test_load_app_says_when_there_is_none() -> None:
    with pytest.raises(DeclarationError, match="module 'json' has no 'app'; it holds no App"):
        load_app("json:app")
