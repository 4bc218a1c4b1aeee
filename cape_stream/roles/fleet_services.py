"""What every worker of the SQS fleet stands on, opened and closed as one.

Without a word from the environment everything lies on this machine. A fleet names the Valkey and
the database its workers share; their URLs may hold passwords, so they are no settings.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cape_stream.adapters.deliveries_sql import SqlDeliveries
from cape_stream.adapters.local import LocalLimit, MemoryResults, SqliteProgress
from cape_stream.adapters.sqs.mailer import SesMailer
from cape_stream.adapters.sqs.object_store import S3ObjectStore
from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.limits import AsyncLimit
from cape_stream.queues.equipment import Services
from cape_stream.roles.fleet_valkey import ValkeyProgress, ValkeyResults
from cape_stream.roles.settings import Settings, SettingsError
from cape_stream.roles.valkey import URL_VARIABLE, open_async_store

FOLDER = "queues"
"""Below `process.data_dir`: what is not shared."""
MAIL = "ses"
"""Name of the limit that all who send mail share."""
DELIVERIES_VARIABLE = "CAPE_DELIVERIES_URL"


@asynccontextmanager
async def fleet_services(settings: Settings) -> AsyncIterator[Services]:
    """The services of one worker; freed when the context ends.

    Raises:
        SettingsError: `DELIVERIES_VARIABLE` names no database that can be used.
    """
    folder = Path(settings.process.data_dir) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    deliveries = _deliveries(folder)
    progress = SqliteProgress(folder / "progress.db")
    mailer, objects = SesMailer(settings.sqs), S3ObjectStore(settings.sqs)
    services = Services(
        results=MemoryResults(),
        progress=progress,
        deliveries=deliveries,
        mail_limit=LocalLimit(MAIL),
        mailer=mailer,
        objects=objects,
    )
    store = _shared_store()
    if store is not None:
        services.results, services.progress = ValkeyResults(store), ValkeyProgress(store)
        services.mail_limit = AsyncLimit(store, MAIL)
    try:
        yield services
    finally:
        for each in (mailer, objects):
            await each.close()
        progress.close()
        deliveries.close()
        if store is not None:
            await store.close()


def _shared_store() -> AsyncStore | None:
    url = os.environ.get(URL_VARIABLE)
    return open_async_store(url) if url else None


def _deliveries(folder: Path) -> SqlDeliveries:
    url = os.environ.get(DELIVERIES_VARIABLE) or f"sqlite:///{folder.absolute() / 'deliveries.db'}"
    try:
        return SqlDeliveries(url)
    except ValueError as error:
        raise SettingsError(f"{DELIVERIES_VARIABLE}: {error}") from error
