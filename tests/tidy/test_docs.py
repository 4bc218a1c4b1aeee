"""Documentation that runs: snippets are executed or compiled, links and paths lead somewhere.

A fence ```python is compiled, ```python run is executed in an empty folder. In ```console the
targets of make and the commands of cape must exist; in ```console run every `$ ` line is executed
in an empty folder and the lines below it must appear in its output, `...` standing for anything.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.tree import PROJECT, report

PAGES_AT_TOP = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
RUN_LIMIT_S = 120

_FENCE = re.compile(r"^```(\w*)([^\n`]*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
_PATH = re.compile(r"`((?:tests|cape_stream|docs|deploy|topics|schemas|\.ci)/[\w./-]*|[A-Z]+\.md)`")


@dataclass(frozen=True)
class Snippet:
    """One fenced block: where it stands, its language, whether it shall run, and its text."""

    page: str
    line: int
    language: str
    runs: bool
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return every page that is there."""
    top = [PROJECT / name for name in PAGES_AT_TOP]
    return [page for page in [*top, *sorted((PROJECT / "docs").rglob("*.md"))] if page.exists()]


def snippets_of(page: str, text: str) -> Iterator[Snippet]:
    """Yield the fenced blocks of a page."""
    for match in _FENCE.finditer(text):
        language, note, body = match.groups()
        line = text[: match.start()].count("\n") + 1
        yield Snippet(page, line, language, "run" in note.split(), body)


@cache
def snippets() -> tuple[Snippet, ...]:
    """Return the fenced blocks of all pages."""
    return tuple(
        snippet
        for page in pages()
        for snippet in snippets_of(str(page.relative_to(PROJECT)), page.read_text())
    )


def chosen(language: str, *, runs: bool) -> list[Snippet]:
    """Return the blocks of one language that shall run, or shall not."""
    return [each for each in snippets() if each.language == language and each.runs is runs]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Split a console block into commands, each with the output lines the page shows."""
    command, expected = "", list[str]()
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line.removeprefix("$ "), []
        elif command:
            expected.append(line)
    if command:
        yield command, expected


def missing_lines(expected: list[str], output: str) -> list[str]:
    """Return the shown lines that do not appear in the output, in this order; `...` is anything."""
    lines, missing, position = output.splitlines(), [], 0
    for shown in expected:
        pattern = ".*".join(re.escape(part) for part in shown.strip().split("..."))
        for index in range(position, len(lines)):
            if re.fullmatch(pattern, lines[index].strip()):
                position = index + 1
                break
        else:
            if shown.strip() not in {"", "..."}:
                missing.append(shown)
    return missing


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder with the tools of this environment first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_LIMIT_S,
        check=False,
    )


def anchors(page: Path) -> set[str]:
    """Return the anchors the headings of a page make."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def broken_links(page: Path) -> Iterator[str]:
    """Name links that lead to no file, or to no heading in it."""
    for target in _LINK.findall(page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists():
            yield f"{page.relative_to(PROJECT)}: {target} leads nowhere"
        elif anchor and there.suffix == ".md" and anchor not in anchors(there):
            yield f"{page.relative_to(PROJECT)}: {target} names no heading"


def broken_paths(page: Path) -> Iterator[str]:
    """Name paths in backticks that are not in the checkout."""
    for path in _PATH.findall(page.read_text()):
        if not (PROJECT / path).exists():
            yield f"{page.relative_to(PROJECT)}: {path} is not there"


def unknown_commands(snippet: Snippet, tmp_path: Path) -> Iterator[str]:
    """Name make targets and cape commands of a block that do not exist."""
    for command, _ in commands(snippet.text):
        words = command.split()
        if words[0] == "make":
            asked = run(["make", "--dry-run", *words[1:]], PROJECT)
        elif words[0] == "cape" and len(words) > 1 and not words[1].startswith("-"):
            asked = run(["cape", words[1], "--help"], tmp_path)
        else:
            continue
        if asked.returncode:
            yield f"{snippet}: {command}: {asked.stdout.strip()[-200:]}"


def test_python_snippets_compile() -> None:
    for snippet in chosen("python", runs=False):
        compile(snippet.text, str(snippet), "exec")


@pytest.mark.slow
@pytest.mark.timeout(5 * RUN_LIMIT_S)
def test_python_snippets_run(tmp_path: Path) -> None:
    for number, snippet in enumerate(chosen("python", runs=True)):
        folder = tmp_path / str(number)
        folder.mkdir()

        done = run([sys.executable, "-c", snippet.text], folder)

        assert done.returncode == 0, f"{snippet}:\n{done.stdout}"


@pytest.mark.slow
@pytest.mark.timeout(5 * RUN_LIMIT_S)
def test_console_snippets_run_and_print_what_the_page_shows(tmp_path: Path) -> None:
    for number, snippet in enumerate(chosen("console", runs=True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        for command, expected in commands(snippet.text):
            done = run(["bash", "-c", command], folder)

            assert done.returncode == 0, f"{snippet}: {command}\n{done.stdout}"
            assert missing_lines(expected, done.stdout) == [], f"{snippet}: {done.stdout}"


def test_console_snippets_name_commands_that_exist(tmp_path: Path) -> None:
    found = [
        lack
        for snippet in chosen("console", runs=False)
        for lack in unknown_commands(snippet, tmp_path)
    ]

    assert found == [], report(found)


def test_links_between_pages_lead_somewhere() -> None:
    found = [lack for page in pages() for lack in broken_links(page)]

    assert found == [], report(found)


def test_paths_in_pages_are_in_the_checkout() -> None:
    found = [lack for page in pages() for lack in broken_paths(page)]

    assert found == [], report(found)


def test_snippets_are_found_and_told_apart() -> None:
    text = "a\n```python run\nx = 1\n```\n\n```console\n$ make help\n$ cape run\nready\n```\n"

    first, second = snippets_of("page.md", text)

    assert (first.line, first.language, first.runs, first.text) == (2, "python", True, "x = 1\n")
    assert (second.line, second.language, second.runs) == (6, "console", False)
    assert list(commands(second.text)) == [("make help", []), ("cape run", ["ready"])]


def test_unknown_commands_are_found(tmp_path: Path) -> None:
    wrong = Snippet("page.md", 1, "console", runs=False, text="$ make no-such-target\n")
    right = Snippet("page.md", 1, "console", runs=False, text="$ make help\n$ ls\n")

    assert len(list(unknown_commands(wrong, tmp_path))) == 1
    assert list(unknown_commands(right, tmp_path)) == []


def test_shown_output_is_compared_in_order_with_gaps() -> None:
    output = "ready in 12 ms\ndelivered 5\n"

    assert missing_lines(["ready in ... ms", "delivered 5"], output) == []
    assert missing_lines(["delivered 5", "ready in ... ms"], output) == ["ready in ... ms"]
    assert missing_lines(["delivered 6"], output) == ["delivered 6"]
