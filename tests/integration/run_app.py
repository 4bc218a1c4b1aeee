"""The App that processes of the integration tests run, and how they are started and judged.

Its handlers append one line an event to one file per topology, in one `write` each, which survives
any kill. The source is a SQLite table that was filled before; nobody ever pings.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from cape_stream import App, Batch
from cape_stream.adapters.sources.sql import SqlEventSource

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("RUN_APP_FOLDER", "."))
EVENT_WORK_S = float(os.environ.get("RUN_APP_EVENT_WORK_S", "0"))
TIMEOUT = timedelta(seconds=float(os.environ.get("RUN_APP_TIMEOUT_S", "30")))

app = App(
    os.environ.get("RUN_APP_NAME", "runs"),
    partitions=int(os.environ.get("RUN_APP_PARTITIONS", "4")),
)
orders = app.domain(
    "orders",
    source=SqlEventSource(
        f"sqlite:///{FOLDER / 'events.sqlite'}",
        table="events",
        subject="subject",
        sequence="sequence",
        payload="payload",
        changed="id",
    ),
)
ledger = orders.topology("ledger", ordering="ordered")
audit = orders.topology("audit", after=[ledger])


@ledger.handler(max_batch=5, timeout=TIMEOUT)
def book(batch: Batch) -> None:
    """Keep what arrives, in the order in which it does."""
    _append("ledger", batch)


@audit.handler(max_batch=5, timeout=TIMEOUT)
def check(batch: Batch) -> None:
    """The same, after the ledger."""
    _append("audit", batch)


def _append(topology: str, batch: Batch) -> None:
    file = os.open(FOLDER / f"{topology}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for event in batch:
            if EVENT_WORK_S:
                time.sleep(EVENT_WORK_S)
            line = f"{batch.subject} {event.sequence} {batch.attempt} {batch.job_id}\n"
            os.write(file, line.encode())
    finally:
        os.close(file)


def fill(folder: Path, subjects: int, events_each: int, first: int = 0) -> None:
    """Add events to the source, ``events_each`` of every subject, from sequence id ``first``."""
    with sqlite3.connect(folder / "events.sqlite") as database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY AUTOINCREMENT,"
            " subject TEXT, sequence INTEGER, payload BLOB, UNIQUE (subject, sequence))"
        )
        database.executemany(
            "INSERT INTO events (subject, sequence, payload) VALUES (?, ?, 'paid')",
            [
                (f"order-{subject}", sequence)
                for sequence in range(first, first + events_each)
                for subject in range(subjects)
            ],
        )


def start(
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    working_in: Path = PROJECT,
) -> subprocess.Popen[str]:
    """Start ``cape`` on this App, or one in another folder, with its state in ``folder``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cape_stream", *arguments],
        cwd=working_in,
        env={**os.environ, "RUN_APP_FOLDER": str(folder), **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _started.append(process)
    return process


_started: list[subprocess.Popen[str]] = []


def clean_up() -> None:
    """Kill what a failed test left behind, and close what it read."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.kill()
        process.communicate()


def end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str]:
    """Send a signal and wait: the exit code and what it wrote to stderr."""
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


def delivered(folder: Path, topology: str) -> dict[str, list[int]]:
    """Subject → sequence ids in the order in which they were delivered, repeats included."""
    found: dict[str, list[int]] = defaultdict(list)
    for execution in executions(folder, topology):
        found[execution.subject].append(execution.sequence)
    return found


class Execution(NamedTuple):
    """One event in one handler."""

    subject: str
    sequence: int
    attempt: int
    job_id: str


def executions(folder: Path, topology: str) -> list[Execution]:
    """Everything a topology's handler did, in order."""
    path = folder / f"{topology}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        Execution(subject, int(sequence), int(attempt), job_id)
        for subject, sequence, attempt, job_id in (line.split() for line in lines)
    ]


def wait_for(
    folder: Path, topologies: Sequence[str], events: int, process: subprocess.Popen[str]
) -> None:
    """Wait until every topology has had that many different events."""
    while process.poll() is None:
        counts = [
            sum(len(set(each)) for each in delivered(folder, topology).values())
            for topology in topologies
        ]
        if min(counts) >= events:
            return
        time.sleep(0.1)
    raise AssertionError(f"cape ended with {process.returncode}: {process.communicate()[1]}")


def jumps(sequences: Sequence[int]) -> list[tuple[int, int]]:
    """Places where an event came before its predecessor ever had: (newest so far, event)."""
    found = []
    newest = -1
    for sequence in sequences:
        if sequence > newest + 1:
            found.append((newest, sequence))
        newest = max(newest, sequence)
    return found
