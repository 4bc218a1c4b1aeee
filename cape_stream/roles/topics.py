"""The topics of an App as the files in ``topics/`` describe them: one file a kind of topic."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

from cape_stream.errors import Fatal
from cape_stream.ports.log import TopicSpec
from cape_stream.sdk.app import App
from cape_stream.shipped import shipped

SAFE_REPLICATION = 3
"""From so many copies on, a write waits for two, so that losing a broker loses nothing."""


@dataclass(slots=True, frozen=True, kw_only=True)
class TopicFile:
    """One kind of topic."""

    names: Sequence[str]
    """Templates of its topics' names, see `cape_stream.model.topic_names`."""
    per: Literal["app", "domain", "queue"]
    """What there is one of each for; also the template's other field beside ``app``."""
    key: str
    """What a record's key is, for people."""
    value: str
    """The record in ``schemas/registry.json``, or a sentence where it is none of them."""
    partitions: int | Literal["app"]
    """How many; ``app`` is the App's number."""
    owner: str
    """Who answers for it, for people."""
    why: str
    """Why it is as it is, for people."""
    config: Mapping[str, str | int]
    """Kafka topic settings."""

    def specs(self, app: App, replication: int | None) -> Iterator[TopicSpec]:
        """Yield the App's topics of this kind."""
        each_for = {"app": [""], "domain": [*app.domains], "queue": [*app.queues]}[self.per]
        config = {name: str(value) for name, value in self.config.items()}
        if replication is not None and replication >= SAFE_REPLICATION:
            config["min.insync.replicas"] = "2"
        for one in each_for:
            for template in self.names:
                yield TopicSpec(
                    name=template.format_map({"app": app.name, self.per: one or app.name}),
                    partitions=app.partitions if self.partitions == "app" else self.partitions,
                    config=config,
                    replication=replication,
                )


def topic_files(folder: Traversable | Path | None = None) -> dict[str, TopicFile]:
    """Return the kinds of topics by name, such as ``pings``.

    Args:
        folder: where the files are; None means those that ship with the package.

    Raises:
        Fatal: a file is not what it should be; the message names it.
    """
    files = sorted((folder or shipped("topics")).iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(".toml"): _topic_file(file)
        for file in files
        if file.name.endswith(".toml")
    }


def _topic_file(file: Traversable) -> TopicFile:
    try:
        return TopicFile(**tomllib.loads(file.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise Fatal(f"{file} does not describe a topic: {error}") from error


def topic_specs(
    app: App, *, replication: int | None = None, folder: Traversable | Path | None = None
) -> list[TopicSpec]:
    """Return every topic an App needs.

    Args:
        app: whose domains, queues and number of partitions count.
        replication: copies of each partition, >= 1; None leaves it to the cluster.
        folder: where the files are; None means those that ship with the package.

    Raises:
        Fatal: a file is not what it should be; the message names it.
    """
    return [spec for kind in topic_files(folder).values() for spec in kind.specs(app, replication)]
