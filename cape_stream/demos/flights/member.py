"""One process of the demo on Kafka: a role of the App, and its figures in a file.

Usage: python -m cape_stream.demos.flights.member ROLE FOLDER KAFKA (`show` starts it)
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from cape_stream.demos.flights.stage import FIGURES_SUFFIX, settings_in
from cape_stream.roles.collecting import collect_seldom
from cape_stream.roles.crew import Crew, raise_failure, signals
from cape_stream.roles.run import opened
from cape_stream.sdk.loading import load_app

TELL_EVERY_S = 0.5


def main() -> None:
    """Run the role until SIGTERM."""
    role, folder, kafka = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    app = load_app("cape_stream.demos.flights.topologies:app")
    settings = settings_in(folder, kafka)
    with opened(app, settings, backend_name="kafka", roles=[role]) as crew, signals(crew):
        collect_seldom()
        crew.start()
        while not crew.wait(TELL_EVERY_S):
            _tell(crew, folder)
    raise_failure(crew.failure)


def _tell(crew: Crew, folder: Path) -> None:
    figures: Mapping[str, int] = crew.figures()
    partial = folder / "figures.partial"
    partial.write_text(json.dumps(figures))
    partial.replace(folder.parent / f"{folder.name}{FIGURES_SUFFIX}")


if __name__ == "__main__":
    main()
