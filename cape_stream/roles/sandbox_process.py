"""A process that was begun before anybody needed it: loads the handlers, then waits for one user.

Its first user is its only one, for nobody knows what a handler leaves behind. Whoever connects to
its socket first is the user; the socket is gone before the user hears a word. It ends with its
user, or, while it has none, with its maker, whose death closes its standard input.
"""

import os
import pickle
import socket
import sys
from contextlib import suppress
from multiprocessing import spawn
from multiprocessing.connection import Connection, wait
from pathlib import Path

from cape_stream.runtime.worker_executors import serve_jobs

READY = b"ready"


def main() -> None:
    """Read how to prepare, say that all is ready, then serve.

    Arguments: the path of the socket, and the number of the open file to say it to.
    """
    path, told = Path(sys.argv[1]), int(sys.argv[2])
    preparation, handlers = pickle.load(sys.stdin.buffer)  # noqa: S301  # from our maker alone
    spawn.prepare(preparation)
    pickle.loads(handlers)  # noqa: S301  # the same; imports whatever they need
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)
        os.write(told, READY)
        os.close(told)
        user = _user(listening)
        path.unlink(missing_ok=True)
    if user is not None:
        with suppress(OSError):  # it has left already
            user.send(READY)
            serve_jobs(user)


def _user(listening: socket.socket) -> Connection | None:
    """Who connects first; None if the maker goes before anybody comes."""
    if listening not in wait([listening, sys.stdin.fileno()]):
        return None
    return Connection(listening.accept()[0].detach())
