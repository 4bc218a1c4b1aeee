"""The driver with a seed: what goes wrong, that all heals, and that it can be had again."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from cape_stream.sdk import App
from cape_stream.testing import CapeDriver, Chaos, explore
from tests.unit.testing.apps import Shop

ROUGH = Chaos(
    crash=0.1,
    rebalance=0.1,
    lost_ping=0.2,
    lost_status=0.1,
    late_status=0.1,
    duplicate_status=0.1,
    source_failure=0.1,
    faults_max=40,
)
TRACE = """
from cape_stream.testing import CapeDriver
from tests.unit.testing.apps import Shop
shop = Shop()
with CapeDriver(shop.app, seed={seed}) as driver:
    for number in range(40):
        driver.publish(f"s{{number % 7}}")
        driver.run(0.5)
    driver.finish()
    print(driver.now, driver.deliveries)
"""


@pytest.mark.parametrize("seed", range(25))
def test_everything_is_done_in_order_whatever_goes_wrong(seed: int) -> None:
    shop = Shop(fails_every=4)
    with CapeDriver(shop.app, seed=seed, chaos=ROUGH) as driver:
        for number in range(30):
            driver.publish(f"s{number % 5}")
            driver.run(0.2)

        driver.finish()

        first: dict[str, list[int]] = {}
        for delivery in driver.deliveries:
            if delivery.topology == "mail":
                seen = first.setdefault(delivery.subject, [])
                seen += [each for each in delivery.done if each not in seen]
        assert first == {f"s{number}": [1, 2, 3, 4, 5, 6] for number in range(5)}


def test_every_kind_of_fault_happens() -> None:
    attempts: Counter[int] = Counter()
    repeated = 0
    for seed in range(10):
        shop = Shop()
        with CapeDriver(shop.app, seed=seed, chaos=ROUGH) as driver:
            for number in range(30):
                driver.publish(f"s{number % 5}")
            driver.finish()
            attempts.update(each.attempt for each in driver.deliveries)
            repeated += len(shop.mailed) - len(set(shop.mailed))

    assert attempts[1] > attempts[2] > 0
    assert repeated > 0, "lost and late reports execute handlers again"


@pytest.mark.parametrize("odds", ["crash", "rebalance", "lost_ping", "lost_status", "late_status"])
def test_world_with_one_kind_of_fault_heals_too(odds: str) -> None:
    none = dict.fromkeys(
        (
            *("crash", "rebalance", "lost_ping", "lost_status", "late_status"),
            *("duplicate_status", "source_failure"),
        ),
        0.0,
    )
    shop = Shop()
    chaos = Chaos(**{**none, odds: 1.0}, faults_max=8)
    with CapeDriver(shop.app, seed=1, chaos=chaos) as driver:
        for number in range(12):
            driver.publish(f"s{number % 5}")

        driver.finish()

    assert len(set(shop.mailed)) == 12


def test_seed_makes_the_same_world_in_every_process() -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-c", TRACE.format(seed=11)],
            env={"PYTHONHASHSEED": str(number), "PYTHONPATH": str(Path(__file__).parents[3])},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for number in (1, 2)
    ]

    assert traces[0] == traces[1]
    assert "Delivery" in traces[0]


def test_failure_says_in_one_line_how_to_have_it_again() -> None:
    shop = Shop(refused={1: "transient"})

    with CapeDriver(shop.app, seed=17) as driver:
        driver.publish("a")
        with pytest.raises(AssertionError, match=r"again: CapeDriver\(app, seed=17\)$"):
            driver.finish(within=60)

    with pytest.raises(ZeroDivisionError) as caught, CapeDriver(Shop().app, seed=17):
        raise ZeroDivisionError
    assert caught.value.__notes__ == ["the same world again: CapeDriver(app, seed=17)"]


def test_explore_finds_the_seed_that_fails_and_the_variable_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CAPE_SEED", raising=False)
    shops: list[Shop] = []
    tried: list[int | None] = []

    def make_app() -> App:
        shops.append(Shop())
        return shops[-1].app

    def scenario(driver: CapeDriver) -> None:
        tried.append(driver.seed)
        for _ in range(5):
            driver.publish("a")
            driver.run()
        driver.finish()
        assert len(shops[-1].mailed) == 5, "mailed twice"

    with pytest.raises(AssertionError, match="mailed twice") as caught:
        explore(make_app, scenario, seeds=range(100))
    failing = tried[-1]
    assert f"this seed alone: CAPE_SEED={failing}" in caught.value.__notes__

    monkeypatch.setenv("CAPE_SEED", str(failing))
    with pytest.raises(AssertionError, match="mailed twice"):
        explore(make_app, scenario)
    assert tried[-2:] == [failing, failing]
