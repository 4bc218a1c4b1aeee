"""Sources and pingers of a simulated world: events appear over time, and most are told of.

Pings come from outside and need no process: what a dying pinger does to them, losing does too.
"""

from functools import partial

from cape_stream.model.event import Event
from cape_stream.model.ping import Ping
from cape_stream.model.subject import partition_of
from cape_stream.ports.log import TopicPartition
from cape_stream.testing.job_runs import POISON
from cape_stream.testing.stage import Stage

HEADERS = {"content-type": "text/plain"}


class Publisher:
    """Publishes all events of a world and pings the dispatchers.

    Args:
        stage: the world's shared part.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._load = stage.scenario.load
        self.healthy = [f"s{number}" for number in range(self._load.subjects)]
        self.poisoned = [f"{POISON}{number}" for number in range(self._load.poisoned)]
        self.left = 0
        """Planned events that are not published yet."""
        self._newest: dict[tuple[str, str], int] = {}

    def start(self) -> None:
        """Plan every event."""
        stage, load = self._stage, self._load
        for domain in stage.plans:
            for subject in [*self.healthy, *self.poisoned]:
                at_ms = stage.timeline.now_ms
                for _ in range(load.events):
                    at_ms += stage.dice.random.randint(0, 2 * load.gap_ms)
                    stage.timeline.at(at_ms, partial(self._publish_planned, domain, subject))
                    self.left += 1

    def publish(self, domain: str, subject: str) -> int:
        """One more event of ``subject``, now; its sequence id."""
        stage, load, random = self._stage, self._load, self._stage.dice.random
        newest = self._newest.get((domain, subject))
        sequence = load.first if newest is None else newest + random.choice(load.steps)
        size = random.randint(0, load.payload_bytes_max)
        payload = f"{domain}/{subject}/{sequence}:".encode() + b"." * size
        late_ms = random.randint(0, load.late_ms_max)
        stage.sources[domain].publish(subject, Event(sequence, payload, HEADERS), late_ms)
        stage.history.published[domain, subject, sequence] = stage.history.now()
        self._newest[domain, subject] = sequence
        stage.note("source", "published", f"{domain}/{subject} {sequence}")
        if not stage.happens(load.pings_lost):
            vague = stage.dice.happens(load.pings_vague)
            for _ in range(1 + stage.happens(load.pings_repeated)):
                self.ping(domain, subject, None if vague else sequence)
        return sequence

    def ping(self, domain: str, subject: str, latest: int | None) -> None:
        """Tell the dispatchers, after a while."""
        stage = self._stage
        delay_ms = stage.dice.random.randint(0, self._load.ping_delay_ms_max)
        ping = Ping(subject, latest, stage.timeline.now_ms)
        stage.timeline.after(delay_ms, partial(self._append, domain, ping))

    def _publish_planned(self, domain: str, subject: str) -> None:
        self.left -= 1
        self.publish(domain, subject)

    def _append(self, domain: str, ping: Ping) -> None:
        """A ping reaches the log, if there is one."""
        stage = self._stage
        if stage.broker.up:
            key = ping.subject.encode()
            partition = partition_of(key, stage.scenario.partitions)
            topic = stage.names.pings(domain)
            value = stage.codec.encode_ping(ping)
            stage.broker.append(TopicPartition(topic, partition), key, value)
            stage.note("pinger", "pinged", f"{domain}/{ping.subject} {ping.latest}")
