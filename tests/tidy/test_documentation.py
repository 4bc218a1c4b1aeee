"""Docstrings: every folder has one purpose, every file one subject, every public name a meaning."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tidy.tree import PACKAGE, PROJECT, Source, product, report, source, sources, violations

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def documented_methods() -> frozenset[tuple[str, str]]:
    """Return (class, method) for every method of the product that has a docstring."""
    return frozenset(
        (owner.name, method.name)
        for each in product()
        for owner in ast.walk(each.tree)
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, Function) and ast.get_docstring(method)
    )


def undocumented(each: Source) -> Iterator[str]:
    """Name public classes, functions and methods without a docstring.

    A method that carries out one its parent class documents needs no second text.
    """
    if not ast.get_docstring(each.tree):
        yield "has no module docstring"
    for node in each.tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node):
                yield f"line {node.lineno}: {node.name} has no docstring"
            if isinstance(node, ast.ClassDef):
                yield from _undocumented_methods(node)


def _undocumented_methods(owner: ast.ClassDef) -> Iterator[str]:
    parents = [ast.unparse(parent).split("[")[0].split(".")[-1] for parent in owner.bases]
    for method in owner.body:
        if not isinstance(method, Function) or method.name.startswith("_"):
            continue
        inherited = any((parent, method.name) in documented_methods() for parent in parents)
        marks = {ast.unparse(mark).split(".")[-1] for mark in method.decorator_list}
        told = inherited or marks & {"setter", "overload"}
        if not ast.get_docstring(method) and not told:
            yield f"line {method.lineno}: {owner.name}.{method.name} has no docstring"


def purposeless(folder: Path) -> str | None:
    """Say what a folder that holds Python lacks to tell its purpose."""
    front = folder / "__init__.py"
    if not front.exists():
        return f"{folder.relative_to(PROJECT)} has no __init__.py that tells its purpose"
    if not ast.get_docstring(ast.parse(front.read_text())):
        return f"{front.relative_to(PROJECT)} has no docstring that tells the folder's purpose"
    return None


def test_public_names_are_documented() -> None:
    found = violations(undocumented, product())

    assert found == [], report(found)


def test_every_folder_of_code_tells_its_purpose() -> None:
    folders = {(PROJECT / each.path).parent for each in sources()} - {PROJECT}

    found = [lack for folder in sorted(folders) if (lack := purposeless(folder))]

    assert found == [], report(found)


def test_documentation_rule_refuses_silence() -> None:
    silent = '"""M."""\n\nclass A:\n    """A."""\n\n    def go(self): ...\n\ndef f(): ...\n'

    assert list(undocumented(source(silent))) == [
        "line 6: A.go has no docstring",
        "line 8: f has no docstring",
    ]
    assert list(undocumented(source("x = 1"))) == ["has no module docstring"]


def test_documentation_rule_accepts_a_method_its_port_documents() -> None:
    port = "Table"
    assert (port, "close") in documented_methods(), f"{PACKAGE}.ports changed; pick another method"

    heir = f'"""M."""\n\nclass Mine({port}):\n    """A."""\n\n    def close(self): ...\n'

    assert list(undocumented(source(heir))) == []
