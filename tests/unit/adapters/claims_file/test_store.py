import os
import stat
from pathlib import Path

import pytest

from cape_stream.adapters.claims_file import FileClaims
from cape_stream.errors import Fatal, Retry

NAME = "ab" + "0" * 62


def test_claim_put_again_is_young_again(tmp_path: Path) -> None:
    store = FileClaims(tmp_path)
    store.put(NAME, b"one")
    (path,) = tmp_path.rglob("*0")
    os.utime(path, (1_000, 1_000))
    store.put(NAME, b"one")

    assert path.stat().st_mtime > 1_000


def test_claim_is_for_its_owner_only(tmp_path: Path) -> None:
    FileClaims(tmp_path / "claims").put(NAME, b"secret")
    modes = [stat.S_IMODE(each.stat().st_mode) for each in [*(tmp_path / "claims").rglob("*")]]

    assert modes
    assert all(mode & 0o077 == 0 for mode in modes)


def test_write_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileClaims(tmp_path)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Retry, match="No space left"):
        store.put(NAME, b"one")

    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []
    monkeypatch.undo()
    assert store.get(NAME) is None
    store.put(NAME, b"one")
    assert store.get(NAME) == b"one"


def test_folder_that_cannot_be_made_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(Fatal, match=r"worker\.claims cannot be made"):
        FileClaims(tmp_path / "file" / "claims")
