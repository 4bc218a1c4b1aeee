"""Names: none that says nothing, and a unit on every number that has one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.tree import Source, product, report, source, sources, violations

BANNED = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "base", "misc"}
"""Words that tell where somebody put a thing, not what it is."""

DURATIONS = {"age", "backoff", "delay", "duration", "elapsed", "latency", "period", "timeout"}
DURATIONS |= {"ttl", "wait", "uptime"}
"""A number so named has a unit, which stands last: `timeout_ms`."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def words(name: str) -> list[str]:
    """Split a name in either case style: `RetryPolicy`, `retry_policy` → retry, policy."""
    return [word.lower() for word in _WORD.findall(name)]


def empty_names(each: Source) -> Iterator[str]:
    """Name files, classes and functions that have a banned word in them."""
    for part in Path(each.path).with_suffix("").parts:
        if BANNED & set(words(part)):
            yield f"the path has a word that says nothing: {part}"
    for node in ast.walk(each.tree):
        name = getattr(node, "name", None) if isinstance(node, ast.stmt) else None
        if name is not None and BANNED & set(words(name)):
            yield f"{name} has a word that says nothing"


def missing_units(each: Source) -> Iterator[str]:
    """Name numbers that are a duration and do not say in which unit."""
    for node in ast.walk(each.tree):
        if isinstance(node, ast.arg):
            name, annotation = node.arg, node.annotation
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, annotation = node.target.id, node.annotation
        else:
            continue
        spelled = ast.unparse(annotation) if annotation else ""
        if re.match(r"(int|float)\b", spelled) and (words(name) or [""])[-1] in DURATIONS:
            yield f"line {node.lineno}: {name} is a number without its unit"


def test_names_say_something() -> None:
    found = violations(empty_names, sources())

    assert found == [], report(found)


def test_durations_name_their_unit() -> None:
    found = violations(missing_units, product())

    assert found == [], report(found)


@pytest.mark.parametrize(
    "text", ["class TaskManager: ...", "def base_url(): ...", "class AvroUtils: ..."]
)
def test_name_rule_refuses_an_empty_word(text: str) -> None:
    assert list(empty_names(source(text))) != []


def test_name_rule_reads_paths_and_whole_words_only() -> None:
    assert list(empty_names(source("", "cape_stream/core/helpers.py"))) != []
    assert list(empty_names(source("class Database: ...\nclass Commonality: ..."))) == []


@pytest.mark.parametrize("text", ["def f(timeout: int): ...", "ack_delay: float | None = None"])
def test_unit_rule_refuses_a_bare_number(text: str) -> None:
    assert list(missing_units(source(text))) != []


@pytest.mark.parametrize("text", ["def f(timeout_ms: int): ...", "timeout: timedelta = T"])
def test_unit_rule_accepts_a_unit_or_a_type_that_has_one(text: str) -> None:
    assert list(missing_units(source(text))) == []
