"""Finds Java, and fetches the jars that a `pom.xml` names into a cache folder.

Knows Maven and the cache; knows nothing of servers. Standard library only, POSIX only (file locks).
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
JAVA_RELEASE_MIN = 17
"""Source: Kafka 4.0 upgrade notes, brokers and tools need Java 17 or newer."""


@dataclass(frozen=True)
class JarSet:
    """The jars of one server."""

    name: str
    """Such as `kafka`: the pom has a property `kafka.version`, the cache folder begins with it."""
    pom: Path
    cache_variable: str
    """Environment variable that names another cache folder."""


KAFKA = JarSet("kafka", Path(__file__).with_name("pom.xml"), "CAPE_KAFKA_CACHE")
ELASTICMQ = JarSet(
    "elasticmq", Path(__file__).with_name("elasticmq.pom.xml"), "CAPE_ELASTICMQ_CACHE"
)


class LocalKafkaError(Exception):
    """A local Kafka cannot be had; the message is one line a person can act on."""


class ToolMissing(LocalKafkaError):
    """Java or Maven is not on this machine: leave the broker out, or install `tool`."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(reason)
        self.tool = tool
        """`java` or `mvn`."""


class FetchFailed(LocalKafkaError):
    """Maven ran and did not deliver, for want of network or settings; the message quotes it."""


def find_java() -> Path:
    """Returns the `java` to run: that of JAVA_HOME if set, else the first one on the PATH.

    Raises:
        ToolMissing: there is none, or it is older than `JAVA_RELEASE_MIN`.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if found is None:
        where = f"under JAVA_HOME={home}" if home else "on the PATH"
        raise ToolMissing("java", f"java is not {where}")
    release = _java_release(found)
    if release < JAVA_RELEASE_MIN:
        raise ToolMissing("java", f"{found} is Java {release}, Kafka needs {JAVA_RELEASE_MIN}")
    return Path(found)


@functools.cache
def _java_release(java: str) -> int:
    """Returns 17 for `17.0.15` and 8 for `1.8.0_402`; 0 if java does not say."""
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', shown.stderr)
    return int(match[1]) if match else 0


def cache_folder(jar_set: JarSet = KAFKA) -> Path:
    """Returns where the jars are: what its variable names if set, else `.cache/NAME-VERSION`."""
    chosen = os.environ.get(jar_set.cache_variable)
    return Path(chosen) if chosen else PROJECT / ".cache" / f"{jar_set.name}-{_version(jar_set)}"


def _version(jar_set: JarSet) -> str:
    name = re.escape(jar_set.name)
    match = re.search(rf"<{name}\.version>(.+)</{name}\.version>", jar_set.pom.read_text())
    assert match is not None, f"{jar_set.pom.name} names the version"
    return match[1]


def missing_tool(jar_set: JarSet = KAFKA) -> ToolMissing | None:
    """Returns what this machine lacks to run the server, or None; fetches nothing."""
    try:
        find_java()
        if not _is_complete(cache_folder(jar_set), jar_set):
            _find_maven()
    except ToolMissing as missing:
        return missing
    return None


def fetch_jars(jar_set: JarSet = KAFKA) -> Path:
    """Returns the folder that holds every jar, fetching them first if need be (some seconds).

    Safe to call from several processes at once: one fetches, the others wait for it. A folder that
    an interrupted fetch or a cleaning tool left incomplete is fetched again.

    Raises:
        ToolMissing: a fetch is needed, and Maven is not on the PATH.
        FetchFailed: Maven failed.
    """
    cache = cache_folder(jar_set)
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "lock"):
        if not _is_complete(cache, jar_set):
            _fetch(cache, jar_set)
    return cache / "jars"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`, waiting for it; it dies with this process."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(cache: Path, jar_set: JarSet) -> None:
    """Fetches into a side folder; the stamp, written last, says that all is there."""
    maven = _find_maven()
    jars, partial = cache / "jars", cache / "jars.partial"
    for leftover in (jars, partial):
        shutil.rmtree(leftover, ignore_errors=True)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    done = subprocess.run(
        [
            maven,
            "-q",
            "-B",
            "-Dstyle.color=never",
            "-f",
            jar_set.pom,
            *goal,
            f"-DoutputDirectory={partial}",
        ],
        cwd=cache,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise FetchFailed(
            f"mvn could not fetch the jars of {jar_set.name}: {_first_error(done.stdout)}"
        )
    partial.rename(jars)
    stamp = cache / "complete.json"
    written = stamp.with_suffix(".partial")
    written.write_text(json.dumps({"pom": _digest(jar_set), "jars": _jar_sizes(jars)}, indent=1))
    written.replace(stamp)


def _find_maven() -> str:
    maven = shutil.which("mvn")
    if maven is None:
        raise ToolMissing("mvn", "mvn (Maven) is not on the PATH, it fetches the jars")
    return maven


def _first_error(output: str) -> str:
    errors = [line for line in output.splitlines() if "ERROR" in line]
    return (errors or output.splitlines() or ["it said nothing"])[0].strip()


def _is_complete(cache: Path, jar_set: JarSet) -> bool:
    """Whether the stamp is of today's pom, and every jar it lists is there in its full size."""
    try:
        stamp = json.loads((cache / "complete.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(stamp == {"pom": _digest(jar_set), "jars": _jar_sizes(cache / "jars")})


def _digest(jar_set: JarSet) -> str:
    return hashlib.sha256(jar_set.pom.read_bytes()).hexdigest()


def _jar_sizes(jars: Path) -> dict[str, int]:
    return {jar.name: jar.stat().st_size for jar in sorted(jars.glob("*.jar"))}
