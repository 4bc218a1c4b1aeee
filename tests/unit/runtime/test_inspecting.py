"""What an inspector tells of a subject, from the engine's own thread."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from cape_stream.model.request import EventPage, EventQuery, QueryFault
from cape_stream.ports.source import Changes
from cape_stream.runtime.inspecting import Answer, Here, Inspector, Steps, about_jobs, about_subject
from cape_stream.runtime.loop import Engine
from tests.desk import topology
from tests.unit.runtime.engine_worlds import DOMAIN, EngineWorld, InlineBackground


class DownSource:
    """Refuses every call."""

    def fetch_many(self, queries: Sequence[EventQuery]) -> Sequence[EventPage | QueryFault]:
        raise ConnectionError("connection refused")

    def changed_since(self, watermark: str | None, limit: int) -> Changes:
        raise ConnectionError("connection refused")

    def close(self) -> None:
        """Nothing to free."""


def asked(
    world: EngineWorld, engine: Engine, question: Callable[[Here, int], Steps]
) -> list[Answer]:
    """The answer, got as from another thread."""
    inspector = Inspector()
    found: list[list[Answer]] = []
    thread = threading.Thread(target=lambda: found.append(inspector.ask(question, 30)))
    thread.start()
    while thread.is_alive():
        inspector.turn(engine, world.now_ms)
        thread.join(0.001)
    [answer] = found
    return answer


@pytest.mark.parametrize("hangs", [False, True])
def test_explain_names_a_source_that_is_down(hangs: bool) -> None:
    """Not the subject is at fault, nor its topology: everybody waits for the source."""
    world = EngineWorld(topology("T1"), source=DownSource())
    if hangs:
        world.sources = InlineBackground()
        world.sources.holds = True
    engine = world.running()
    for number in range(40):
        world.ping(f"S{number}", 1)
        world.turn(engine, 4, step_ms=2_000)

    [told] = asked(world, engine, about_subject(DOMAIN, 1, "S39"))

    text = "calls to the source hang" if hangs else "the source "
    assert text in told["because"], told
    assert told["source"]["state"] in ({"hanging"} if hangs else {"open", "half_open"})
    assert told["source"]["calls_max"] == 1


def test_explain_says_what_the_source_says_of_one_subject() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.faults = replace(world.faults, source_fault=1.0)
    world.ping("S", 1)
    world.turn(engine)

    [told] = asked(world, engine, about_subject(DOMAIN, 1, "S"))

    assert told["source"]["error"], told
    assert told["because"].endswith(f"(the source says: {told['source']['error']})")
    assert told["source"]["state"] == "closed"


def test_explain_tells_of_a_source_that_answers() -> None:
    world = EngineWorld(topology("T1"))
    engine = world.running()
    world.publish("S", 1)
    world.ping("S", 1)
    world.turn(engine)

    [told] = asked(world, engine, about_subject(DOMAIN, 1, "S"))

    assert told["source"]["state"] == "closed"
    assert "source" not in told["because"]
    [out] = asked(world, engine, about_jobs(DOMAIN))
    assert out == {"partition": 0, "jobs": {world.jobs()[0].job_id}}
