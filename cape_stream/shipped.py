"""Where the data that ships with the package lies: the folders ``schemas`` and ``topics``.

In an installed wheel they are inside the package, in a source checkout beside it.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from cape_stream.errors import Fatal


def shipped(kind: str) -> Traversable:
    """Return the folder of that kind, ``schemas`` or ``topics``.

    Raises:
        Fatal: this copy of the package came without it; install it anew.
    """
    installed = files("cape_stream") / "_data" / kind
    if installed.is_dir():
        return installed
    beside = Path(__file__).parent.parent / kind
    if beside.is_dir():
        return beside
    raise Fatal(f"the {kind} folder is missing from this installation of cape_stream")
