"""The keys file: made, rotated, read again, and never repeated in a message."""

from base64 import b64encode
from pathlib import Path

import pytest

from cape_stream.errors import Fatal
from cape_stream.realtime import keys as keys_module
from cape_stream.realtime.keys import GrantKeys, rotate

SECRET = b64encode(b"s" * 32).decode()


def write(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_rotate_makes_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "keys"

    name = rotate(str(path))

    assert path.stat().st_mode & 0o777 == 0o600
    assert GrantKeys.from_file(str(path)).signing[0] == name


def test_rotate_signs_with_the_new_key_and_keeps_two(tmp_path: Path) -> None:
    path = str(tmp_path / "keys")

    names = [rotate(path) for _ in range(5)]

    keys = GrantKeys.from_file(path)
    assert keys.signing[0] == names[-1]
    assert [keys.named(name) is not None for name in names] == [False, False, True, True, True]
    assert len(keys.cursor_keys()) == 3


def test_a_running_process_takes_up_a_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "LOOK_INTERVAL_S", 0.0)
    path = str(tmp_path / "keys")
    old = rotate(path)
    keys = GrantKeys.from_file(path)

    new = rotate(path)

    assert keys.named(new) is not None
    assert keys.signing[0] == new
    assert keys.named(old) is not None


def test_a_file_that_is_gone_for_a_moment_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "LOOK_INTERVAL_S", 0.0)
    path = tmp_path / "keys"
    name = rotate(str(path))
    keys = GrantKeys.from_file(str(path))

    path.unlink()
    assert keys.named("stranger") is None
    write(path, "half a li")
    assert keys.named("stranger") is None

    assert keys.signing[0] == name


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "k1", f"k1 {SECRET[:-4]}", "k1 not/base64!", f"k 1 {SECRET}"]
)
def test_a_bad_file_is_named_and_its_secrets_are_not(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "keys", text)

    with pytest.raises(Fatal) as refused:
        GrantKeys.from_file(path)

    assert "keys" in refused.value.reason
    assert SECRET[:12] not in refused.value.reason


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    rotate(str(path))
    path.chmod(0o644)

    with pytest.raises(Fatal, match="chmod 600"):
        GrantKeys.from_file(str(path))


@pytest.mark.parametrize("path", ["", "/nowhere/keys"])
def test_a_missing_file_says_what_to_do(path: str) -> None:
    with pytest.raises(Fatal, match="keys"):
        GrantKeys.from_file(path)


def test_rotating_into_a_folder_that_is_not_there_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="keys file"):
        rotate(str(tmp_path / "no" / "keys"))
    assert list(tmp_path.iterdir()) == []
