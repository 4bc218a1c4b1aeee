"""What an operator does to the queues: list, depth, redrive, peek, purge."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.errors import Retry
from cape_stream.ports.queue import BATCH_MAX, QueueMessage, QueueServer
from cape_stream.queues.fleet import FLEET
from cape_stream.roles.settings import Settings, SettingsError

QueueAction = Literal["list", "depth", "redrive", "peek", "purge"]
PEEK_VISIBILITY_S = 30
BODY_CHARS = 2_000
"""Of a body that is shown."""


@dataclass(slots=True, frozen=True)
class QueueOutcome:
    """What came of it."""

    rows: Sequence[Mapping[str, Any]]
    complete: bool = True
    """False if a queue of the fleet is missing."""

    def as_json(self) -> str:
        """One object."""
        return json.dumps({"queues": list(self.rows), "complete": self.complete})

    def in_words(self) -> str:
        """A line a row, the columns aligned."""
        if not self.rows:
            return "nothing"
        names = list(self.rows[0])
        table = [names, *([_shown(row.get(name)) for name in names] for row in self.rows)]
        widths = [max(len(line[column]) for line in table) for column in range(len(names))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in table
        )


def carry_out(
    action: QueueAction, names: Sequence[str], settings: Settings, *, sure: bool, count: int
) -> QueueOutcome:
    """Do it.

    Args:
        action: what.
        names: short names of queues, such as ``ingest`` or ``ingest-dead``.
        settings: where the queues are.
        sure: the operator has said that a purge is meant.
        count: messages to peek at, at most.

    Raises:
        SettingsError: what was asked cannot be.
        Fatal: a queue is missing.
    """
    if action in ("redrive", "peek", "purge") and len(names) != 1:
        raise SettingsError(f"{action} takes one queue, such as ingest-dead")
    if action == "purge" and not sure:
        raise SettingsError(
            f"purge deletes every message of {names[0]} for good: say --yes if that is meant;"
            f" `cape queues peek {names[0]}` shows some first"
        )
    return asyncio.run(_carry_out(action, names, settings, count))


async def _carry_out(
    action: QueueAction, names: Sequence[str], settings: Settings, count: int
) -> QueueOutcome:
    server = SqsServer(settings.sqs)
    try:
        tools = _Tools(server, settings.sqs.prefix)
        if action == "list":
            return await tools.listed()
        if action == "depth":
            return await tools.depths(names)
        if action == "redrive":
            return await tools.redriven(names[0])
        if action == "peek":
            return await tools.peeked(names[0], count)
        return await tools.purged(names[0])
    except Retry as error:
        raise SettingsError(f"SQS does not do that now: {error.reason}") from error
    finally:
        await server.close()


@dataclass(slots=True)
class _Tools:
    server: QueueServer
    prefix: str

    async def listed(self) -> QueueOutcome:
        """Every queue of the fleet, and whatever else has the prefix."""
        present = {name.removeprefix(self.prefix) for name in await self.server.names(self.prefix)}
        known = {
            spec.name: {"queue": spec.name, "pool": str(spec.pool), "why": spec.why}
            for spec in FLEET
        }
        for spec in FLEET:
            if spec.has_dead_letters:
                why = f"dead letters of {spec.name}"
                name = spec.dead_letter_name
                known[name] = {"queue": name, "pool": "-", "why": why}
        rows = [{**row, "present": name in present} for name, row in known.items()]
        strangers = sorted(present - known.keys())
        rows += [
            {"queue": name, "pool": "-", "why": "not of the fleet", "present": True}
            for name in strangers
        ]
        return QueueOutcome(rows, all(row["present"] for row in rows))

    async def depths(self, names: Sequence[str]) -> QueueOutcome:
        """How much lies in each."""
        wanted = names or [
            name.removeprefix(self.prefix) for name in await self.server.names(self.prefix)
        ]
        rows = []
        for name in wanted:
            queue = await self.server.open(self.prefix + name)
            depth = await queue.depth()
            row = {"queue": name, "visible": depth.visible}
            rows.append(row | {"in_flight": depth.in_flight, "delayed": depth.delayed})
        return QueueOutcome(rows)

    async def redriven(self, name: str) -> QueueOutcome:
        """Let the dead letters go back to where they came from."""
        task = await self.server.redrive(self.prefix + name)
        return QueueOutcome([{"queue": name, "task": task}])

    async def peeked(self, name: str, count: int) -> QueueOutcome:
        """Some messages, which go back at once. SQS counts it as a receive of each."""
        queue = await self.server.open(self.prefix + name)
        found: list[QueueMessage] = []
        try:
            while len(found) < count:
                wanted = min(BATCH_MAX, count - len(found))
                more = await queue.receive(wanted, 1, PEEK_VISIBILITY_S)
                found += more
                if not more:
                    break
        finally:
            for start in range(0, len(found), BATCH_MAX):
                batch = found[start : start + BATCH_MAX]
                await queue.change_visibility([(each.receipt, 0) for each in batch])
        return QueueOutcome([_row(each) for each in found])

    async def purged(self, name: str) -> QueueOutcome:
        """Delete everything."""
        queue = await self.server.open(self.prefix + name)
        before = await queue.depth()
        await queue.purge()
        purged = before.visible + before.in_flight + before.delayed
        return QueueOutcome([{"queue": name, "purged": purged}])


def _row(message: QueueMessage) -> Mapping[str, Any]:
    return {
        "message_id": message.message_id,
        "receives": message.receive_count,
        "sent_ms": message.sent_ms,
        "group": message.group,
        "attributes": dict(message.attributes),
        "body": message.body[:BODY_CHARS],
    }


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None or value == {} else str(value)
