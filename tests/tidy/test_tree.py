"""The top level and the words: agreed names only, and nothing of the place it was written on."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import cape_stream
from tests.tidy.tree import PROJECT, files, report, texts

TOP_LEVEL = {
    *(".ci", ".gitignore", "Makefile", "pyproject.toml"),
    *("requirements.lock", "requirements-dev.lock"),
    *("requirements-bench.in", "requirements-bench.lock"),
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"),
    *("cape_stream", "topics", "schemas", "deploy", "docs", "tests"),
}
LADDER = {"unit", "property", "transcripts", "contract", "simulation", "integration", "chaos"}
FOLDERS = LADDER | {"bench", "tidy", "data"}

# Each has one letter in brackets, so that this file does not hold what it forbids.
FORBIDDEN = [
    *("pypi[.]org", "pythonhosted[.]org", "registry[.]npmjs", "crates[.]io", "mvnrepository[.]com"),
    *("repo1?[.]maven", "proxy[.]golang", "deb[.]debian", "shields[.]io", "ghcr[.]io"),
    *(r"(?<![\w.])/[w]ork/", r"(?<![\w.])/[r]oot/", r"\b[s]hared/", r"\bdesign[.]md\b"),
    *("--(extra-)?index[-]url", "--find[-]links"),
]


def forbidden_words(text: str) -> list[str]:
    """Return what a text holds of registries, of machines, and of the place it was written on."""
    return [match.group() for each in FORBIDDEN for match in re.finditer(each, text)]


def project() -> dict[str, Any]:
    """Read the project table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return table


def distribution(requirement: str) -> str:
    """Name the package a requirement line asks for."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return match.group().lower()


def requirements() -> set[str]:
    """Return every package the project asks for, in any extra."""
    table = project()
    lines = list(table["dependencies"])
    for extra in table["optional-dependencies"].values():
        lines += extra
    return {distribution(line) for line in lines}


def test_top_level_holds_agreed_names_only() -> None:
    present = {path.relative_to(PROJECT).parts[0] for path in files()}

    assert present - TOP_LEVEL == set()


def test_tests_are_sorted_by_rung() -> None:
    folders = {
        path.relative_to(PROJECT / "tests").parts[0]
        for path in files()
        if path.is_relative_to(PROJECT / "tests") and len(path.relative_to(PROJECT).parts) > 2
    }

    assert folders - FOLDERS == set()


def test_data_folders_hold_no_code() -> None:
    strays = [
        str(path.relative_to(PROJECT))
        for path in files()
        if path.relative_to(PROJECT).parts[0] in {"topics", "schemas"}
        and path.suffix not in {".toml", ".avsc", ".json"}
    ]

    assert strays == [], report(strays)


def test_files_name_no_registry_and_no_machine() -> None:
    found = [f"{path}: {word}" for path, text in texts() for word in forbidden_words(text)]

    assert found == [], report(found)


@pytest.mark.parametrize(
    "text",
    ["https://pypi{}.org/simple", "see design{}.md", "cd /{}work/main", "/{}root/.m2"],
)
def test_word_rule_refuses(text: str) -> None:
    assert forbidden_words(text.replace("{}", "")) != []


def test_word_rule_reads_whole_words() -> None:
    assert forbidden_words("frame/work/ and grass-root/ and redesign.mdx") == []


@pytest.mark.parametrize(
    "name", ["requirements.lock", "requirements-dev.lock", "requirements-bench.lock"]
)
def test_lock_pins_every_package_by_hash(name: str) -> None:
    entries = re.split(r"\n(?=[a-z])", (PROJECT / name).read_text().strip())

    assert [entry for entry in entries if "==" not in entry.splitlines()[0]] == []
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_lock_holds_every_requirement() -> None:
    text = (PROJECT / "requirements-dev.lock").read_text()
    locked = {line.split("==")[0] for line in text.splitlines() if re.match(r"[a-z].*==", line)}

    assert {name.split("[")[0] for name in requirements()} - locked == set()


def test_every_dependency_has_its_reason() -> None:
    text = (PROJECT / "docs" / "dependencies.md").read_text()
    explained = re.findall(r"^\| `([^`]+)` \|[^|]+\| \S[^|]{15,}\|", text, re.MULTILINE)

    assert sorted(explained) == sorted(requirements())


def test_changelog_knows_the_version() -> None:
    text = (PROJECT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[?([^\]\s]+)", text, re.MULTILINE)

    assert headings[0] == "Unreleased"
    assert headings[1:] == [] or headings[1] == cape_stream.__version__
    assert "://" not in text


def test_make_help_names_every_target() -> None:
    text = (PROJECT / "Makefile").read_text()
    targets = set(re.findall(r"^\.PHONY: (\S+)", text, re.MULTILINE))
    taught = set(re.findall(r"^([a-z%-]+):.*## ", text, re.MULTILINE))

    assert targets - taught == set()
    assert taught >= {"setup", "demo", "demo-kafka", "test", "ci", "sim", "bench-%", "up", "down"}


def test_ci_runs_make_ci_and_nothing_else() -> None:
    script = PROJECT / ".ci" / "run"
    code = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]

    assert code[-1] == "exec make ci"
    assert len(code) == 3
    assert Path(script).stat().st_mode & 0o111
