"""One file a claim, below 256 folders, written so that a crash leaves all of it or nothing."""

import os
import tempfile
from pathlib import Path

from cape_stream.errors import Fatal, Retry

FOLDER_DIGITS = 2


class FileClaims:
    """Implements `cape_stream.ports.claims.ClaimStore`.

    The age of a claim is the modification time of its file, so that
    ``find FOLDER -type f -mtime +30 -delete`` is all it takes to prune; a file that is being
    written has a name of its own and is young.

    Args:
        folder: on a disk all workers of the App see; made if it is not there.

    Raises:
        Fatal: the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = f"file:{folder}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Fatal(f"the folder of worker.claims cannot be made: {error}") from error

    def put(self, name: str, value: bytes) -> None:
        """See `ClaimStore.put`."""
        path = self._path(name)
        try:
            try:
                os.utime(path)
            except FileNotFoundError:
                self._write(path, value)
        except OSError as error:
            raise Retry(f"a claim cannot be written to {self.place}: {error.strerror}") from error

    def get(self, name: str) -> bytes | None:
        """See `ClaimStore.get`."""
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Retry(f"a claim cannot be read from {self.place}: {error.strerror}") from error

    def close(self) -> None:
        """Nothing to free."""

    def _path(self, name: str) -> Path:
        return self._folder / name[:FOLDER_DIGITS] / name[FOLDER_DIGITS:]

    def _write(self, path: Path, value: bytes) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            Path(unfinished).replace(path)
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name durable too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
