"""Finds a user's App by the text ``module:attribute`` of a command line."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from cape_stream.sdk.app import App
from cape_stream.sdk.declaration import DeclarationError


def load_app(target: str) -> App:
    """Import the module, with the working directory on the path, and return the App in it.

    Args:
        target: ``module:attribute``, such as ``shop.events:app``.

    Raises:
        DeclarationError: names what was not found, or what the import raised, which stays
            attached as its cause.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute or module_name.endswith(".py") or "/" in module_name:
        hint = module_name.removesuffix(".py").strip("/").replace("/", ".") or "mod"
        raise DeclarationError(
            f"{target!r} does not name an App: write module:attribute, such as {hint}:app"
        )
    module = _import(module_name, target)
    value: object = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise DeclarationError(
                f"module {module_name!r} has no {attribute!r}{_apps_in(module, module_name)}"
            )
        value = getattr(value, part)
    if not isinstance(value, App):
        raise DeclarationError(
            f"{target!r} is a {type(value).__name__}, not an App{_apps_in(module, module_name)}"
        )
    return value


def _import(module_name: str, target: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise DeclarationError(
                f"{target!r}: there is no module {error.name!r}, neither in {here} nor installed"
            ) from error
        raise DeclarationError(f"{target!r}: importing it failed: {error}") from error
    except Exception as error:  # the user's module runs here; whatever it raises, say where
        raise DeclarationError(
            f"{target!r}: importing it raised {type(error).__name__}: {error}"
        ) from error


def _apps_in(module: ModuleType, module_name: str) -> str:
    found = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not found:
        return "; it holds no App"
    return "; it holds " + ", ".join(f"{module_name}:{name}" for name in found)
