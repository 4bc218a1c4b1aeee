"""One scenario under many seeds; the first that fails says how to have it again."""

import os
from collections.abc import Callable, Iterable

from cape_stream.sdk.app import App
from cape_stream.testing.driver import CapeDriver
from cape_stream.testing.driver_chaos import Chaos

SEED_VARIABLE = "CAPE_SEED"
"""If set, `explore` runs this seed only."""


def explore(
    make_app: Callable[[], App],
    scenario: Callable[[CapeDriver], None],
    *,
    seeds: Iterable[int] = range(100),
    chaos: Chaos | None = None,
) -> None:
    """Run a scenario under each seed, with an App of its own; see the page on testing.

    Args:
        make_app: makes the App anew, with whatever its handlers write to, so that one seed leaves
            nothing to the next.
        scenario: drives it and asserts what must hold whatever goes wrong.
        seeds: which; the variable ``CAPE_SEED`` takes their place if it is set.
        chaos: the odds, if not the usual ones.

    Raises:
        Whatever the scenario raised first, with a note that says how to repeat that seed alone.
    """
    only = os.environ.get(SEED_VARIABLE)
    for seed in seeds if only is None else [int(only)]:
        with CapeDriver(make_app(), seed=seed, chaos=chaos) as driver:
            try:
                scenario(driver)
            except BaseException as error:
                error.add_note(f"this seed alone: {SEED_VARIABLE}={seed}")
                raise
