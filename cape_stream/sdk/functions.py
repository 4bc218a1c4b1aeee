"""What the signature of a handler says: what it takes, and whether it needs an event loop."""

from functools import partial
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, signature, unwrap

from cape_stream.sdk.declaration import DeclarationError

CONTEXT = "ctx"
"""Name of the parameter by which a handler asks for a context."""


def check_function(function: object, place: str) -> None:
    """Refuse what cannot be called with a batch, alone or with a context beside it."""
    if not callable(function):
        raise DeclarationError(f"{place} must be a function, not {function!r}")
    try:
        context = {CONTEXT: None} if takes_context(function) else {}
        signature(function).bind(None, **context)
    except TypeError as error:
        raise DeclarationError(
            f"{place} must be callable with one argument, the batch, or with two, the batch and"
            f" ctx: {error}"
        ) from error
    except ValueError:
        return  # a builtin without a signature; its first call will tell


def takes_context(function: object) -> bool:
    """Tell whether it has a parameter `ctx` beside the batch, and no default for it."""
    assert callable(function), "it was declared"
    try:
        found = list(signature(function).parameters.values())[1:]
    except ValueError:
        return False
    return any(each.name == CONTEXT and each.default is Parameter.empty for each in found)


def is_async(function: object) -> bool:
    """Tell whether it needs an event loop; looks through functools.wraps and callable objects."""
    inner = unwrap(function) if callable(function) else function
    while isinstance(inner, partial):
        inner = inner.func
    return any(
        iscoroutinefunction(each) or isasyncgenfunction(each)
        for each in (inner, type(inner).__call__ if callable(inner) else None)
    )
