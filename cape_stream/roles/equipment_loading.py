"""Finds what an application brings to its workers, by the text ``module:attribute``."""

import sys
from importlib import import_module
from pathlib import Path

from cape_stream.queues.equipment import Equipment
from cape_stream.sdk.declaration import DeclarationError


def load_equipment(target: str | None) -> Equipment:
    """The equipment; an empty one if no target is given.

    Raises:
        DeclarationError: names what was not found, or what the import raised.
    """
    if target is None:
        return Equipment()
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise DeclarationError(
            f"{target!r} does not name equipment: write module:attribute, such as shop.work:work"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = getattr(import_module(module_name), attribute)
    except Exception as error:  # the user's module runs here; whatever it raises, say where
        raise DeclarationError(
            f"{target!r}: loading it raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, Equipment):
        raise DeclarationError(f"{target!r} is a {type(found).__name__}, not an Equipment")
    return found
