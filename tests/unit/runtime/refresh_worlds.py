"""A small world for refresh: a simulated log and sources, and candidates for the lead."""

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.simulated import (
    CALM,
    STEADY,
    Broker,
    BrokerSettings,
    Dice,
    Faults,
    SimBackground,
    SimClock,
    SimLog,
    SimProcess,
    SimSource,
    Timeline,
)
from cape_stream.model.event import Event
from cape_stream.model.ping import Ping
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.log import TopicSpec
from cape_stream.ports.source import EventSource
from cape_stream.runtime.refresh import LeadState, RefreshBackgrounds, Refresher
from cape_stream.runtime.refresh_marks import Mark
from cape_stream.runtime.refresh_settings import RefreshSettings

NAMES = TopicNames("shop")
PARTITIONS = 4
SESSION_MS = 600
CODEC = AvroCodec()


class Candidate:
    """One process that may lead."""

    def __init__(self, world: "RefreshWorld", name: str, sources: dict[str, EventSource]) -> None:
        self.process = SimProcess(world.timeline, name)
        self.refreshers: list[Refresher] = []
        """One, once the process has begun."""
        self._stopping = False
        log = SimLog(world.broker, self.process)

        def loop() -> None:
            refresher = Refresher(
                log=log,
                codec=CODEC,
                clock=SimClock(world.timeline),
                names=NAMES,
                partitions=PARTITIONS,
                sources=sources,
                backgrounds=RefreshBackgrounds(
                    sources=SimBackground(self.process, world.dice),
                    marks=SimBackground(self.process, world.dice),
                ),
                member_name=name,
                settings=world.settings,
            )
            self.refreshers.append(refresher)
            while not self._stopping:
                refresher.turn()
            refresher.close()

        self.process.start(loop)

    @property
    def refresher(self) -> Refresher:
        """The one of this process."""
        return self.refreshers[0]

    @property
    def leads(self) -> bool:
        """True while this process sweeps."""
        return self.process.alive and self.refresher.state is LeadState.LEADING

    def stop(self) -> None:
        """Ask it to stop in good order."""
        self._stopping = True


class RefreshWorld:
    """Domains ``a`` and ``b``, a source each, on one broker.

    Args:
        settings: pace of all candidates.
        faults: of the log and the background; the sources have their own dice.
        seed: of everything.
    """

    def __init__(
        self,
        settings: RefreshSettings | None = None,
        faults: Faults = STEADY,
        seed: int = 1,
    ) -> None:
        self.settings = settings or RefreshSettings()
        self.timeline = Timeline(start_ms=1_000_000)
        self.dice = Dice(seed, faults)
        self.broker = Broker(
            self.timeline,
            self.dice,
            BrokerSettings(session_timeout_ms=SESSION_MS, transaction_timeout_ms=1_000),
        )
        specs = [
            TopicSpec(name=NAMES.pings(name), partitions=PARTITIONS, config={}) for name in "ab"
        ]
        specs.append(TopicSpec(name=NAMES.refresh, partitions=1, config={}))
        self.broker.create_topics(specs)
        self.a = SimSource(self.timeline, Dice(seed, CALM))
        self.b = SimSource(self.timeline, Dice(seed, CALM))

    def candidate(self, name: str, **sources: EventSource) -> Candidate:
        """Start a process; it sweeps the world's sources unless others are given."""
        return Candidate(self, name, sources or {"a": self.a, "b": self.b})

    def run(self, duration_ms: int) -> None:
        """Let time pass."""
        self.timeline.run_until(self.timeline.now_ms + duration_ms)

    def pings(self, domain: str) -> list[Ping]:
        """Every ping in the log, by partition and offset."""
        topic = NAMES.pings(domain)
        return [
            CODEC.decode_ping(record.key, record.value)
            for number in range(PARTITIONS)
            for record in self.broker.records(topic, number)
        ]

    def pinged(self, domain: str) -> dict[str, int]:
        """Subject → the newest sequence id it was pinged with."""
        newest: dict[str, int] = {}
        for ping in self.pings(domain):
            assert ping.latest is not None, "refresh knows the newest sequence id"
            newest[ping.subject] = max(newest.get(ping.subject, -1), ping.latest)
        return newest

    def marks(self) -> dict[str, Mark]:
        """What is stored in the log."""
        return {
            record.key.decode(): Mark.decode(record.value)
            for record in self.broker.records(NAMES.refresh, 0)
            if record.key is not None and record.value is not None
        }


def publish(source: SimSource, subject: str, sequence: int) -> None:
    """Add one event that nobody pings for."""
    source.publish(subject, Event(sequence, b"x"))
