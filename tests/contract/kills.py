"""A program that is killed while it works, and what it had reported until then."""

import random
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

PATIENCE_S = 30.0


def lines_until_killed(program: str, report: Path, chance: random.Random) -> list[str]:
    """Run Python that writes lines to its standard output, kill it -9 at a random moment.

    Returns:
        The whole lines it wrote: each was written only after what it reports was done.
    """
    with report.open("wb") as out:
        child = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=out)
        try:
            deadline_s = monotonic() + PATIENCE_S
            while report.stat().st_size == 0:
                assert child.poll() is None, "the program ended by itself"
                assert monotonic() < deadline_s, "the program never began to work"
                sleep(0.005)
            sleep(chance.uniform(0.0, 0.4))
            assert child.poll() is None, "the program ended by itself"
        finally:
            child.kill()
            child.wait()
    return report.read_text().split("\n")[:-1]
