"""The data folders are found, and a copy of the package without them says so."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cape_stream
from cape_stream.errors import Fatal
from cape_stream.shipped import shipped

PACKAGE = Path(cape_stream.__file__).parent


@pytest.mark.parametrize(("kind", "file"), [("schemas", "registry.json"), ("topics", "pings.toml")])
def test_shipped_finds_the_folder(kind: str, file: str) -> None:
    assert (shipped(kind) / file).is_file()


def test_shipped_says_which_folder_is_missing() -> None:
    with pytest.raises(Fatal, match="the recipes folder is missing from this installation"):
        shipped("recipes")


@pytest.mark.parametrize(
    ("folders", "kind", "found"),
    [
        (["site/cape_stream/_data/topics"], "topics", "site/cape_stream/_data/topics"),
        (["site/topics"], "topics", "site/topics"),
        (
            ["site/cape_stream/_data/topics", "site/topics"],
            "topics",
            "site/cape_stream/_data/topics",
        ),
        (["site/cape_stream/_data/topics", "site/schemas"], "schemas", "site/schemas"),
    ],
    ids=["wheel", "checkout", "both", "only the other one inside"],
)
def test_shipped_looks_inside_the_package_and_then_beside_it(
    folders: list[str], kind: str, found: str, tmp_path: Path
) -> None:
    for folder in ["site/cape_stream", *folders]:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for file in ("__init__.py", "errors.py", "shipped.py"):
        shutil.copy(PACKAGE / file, tmp_path / "site" / "cape_stream")

    answer = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from cape_stream.shipped import shipped; print(shipped({kind!r}))",
        ],
        cwd=tmp_path / "site",
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout.strip() == str(tmp_path / found)
