"""Sizes: what does not fit is two things, not one."""

import ast
from collections.abc import Iterator

from tests.tidy.tree import Source, report, source, sources, texts, violations

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
COLUMNS_MAX = 100

_LINED = (".py", ".toml", ".sh", ".avsc", ".properties", "Makefile")
"""Kinds of files whose lines are measured; prose and tables in Markdown wrap by themselves."""


def long_functions(each: Source) -> Iterator[str]:
    """Name functions over the limit; the docstring does not count, comments do."""
    for node in ast.walk(each.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def long_files(each: Source) -> Iterator[str]:
    """Tell whether the file is over the limit."""
    if len(each.lines) > FILE_LINES_MAX:
        yield f"has {len(each.lines)} lines, at most {FILE_LINES_MAX}"


def test_functions_fit_a_screen() -> None:
    found = violations(long_functions, sources())

    assert found == [], report(found)


def test_files_are_read_in_one_sitting() -> None:
    found = violations(long_files, sources())

    assert found == [], report(found)


def test_lines_fit_the_columns() -> None:
    long = [
        f"{path}:{number} has {len(line)} columns"
        for path, text in texts()
        if path.endswith(_LINED)
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > COLUMNS_MAX
    ]

    assert long == [], report(long)


def test_size_rules_refuse_what_is_too_long() -> None:
    body = "    x = 1\n"
    fits, bursts = (f"def f():\n{body * lines}" for lines in (69, 70))
    documented = f'def f():\n    """A.\n\n    B.\n    """\n{body * 69}'

    assert list(long_functions(source(fits))) == []
    assert list(long_functions(source(documented))) == []
    assert list(long_functions(source(bursts))) == ["f has 71 lines, at most 70"]
    assert list(long_files(source("x = 1\n" * 500))) == []
    assert list(long_files(source("x = 1\n" * 501))) != []
