"""The checkout as the tidy tests see it: its files, and its Python parsed once.

Rules take a `Source` and return sentences, one a violation. A rule is run on the whole tree by one
test and on a sample that breaks it by another, so that no rule can pass because it sees nothing.
"""

import ast
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = "cape_stream"

_BINARY = {".png", ".gz", ".zip", ".jar", ".sqlite", ".bin"}


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the project's root, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> list[str]:
        """The text by line, without line ends."""
        return self.text.splitlines()

    @property
    def module(self) -> str:
        """The dotted name it is imported by."""
        parts = Path(self.path).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def source(text: str, path: str = "cape_stream/model/sample.py") -> Source:
    """Make a sample for testing a rule."""
    return Source(path, text, ast.parse(text))


@cache
def files() -> tuple[Path, ...]:
    """Return every file a commit could hold: all but what .gitignore names as a folder."""
    ignored = {
        line.strip().rstrip("/")
        for line in (PROJECT / ".gitignore").read_text().splitlines()
        if line.strip().endswith("/")
    } | {".git"}
    found = []
    for folder, folders, names in os.walk(PROJECT):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if name not in ignored and str((here / name).relative_to(PROJECT)) not in ignored
        )
        found += [here / name for name in sorted(names) if not name.endswith((".pyc", ".pyo"))]
    return tuple(found)


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Return (path from the root, content) of every file that is text."""
    return tuple(
        (str(path.relative_to(PROJECT)), path.read_text(encoding="utf-8"))
        for path in files()
        if path.suffix not in _BINARY
    )


@cache
def sources() -> tuple[Source, ...]:
    """Return every Python file of the project, parsed."""
    return tuple(
        Source(path, text, ast.parse(text)) for path, text in texts() if path.endswith(".py")
    )


def product() -> Iterator[Source]:
    """Yield the files that are shipped, without the tests and scripts."""
    return (each for each in sources() if each.path.startswith(f"{PACKAGE}/"))


def report(found: list[str]) -> str:
    """Lay out what was found, one a line, for the message of a failed test."""
    return "\n".join(["", *found])


def violations(rule: Callable[[Source], Iterable[str]], among: Iterable[Source]) -> list[str]:
    """Run a rule over files and return what it found, each with its file."""
    return [f"{each.path}: {complaint}" for each in among for complaint in rule(each)]
