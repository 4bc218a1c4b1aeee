"""What docs/outbox.md shows, done as it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.integration import run_app
from tests.waiting import eventually

PAGE = (run_app.PROJECT / "docs" / "outbox.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.mark.postgres
@pytest.mark.timeout(120)
def test_page_delivers_what_it_inserts(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(block("python"))
    make = re.search(r"^\$ python -c '(.*)'$", block("console"), re.MULTILINE)
    assert make is not None
    environment = {"DATABASE_URL": postgres_url, "PYTHONPATH": str(tmp_path)}
    with psycopg.connect(postgres_url, autocommit=True) as writer:
        writer.execute("DROP TABLE IF EXISTS outbox")
        writer.execute("CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY, state text)")
        subprocess.run(
            [sys.executable, "-c", make.group(1)], env=os.environ | environment, check=True
        )
        process = run_app.start(
            *(tmp_path, "run", "shop:app", "--data", str(tmp_path / "data")),
            environment=environment,
            working_in=tmp_path,
        )
        for statement in block("sql").strip().split("\n"):
            writer.execute(statement.encode())
    assert process.stdout is not None
    told = re.search(r"prints `(.*)`", PAGE)
    assert told is not None
    lines: list[str] = []

    def printed() -> bool:
        assert process.stdout is not None
        lines.append(process.stdout.readline().strip())
        return lines[-1] == told.group(1)

    eventually(printed)
    code, errors = run_app.end(process)
    assert code == 0, errors


def test_page_keeps_its_promise_of_fifteen_lines() -> None:
    assert len([line for line in block("python").splitlines() if line.strip()]) <= 15
