import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from deploy.local.jars import ToolMissing, fetch_jars, missing_tool


@pytest.fixture
def broken_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of which somebody deleted one jar and cut another."""
    whole = fetch_jars().parent
    cache = tmp_path / "cache"
    shutil.copytree(whole, cache)
    first, second, *_ = sorted((cache / "jars").glob("*.jar"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:1000])
    monkeypatch.setenv("CAPE_KAFKA_CACHE", str(cache))
    return cache


def sizes(folder: Path) -> dict[str, int]:
    return {jar.name: jar.stat().st_size for jar in folder.iterdir()}


@pytest.mark.kafka
def test_fetch_repairs_a_broken_cache_when_two_processes_ask_at_once(
    monkeypatch: pytest.MonkeyPatch, broken_cache: Path
) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        folders = [pool.apply_async(fetch_jars), pool.apply_async(fetch_jars)]
        answers = [folder.get() for folder in folders]

    monkeypatch.delenv("CAPE_KAFKA_CACHE")
    assert answers == [broken_cache / "jars"] * 2
    assert sizes(broken_cache / "jars") == sizes(fetch_jars())


@pytest.mark.kafka
def test_fetch_leaves_a_whole_cache_alone_when_asked_again() -> None:
    jars = fetch_jars()
    before = jars.stat().st_ino, jars.stat().st_mtime_ns

    again = fetch_jars()

    assert (again.stat().st_ino, again.stat().st_mtime_ns) == before


@pytest.mark.kafka
def test_maven_is_needed_only_when_the_cache_is_not_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jars = fetch_jars()
    java = shutil.which("java")
    assert java is not None
    (tmp_path / "java").symlink_to(java)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert missing_tool() is None
    assert fetch_jars() == jars
    monkeypatch.setenv("CAPE_KAFKA_CACHE", str(tmp_path / "empty"))
    with pytest.raises(ToolMissing, match=r"mvn .* not on the PATH") as caught:
        fetch_jars()
    assert str(missing_tool()) == str(caught.value)


def test_java_is_missing_when_it_is_too_old(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")

    missing = missing_tool()

    assert str(missing) == f"{java} is Java 8, Kafka needs 17"
