"""Equipment for workers that run as processes: writes what it does into the file of SCRIBE."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from cape_stream.queues.context import HandedBackError, JobContext
from cape_stream.queues.equipment import Equipment
from cape_stream.queues.messages.ingest import Document
from cape_stream.queues.messages.training import TrainingJob


def scribe(*words: object) -> None:
    """One line, in one write, so that a kill cuts none."""
    line = " ".join(map(str, words)) + "\n"
    file = os.open(os.environ["SCRIBE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


class Scribe:
    """An ingestor that does what the URI of the document says."""

    async def ingest(self, document: Document, context: JobContext) -> None:
        name, uri = document.document_id, document.uri
        scribe("begin", name, context.attempt)
        if uri == "die":
            os.kill(os.getpid(), 9)
        if uri == "fail":
            raise ValueError("as told")
        if uri == "hang":
            while True:
                try:
                    await asyncio.sleep(3_600)
                except asyncio.CancelledError:
                    scribe("ignored", name)
        seconds = float(uri or 0)
        try:
            while seconds > 0:
                if uri.endswith(" ") and context.stopping:
                    raise HandedBackError
                await asyncio.sleep(min(seconds, 0.05))
                seconds -= 0.05
        except asyncio.CancelledError:
            scribe("cancelled", name)
            raise
        scribe("end", name)


async def add(arguments: Mapping[str, Any], context: JobContext) -> int:
    left, right = arguments["left"], arguments["right"]
    return int(left) + int(right)


async def survive(arguments: Mapping[str, Any], context: JobContext) -> str:
    """Kills its process at the first attempt."""
    if context.attempt == 1:
        os.kill(os.getpid(), 9)
    return f"attempt {context.attempt}"


class Gym:
    """A trainer that notes whom it trained."""

    async def train(self, job: TrainingJob, context: JobContext) -> None:
        scribe("trained", job.job_id)


equipment = Equipment(ingestor=Scribe(), steps={"add": add, "survive": survive}, trainer=Gym())
