"""The driver by hand: events in, jobs out, answers, time, and what there is to see."""

import asyncio
from datetime import timedelta

import pytest

from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.sdk import App, Batch, Context
from cape_stream.testing import CapeDriver, Chaos, DriverMisuseError
from tests.unit.testing.apps import Shop


def test_run_lets_the_handlers_of_the_app_do_all_that_is_published() -> None:
    shop = Shop()
    with CapeDriver(shop.app) as driver:
        driver.publish("a", {"x": 1})
        driver.publish("a", "text")
        driver.publish("b", b"\x00\x01", sequence=70)

        driver.run()

        assert driver.cursor("a", shop.mail) == driver.cursor("a", "audit") == 2
        assert driver.cursor("b", shop.stats) == 70
    assert sorted(shop.mailed) == [("a", 1), ("a", 2), ("b", 70)]
    assert shop.counted == {
        ("a", 1): {"length": 8},
        ("a", 2): {"length": 4},
        ("b", 70): {"length": 2},
    }


def test_jobs_can_be_read_filtered_and_answered_by_hand() -> None:
    shop = Shop()
    with CapeDriver(shop.app) as driver:
        driver.publish("a", b"one")
        driver.publish("a", b"two")

        parse = driver.job(shop.stats)
        assert [event.payload for event in parse.events] == [b"one", b"two"]
        parse.answer(done=[1], failed={2: "throttled"}, outputs={1: "seen"}, after=60)
        count = driver.job("stats", handler="count")

        assert count.sequences == (1,)
        count.run()
        assert shop.counted == {("a", 1): "seen"}
        assert [(each.sequence, each.failure_class) for each in driver.parked("stats")] == [
            (2, "throttled")
        ]
        assert driver.cursor("a", shop.stats) == 1


def test_job_times_out_and_a_late_report_of_an_ordered_topology_is_no_longer_taken() -> None:
    shop = Shop()
    with CapeDriver(shop.app) as driver:
        driver.publish("a")
        first = driver.job(shop.mail)

        driver.advance(29)
        assert first.is_out
        driver.advance(3)
        second = driver.job(shop.mail)
        first.done()

        assert (second.attempt, driver.cursor("a", shop.mail)) == (2, None)
        second.done()
        assert driver.cursor("a", shop.mail) == 1


def test_heartbeat_extends_a_job_and_a_hand_back_issues_it_anew_at_no_charge() -> None:
    shop = Shop()
    with CapeDriver(shop.app) as driver:
        driver.publish("a")
        job = driver.job(shop.mail)
        driver.advance(20)
        job.heartbeat()
        driver.advance(20)
        assert job.is_out

        job.hand_back()

        again = driver.job(shop.mail)
        assert again.job_id != job.job_id
        assert driver.parked() == []


def test_failed_events_are_tried_again_when_they_are_due_and_no_sooner() -> None:
    shop = Shop(refused={1: "transient"})
    with CapeDriver(shop.app) as driver:
        driver.publish("a")
        driver.run()
        (parked,) = driver.parked()
        assert parked.due_in is not None
        assert (parked.error, parked.failures) == ("not now", 1)
        shop.refused.clear()

        driver.run(parked.due_in - timedelta(milliseconds=100))
        assert driver.cursor("a", shop.mail) is None
        driver.run(0.2)

        assert driver.cursor("a", shop.mail) == 1


def test_quarantined_event_is_what_finish_complains_of() -> None:
    shop = Shop(refused={1: "invalid"})
    with CapeDriver(shop.app) as driver:
        driver.publish("a")

        with pytest.raises(AssertionError, match=r"mail of 'a' is at -1 of 1: .*in quarantine"):
            driver.finish(within=timedelta(minutes=10))

        (parked,) = driver.parked()
        assert (parked.due_in, parked.failures) == (None, 2)
        assert "in quarantine" in driver.explain("a")


def test_event_that_goes_into_quarantine_is_seen_there_before_it_is_stored() -> None:
    app = App("shop")
    orders = app.domain("orders", source=MemoryEventSource())
    topology = orders.topology("mail", quarantine_after={"bug": 1})

    @topology.handler
    def fail(batch: Batch) -> None:
        raise KeyError(batch.subject)

    with CapeDriver(app) as driver:
        driver.publish("a")
        driver.run()

        assert [(each.due_in, each.failure_class) for each in driver.parked()] == [(None, "bug")]
        driver.advance(1)
        assert len(driver.parked(topology)) == 1


@pytest.mark.parametrize("disk_lost", [False, True])
def test_crash_reexecutes_nothing(disk_lost: bool) -> None:
    shop = Shop()
    with CapeDriver(shop.app) as driver:
        for subject in "abcd":
            driver.publish(subject)
        before = driver.jobs(shop.mail)

        driver.crash(disk_lost=disk_lost)

        assert [job.job_id for job in driver.jobs(shop.mail)] == [job.job_id for job in before]
        for job in before:
            job.done()
        driver.run()
        assert [driver.cursor(subject, shop.audit) for subject in "abcd"] == [1, 1, 1, 1]
        assert shop.mailed == []


def test_rebalance_hands_subjects_over_and_back_with_their_jobs() -> None:
    shop = Shop()
    with CapeDriver(shop.app) as driver:
        for subject in "abcd":
            driver.publish(subject)
        before = {job.job_id for job in driver.jobs()}

        driver.rebalance()
        assert {job.job_id for job in driver.jobs()} == before
        driver.rebalance()

        driver.finish(within=10)
        assert sorted(shop.mailed) == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]


def test_event_nobody_pinged_for_is_found_by_the_refresh_of_the_next_minute() -> None:
    shop = Shop()
    with CapeDriver(shop.app) as driver:
        driver.publish("a", ping=False)
        driver.run(30)
        assert driver.cursor("a", shop.mail) is None

        driver.run(40)

        assert driver.cursor("a", shop.mail) == 1


def test_time_is_where_it_was_told_to_go() -> None:
    with CapeDriver(Shop().app) as driver:
        driver.publish("a")
        begun = driver.now

        driver.advance(timedelta(hours=3))

        assert begun + timedelta(hours=3) <= driver.now < begun + timedelta(hours=3, seconds=1)


def test_contexts_of_handlers_are_recorded() -> None:
    app = App("shop")
    topology = app.domain("orders", source=MemoryEventSource()).topology("page")

    @topology.handler
    async def tell(batch: Batch, ctx: Context) -> None:
        await ctx.publish_async(batch.subject, len(batch))
        ctx.grant([batch.subject], timedelta(hours=2))

    with CapeDriver(app) as driver:
        driver.publish("a")
        driver.run()

        assert [(each.channel, each.data) for each in driver.published] == [("a", 1)]
        (grant,) = driver.grants
        assert grant.expires_ms <= driver.now.timestamp() * 1_000 + 3_600_000
        (delivery,) = driver.deliveries
        assert (delivery.done, delivery.attempt) == ((1,), 1)


def test_misuse_is_answered_with_what_there_is() -> None:
    shop = Shop()
    with CapeDriver(shop.app) as driver:
        driver.publish("a", sequence=5)

        with pytest.raises(DriverMisuseError, match=r"event 5 of 'a' comes after event 5"):
            driver.publish("a", sequence=5)
        with pytest.raises(DriverMisuseError, match=r"2 jobs are like that; .*\n.*mail.send"):
            driver.job()
        with pytest.raises(DriverMisuseError, match=r"events \[9\] are not of this job"):
            driver.job("mail").answer(done=[9])
        with pytest.raises(DriverMisuseError, match="there are mail, stats, audit"):
            driver.cursor("a", "male")
        with pytest.raises(DriverMisuseError, match="has the domains orders: none is 'order'"):
            driver.publish("b", domain="order")
        with pytest.raises(DriverMisuseError, match="is no duration"):
            driver.advance(-1)
    with pytest.raises(DriverMisuseError, match=r"takes an App, not 'shop:app'"):
        CapeDriver("shop:app")  # type: ignore[arg-type]  # what is asked
    with pytest.raises(ValueError, match=r"lost_ping=5\): odds lie between 0 and 1"):
        Chaos(lost_ping=5)


async def _drive(driver: CapeDriver) -> None:
    driver.run()


def test_async_handler_driven_inside_a_loop_is_refused_with_the_way_out() -> None:
    with CapeDriver(Shop().app) as driver:
        driver.publish("a")

        with pytest.raises(DriverMisuseError, match="from a plain `def` test"):
            asyncio.run(_drive(driver))
