"""The topics of an App: what there shall be, what there is, and bringing the two together."""

import json
from dataclasses import dataclass
from typing import Literal

from cape_stream.roles.backends import Backend, patiently
from cape_stream.roles.topics import topic_specs
from cape_stream.sdk.app import App

Action = Literal["plan", "apply", "check"]


@dataclass(slots=True, frozen=True)
class TopicState:
    """One topic of the App."""

    name: str
    wanted: int
    """Partitions it must have."""
    found: int | None
    """Partitions it has; None: it does not exist."""

    @property
    def verdict(self) -> str:
        """In one word or two: ``ok``, ``missing`` or ``differs``."""
        if self.found is None:
            return "missing"
        return "ok" if self.found == self.wanted else "differs"


@dataclass(slots=True, frozen=True)
class TopicOutcome:
    """How things stand after the action."""

    action: Action
    place: str
    topics: tuple[TopicState, ...]
    created: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """True if every topic is there as it must be."""
        return all(topic.verdict == "ok" for topic in self.topics)

    def as_json(self) -> str:
        """For programs."""
        return json.dumps(
            {
                "action": self.action,
                "complete": self.complete,
                "created": self.created,
                "topics": [
                    {
                        "name": topic.name,
                        "wanted": topic.wanted,
                        "found": topic.found,
                        "verdict": topic.verdict,
                    }
                    for topic in self.topics
                ],
            }
        )

    def in_words(self) -> str:
        """For people: a line for each topic that needs one, and the sum of it."""
        lines = [self._line(topic) for topic in self.topics]
        differing = sum(topic.verdict == "differs" for topic in self.topics)
        missing = sum(topic.verdict == "missing" for topic in self.topics)
        if differing:
            lines.append(
                f"{differing} topics differ. A subject's partition cannot change: declare the App"
                " with the number they have, or move to new topics under a new App name"
            )
        elif missing:
            lines.append(f"{missing} topics to create: `cape topics apply`")
        else:
            lines.append(f"all {len(self.topics)} topics on {self.place} are as they must be")
        return "\n".join(lines)

    def _line(self, topic: TopicState) -> str:
        if topic.name in self.created:
            return f"{topic.name}: created with {topic.wanted} partitions"
        if topic.found is None:
            return f"{topic.name}: missing, {topic.wanted} partitions wanted"
        if topic.found != topic.wanted:
            return f"{topic.name}: has {topic.found} partitions where {topic.wanted} are wanted"
        return f"{topic.name}: ok, {topic.found} partitions"


def carry_out(
    action: Action, app: App, backend: Backend, *, replication: int | None = None
) -> TopicOutcome:
    """Do it, and say how things stand afterwards.

    Args:
        action: ``plan`` and ``check`` only look, ``apply`` creates what is missing.
        app: whose topics.
        backend: where.
        replication: copies of each partition of a new topic; None leaves it to the cluster.

    Raises:
        Fatal: the log is away, or refuses.
    """
    specs = topic_specs(app, replication=replication)
    wanted = {spec.name: spec.partitions for spec in specs}
    before = _counts(backend, list(wanted))
    created: tuple[str, ...] = ()
    if action == "apply":
        place = backend.place
        patiently(lambda: backend.log.create_topics(specs), place, patience_ms=backend.patience_ms)
        created = tuple(name for name in wanted if name not in before)
        before = _counts(backend, list(wanted))
    states = tuple(TopicState(name, number, before.get(name)) for name, number in wanted.items())
    return TopicOutcome(action, backend.place, states, created)


def _counts(backend: Backend, topics: list[str]) -> dict[str, int]:
    return patiently(
        lambda: backend.log.partition_counts(topics), backend.place, patience_ms=backend.patience_ms
    )
