"""Whole worlds in harm and in peace; a failing seed says how to live through it again."""

import pytest

from tests.simulation.seeds import complaint, corpus_seeds, fresh_chunks, live_through_all


@pytest.mark.parametrize("seeds", fresh_chunks(), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_world_keeps_every_promise(seeds: range) -> None:
    """Harm first, then peace: nothing lost, everything in order, every cursor at its head."""
    assert (broken := complaint(live_through_all(seeds))) == "", f"\n{broken}"


@pytest.mark.parametrize("seed", corpus_seeds())
def test_world_that_once_failed_keeps_every_promise(seed: int) -> None:
    """A fault that was found stays found."""
    assert (broken := complaint(live_through_all([seed]))) == "", f"\n{broken}"


def test_world_is_the_same_when_its_seed_is() -> None:
    """Everything that happens follows from the seed, so a failure can be looked at twice."""
    first, second = live_through_all([3, 3])

    assert first.trace == second.trace
    assert first.figures == second.figures
