"""Which seeds to live through, and where their traces go."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from cape_stream.adapters.avro import AvroCodec
from cape_stream.testing import Verdict, draw_scenario, live_through

CORPUS = Path(__file__).with_name("corpus.txt")
TRACES = Path("build") / "simulation"
CHUNK = 5
"""Seeds in one test; keeps it far below a minute on a busy machine."""


def fresh_chunks() -> list[range]:
    """Chunks of the seeds 0 to SIM_SEEDS - 1 (default 200); only SIM_SEED if that is set."""
    one = os.environ.get("SIM_SEED")
    if one:
        return [range(int(one), int(one) + 1)]
    count = int(os.environ.get("SIM_SEEDS") or 200)
    return [range(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]


def corpus_seeds() -> list[int]:
    """Seeds that have failed in the past; the file says at what."""
    if os.environ.get("SIM_SEED"):
        return []
    lines = (line.split("#")[0].strip() for line in CORPUS.read_text().splitlines())
    return [int(line) for line in lines if line]


TOTALS: Counter[str] = Counter()
"""Figures of all worlds of the test that runs."""


def live_through_all(seeds: Iterable[int]) -> list[Verdict]:
    """The verdicts on these worlds."""
    codec = AvroCodec()
    verdicts = [live_through(draw_scenario(seed), codec) for seed in seeds]
    for verdict in verdicts:
        TOTALS.update(verdict.figures)
    return verdicts


def complaint(verdicts: Iterable[Verdict]) -> str:
    """What was broken, where the traces are, and the commands that repeat it; empty if nothing."""
    return "\n".join(
        verdict.report(TRACES / f"seed-{verdict.seed}.txt")
        for verdict in verdicts
        if verdict.violations
    )


def summary(totals: Counter[str]) -> Iterator[str]:
    """What happened in all worlds of a session, for people; nothing if there was none."""
    worlds = totals["worlds"]
    if not worlds:
        return
    yield f"{worlds} worlds, {totals['virtual ms'] // 1_000:,} virtual seconds"
    for line in (
        ("dispatchers started", "workers started", "refreshers started", "stops"),
        ("assignments", "losses noticed", "members put out", "commits"),
        ("events", "deliveries", "executions", "jobs_issued", "jobs_retried"),
        ("adopted", "undelivered", "timeouts", "handed_back", "late_successes"),
    ):
        yield ", ".join(f"{name} {totals[name]:,}" for name in line)
    for name in sorted(totals):
        if name.startswith("executions "):
            yield f"{name}: {totals[name]:,}"
