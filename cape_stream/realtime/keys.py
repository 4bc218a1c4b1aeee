"""Keys that sign grants and cursors: a file with one a line, the first signs, all are accepted.

Rotating is putting a new line first; an old line may go once no grant of it can be alive, after an
hour. A process that meets a key it does not know reads the file again.
"""

import hashlib
import hmac
import os
import secrets
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path

from cape_stream.errors import Fatal

KEY_BYTES = 32
KEYS_KEPT = 3
"""Keys that rotating leaves in the file: the new one, and two to verify with."""
LOOK_INTERVAL_S = 1.0
"""How often a file is looked at, at most, when tokens name keys that nobody knows."""


class GrantKeys:
    """The keys of one installation.

    Args:
        keys: name → secret of 32 bytes; the first signs.
        file: where they are from, if they may change.
    """

    def __init__(self, keys: Mapping[str, bytes], file: Path | None = None) -> None:
        if not keys:
            raise Fatal("there is no key that signs grants; run `cape realtime rotate-keys`")
        self._file = file
        self._stamp: tuple[int, int] | None = None
        self._looked_s = 0.0
        self._keys: dict[str, bytes] = {}
        self._set(keys)

    @classmethod
    def from_file(cls, path: str) -> "GrantKeys":
        """The keys of a file.

        Raises:
            Fatal: it cannot be read, is open to others, or a line is no key.
        """
        if not path:
            raise Fatal(
                "realtime.keys_file is not set: make one by `cape realtime rotate-keys --keys-file"
                " FILE`, and give the same file to every process that mints grants or streams"
            )
        file = Path(path)
        keys = cls(_read(file), file)
        keys._stamp = _stamp(file)
        return keys

    @classmethod
    def ephemeral(cls) -> "GrantKeys":
        """A key that dies with the process, for tests and for one process alone."""
        return cls({"ephemeral": secrets.token_bytes(KEY_BYTES)})

    @property
    def signing(self) -> tuple[str, bytes]:
        """Name and secret of the key that signs grants."""
        self.refresh()
        name = next(iter(self._keys))
        return name, self._keys[name]

    def named(self, name: str) -> bytes | None:
        """The secret of that name, or None."""
        if name not in self._keys:
            self.refresh()
        return self._keys.get(name)

    def cursor_keys(self) -> tuple[bytes, ...]:
        """Secrets for cursors, the one that signs first: never the ones that sign grants."""
        return self._cursor_keys

    def refresh(self) -> bool:
        """Look whether the file has changed, once a second at most; True if it had."""
        now_s = time.monotonic()
        if self._file is None or now_s - self._looked_s < LOOK_INTERVAL_S:
            return False
        self._looked_s = now_s
        try:
            stamp = _stamp(self._file)
            if stamp == self._stamp:
                return False
            self._set(_read(self._file))
            self._stamp = stamp
        except (OSError, Fatal):
            return False  # half-written or gone for a moment: what we have stays good
        return True

    def _set(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)
        self._cursor_keys = tuple(
            hmac.digest(secret, b"cursor", hashlib.sha256) for secret in self._keys.values()
        )


def rotate(path: str) -> str:
    """Put a new key first, keep two older ones, and return the new one's name.

    Raises:
        Fatal: the file cannot be read or written.
    """
    file = Path(path)
    try:
        older = list(_read(file).items()) if file.exists() else []
        name = f"k{int(time.time())}-{secrets.token_hex(2)}"
        keys = [(name, secrets.token_bytes(KEY_BYTES)), *older][:KEYS_KEPT]
        text = "".join(f"{each} {b64encode(secret).decode()}\n" for each, secret in keys)
        fresh = file.with_name(f".{file.name}.{os.getpid()}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            out.write(text)
        fresh.replace(file)  # readers see the old file or the new one, never half of it
    except OSError as error:
        raise Fatal(f"keys file {path}: {error.strerror}") from error
    return name


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_ino


def _read(file: Path) -> dict[str, bytes]:
    try:
        if file.stat().st_mode & 0o077:
            raise Fatal(f"keys file {file} can be read by others: run `chmod 600 {file}`")
        lines = file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Fatal(f"keys file {file} cannot be read: {error}") from error
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, encoded = line.partition(" ")
        try:
            secret = b64decode(encoded, validate=True)
        except ValueError:
            secret = b""
        if len(secret) != KEY_BYTES or not name.replace("-", "").isalnum():
            raise Fatal(  # the line holds a secret, so it is not repeated
                f"keys file {file}, line {number}: a key is its name, a space, and"
                f" {KEY_BYTES} bytes in base64; `cape realtime rotate-keys` writes them"
            )
        keys[name] = secret
    if not keys:
        raise Fatal(f"keys file {file} holds no key; run `cape realtime rotate-keys`")
    return keys
