"""What every setting means, read from where it is declared, so that there is one text for both."""

import ast
import inspect
import textwrap

from cape_stream.roles.settings import section_class


def explanations(section: str) -> dict[str, str]:
    """Field → the text below it in its class or a class before it, as one line."""
    found: dict[str, str] = {}
    for declared in reversed(section_class(section).__mro__[:-1]):
        found |= _explained_in(declared)
    return found


def _explained_in(section: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(section)))
    (declared,) = tree.body
    assert isinstance(declared, ast.ClassDef), "a section is a class"
    found: dict[str, str] = {}
    for field, text in zip(declared.body, declared.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found
