"""The users' test driver: simulated events a second, and the time of the page's three examples.

calm      1,000 subjects, 10 events each, one topology; published, then one `run`
chained   the same with three topologies, one of them after another
seeded    30 events of 5 subjects under each of 50 seeds with the usual odds, to the last event
example   a fresh interpreter runs one example of docs/testing.md, imports included

Usage: make bench-driver [ARGS="--subjects 1000 --seeds 50"]
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.sdk import App, Batch
from cape_stream.testing import CapeDriver
from tests.bench.figures import yardstick_us

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
EVENTS_A_SUBJECT = 10


def main() -> None:
    """Run every phase and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subjects", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=50)
    options = parser.parse_args()
    figures = {
        "calm_events_per_s": _calm(make_app(()), options.subjects),
        "chained_events_per_s": _calm(make_app(("second", "third")), options.subjects),
        "seeds_per_s": _seeded(options.seeds),
        "examples_s": [round(_timed(each), 2) for each in examples()],
        "yardstick_us": yardstick_us(),
    }
    print(json.dumps(figures))


def make_app(more: Sequence[str]) -> App:
    """An App whose handlers do nothing; each further topology comes after the first one."""
    app = App("bench")
    domain = app.domain("events", source=MemoryEventSource())
    first = domain.topology("first", ordering="ordered")
    first.handler(name="work")(_work)
    for name in more:
        domain.topology(name, after=[first]).handler(name="work")(_work)
    return app


def _work(batch: Batch) -> None:
    pass


def _calm(app: App, subjects: int) -> int:
    """Events a second, from the first publish to the last cursor."""
    with CapeDriver(app) as driver:
        begun = time.perf_counter()
        for number in range(subjects * EVENTS_A_SUBJECT):
            driver.publish(f"s{number % subjects}")
        driver.run()
        took_s = time.perf_counter() - begun
        driver.finish(within=1)
    return round(subjects * EVENTS_A_SUBJECT / took_s)


def _seeded(seeds: int) -> float:
    """Worlds a second."""
    app = make_app(("second",))
    begun = time.perf_counter()
    for seed in range(seeds):
        with CapeDriver(app, seed=seed) as driver:
            for number in range(30):
                driver.publish(f"s{number % 5}")
                driver.run()
            driver.finish()
    return round(seeds / (time.perf_counter() - begun), 1)


def examples() -> list[str]:
    """Programs of the page."""
    return re.findall(r"^```python run\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def _timed(program: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
