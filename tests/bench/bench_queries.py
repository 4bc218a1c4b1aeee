"""Event queries per ping on diverged cursors: ours, one per topology, and one per distinct cursor.

The story of the Cape article: topologies of one subject stand at different places, and the source
should be asked as seldom as possible. No broker; the tracker itself is what runs.

Usage: make bench-queries
"""

import argparse
import json
from random import Random

from cape_stream.core.tracker import plan_queries

SUBJECTS = 2_000


def main() -> None:
    """Print the table, then one JSON object."""
    options = _options()
    rows = [
        _row(topologies, kind, options.limit)
        for topologies in (1, 5, 20, 50)
        for kind in ("together", "two groups", "spread")
    ]
    print("| topologies | cursors | naive | distinct cursors | ours |\n|---|---|---|---|---|")
    for row in rows:
        figures = (f"{row[name]:.2f}" for name in ("naive", "distinct", "ours"))
        print(f"| {row['topologies']} | {row['cursors']} | {' | '.join(figures)} |")
    print(json.dumps({"queries_per_ping": rows}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--limit", type=int, default=100, help="most events of one query")
    return parser.parse_args()


def _row(topologies: int, kind: str, limit: int) -> dict[str, object]:
    random = Random(f"{topologies} {kind}")
    naive = distinct = ours = 0
    for _ in range(SUBJECTS):
        latest = random.randrange(1_000, 100_000)
        cursors = _cursors(random, topologies, latest, kind)
        lagging = [cursor for cursor in cursors if cursor < latest]
        naive += len(lagging)
        distinct += len(set(lagging))
        ours += len(plan_queries("S", cursors, latest, limit))
    return {
        "topologies": topologies,
        "cursors": kind,
        "naive": naive / SUBJECTS,
        "distinct": distinct / SUBJECTS,
        "ours": ours / SUBJECTS,
    }


def _cursors(random: Random, topologies: int, latest: int, kind: str) -> list[int]:
    """Together: within the newest 20 events. Two groups: a tenth of them has a backlog of 500 more.
    Spread: anywhere within the newest 1,000."""
    if kind == "spread":
        return [latest - random.randint(1, 1_000) for _ in range(topologies)]
    behind = [random.randint(1, 20) for _ in range(topologies)]
    if kind == "two groups":
        behind = [each + (500 if random.random() < 0.1 else 0) for each in behind]
    return [latest - each for each in behind]


if __name__ == "__main__":
    main()
