"""The program on the first page, as somebody who copies it runs it."""

import subprocess
import sys
from pathlib import Path

from tests.integration import run_app
from tests.tidy.test_docs import snippets_of
from tests.tidy.tree import PROJECT


def test_program_of_the_readme_delivers_the_event_of_the_readme(tmp_path: Path) -> None:
    page = (PROJECT / "README.md").read_text()
    program, table = [s.text for s in snippets_of("README.md", page) if s.language == "python"]
    (tmp_path / "shop.py").write_text(program)
    subprocess.run([sys.executable, "-c", table], cwd=tmp_path, check=True)

    process = run_app.start(
        tmp_path, "run", "shop:app", environment={"PYTHONUNBUFFERED": "1"}, working_in=tmp_path
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    code, told = run_app.end(process)

    assert line == "account-7 0 {'paid': 12}\n"
    assert code == 0, told
    assert (tmp_path / "cape-data").is_dir()
