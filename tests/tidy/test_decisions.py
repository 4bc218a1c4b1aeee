"""Decision records: numbered without a gap, complete, and checked by something that exists."""

import re
from pathlib import Path

import pytest

from tests.tidy.tree import PROJECT

FOLDER = PROJECT / "docs" / "adr"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
SECTIONS = [
    *("Context", "Alternatives", "Decision", "Consequences", "How it is checked"),
]
LINES_MAX = 70
STATUS = r"accepted|superseded by \d{4}"


def lacks(text: str) -> list[str]:
    """Return what a record lacks."""
    found = [f"no section {name}" for name in SECTIONS if f"\n## {name}\n" not in text]
    if not re.search(rf"^- Status: ({STATUS})$", text, re.MULTILINE):
        found.append("no status")
    if not re.search(r"^- Date: \d{4}-\d\d-\d\d$", text, re.MULTILINE):
        found.append("no date")
    found += [
        f"no consequence that is {kind}"
        for kind in ("Good", "Bad", "Neutral")
        if not re.search(rf"^- {kind}: \S", text, re.MULTILINE)
    ]
    if not re.search(r"## How it is checked\n(?:.|\n)*`tests/", text):
        found.append("no test named under How it is checked")
    if len(text.splitlines()) > LINES_MAX:
        found.append(f"more than {LINES_MAX} lines")
    return found


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_record_is_complete(record: Path) -> None:
    assert lacks(record.read_text()) == []


def test_records_are_numbered_without_a_gap() -> None:
    numbers = [int(record.name[:4]) for record in RECORDS]

    assert numbers == list(range(1, len(numbers) + 1))


def test_record_titles_carry_their_number() -> None:
    wrong = [
        record.name
        for record in RECORDS
        if not record.read_text().startswith(f"# {int(record.name[:4])}. ")
    ]

    assert wrong == []


def test_index_lists_every_record() -> None:
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (FOLDER / "README.md").read_text())

    assert listed == [record.name for record in RECORDS]


def test_record_rule_refuses_an_empty_one() -> None:
    assert len(lacks("# 1. Nothing\n")) == len(SECTIONS) + 6
