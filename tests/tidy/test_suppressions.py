"""Suppressions: each names its code and its reason, and there are few."""

import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.tidy.tree import Source, report, source, sources, violations

IGNORES_PER_KLOC_MAX = 1
NOQAS_PER_KLOC_MAX = 2
CASTS_PER_KLOC_MAX = 1

_ANY = re.compile(r"#\s*(type:\s*ignore|noqa\b|ruff:|mypy:|pyright:|pylint:|fmt:|isort:)")
_REASONED = re.compile(
    r"#\s*(type:\s*ignore\[[\w\-, ]+\]\s+#|noqa:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*)\s+(#\s*)?\w.{9,}"
)
_OPEN_END = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def comments(each: Source) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every comment; text inside strings is not one."""
    for token in tokenize.generate_tokens(io.StringIO(each.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def unreasoned(each: Source) -> Iterator[str]:
    """Name suppressions without a code, without a reason, or for a whole file."""
    for line, comment in comments(each):
        if _ANY.search(comment) and not _REASONED.search(comment):
            yield f"line {line}: {comment} needs its code and `  # the reason`"


def open_ends(each: Source) -> Iterator[str]:
    """Name marks of unfinished work that no issue number belongs to."""
    for line, comment in comments(each):
        if _OPEN_END.search(comment) and not re.search(r"#\d+", comment):
            yield f"line {line}: {comment} has no issue number"


def per_kloc(pattern: str) -> float:
    """Count matches in all Python files, a thousand lines."""
    count = sum(len(re.findall(pattern, text)) for each in sources() for text in each.lines)
    return count * 1000 / max(1, sum(len(each.lines) for each in sources()))


def test_suppressions_have_a_code_and_a_reason() -> None:
    found = violations(unreasoned, sources())

    assert found == [], report(found)


def test_unfinished_work_has_an_issue_number() -> None:
    found = violations(open_ends, sources())

    assert found == [], report(found)


def test_suppressions_stay_within_budget() -> None:
    assert per_kloc(r"#\s*type:\s*ignore\[") <= IGNORES_PER_KLOC_MAX
    assert per_kloc(r"#\s*noqa:") <= NOQAS_PER_KLOC_MAX
    assert per_kloc(r"(?<!\w)cast\(") <= CASTS_PER_KLOC_MAX


@pytest.mark.parametrize(
    "comment",
    [
        "# type: ignore",
        "# type: ignore[arg-type]",
        "# noqa",
        "# noqa: BLE001",
        "# noqa: BLE001  # why",
        "# type: ignore[arg-type] the stub lacks the keyword",
        "# ruff: noqa: E501",
        "# mypy: ignore-errors",
        "# fmt: off",
    ],
)
def test_suppression_rule_refuses(comment: str) -> None:
    assert list(unreasoned(source(f"x = 1  {comment}"))) != []


@pytest.mark.parametrize(
    "comment",
    [
        "# type: ignore[arg-type]  # the stub lacks the keyword",
        "# noqa: BLE001  handed to whoever asks for the result",
        "# noqa: BLE001  # the boundary of user code: everything counts as a bug of theirs",
    ],
)
def test_suppression_rule_accepts_a_reason(comment: str) -> None:
    assert list(unreasoned(source(f"x = 1  {comment}"))) == []


def test_open_end_rule_wants_a_number() -> None:
    assert list(open_ends(source("x = 1  # TODO later"))) != []
    assert list(open_ends(source("x = 1  # TODO #12 later"))) == []
    assert list(open_ends(source("x = '# TODO'"))) == []
