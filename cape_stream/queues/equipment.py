"""What an application brings to its workers: the code behind the message types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cape_stream.ports.deliveries import DeliveryStore
from cape_stream.ports.limits import AdaptiveLimit
from cape_stream.ports.mail import Mailer
from cape_stream.ports.object_store import ObjectStore
from cape_stream.ports.progress import Progress
from cape_stream.ports.results import Results
from cape_stream.queues.contract import Handler
from cape_stream.queues.messages import (
    bulk_ingest,
    email_send,
    file_scan,
    ingest,
    ses_events,
    ses_reputation,
    training,
)
from cape_stream.queues.messages import jobs as job_messages
from cape_stream.queues.messages import steps as step_messages


@dataclass(slots=True, kw_only=True)
class Equipment:
    """Code of the application. A queue whose code is missing is not drained: its messages wait for
    a worker that has it, and do not wear out here."""

    steps: Mapping[str, step_messages.StepFunction] = field(default_factory=dict)
    """Name of a step → what it does."""
    ingestor: ingest.Ingestor | None = None
    """Ingests documents, alone and in batches."""
    scanners: Sequence[file_scan.Scanner] = ()
    scan_log: file_scan.ScanLog | None = None
    """Where verdicts go, and who pings their domain."""
    scan_bytes_max: int = file_scan.SCAN_BYTES_MAX
    """Larger objects are not scanned, and their verdict says so."""
    trainer: training.Trainer | None = None
    jobs: job_messages.JobsHandler | None = None
    """Runs Cape jobs; `cape processor` makes it of an App."""


@dataclass(slots=True, kw_only=True)
class Services:
    """What every worker of the fleet has, whatever the application."""

    results: Results
    progress: Progress
    deliveries: DeliveryStore
    mail_limit: AdaptiveLimit
    mailer: Mailer | None
    objects: ObjectStore | None


def handlers_for(queue: str, bring: Equipment, have: Services) -> Mapping[str, Handler]:
    """Label of a message type → its handler, for one queue; empty if its code is missing."""
    made: Mapping[str, Handler] = {}
    if queue == step_messages.QUEUE and bring.steps:
        made = {step_messages.TYPE.name: step_messages.StepHandler(bring.steps, have.results)}
    elif queue == ingest.QUEUE and bring.ingestor is not None:
        made = {ingest.TYPE.name: ingest.IngestHandler(bring.ingestor)}
    elif queue == bulk_ingest.QUEUE and bring.ingestor is not None:
        handler = bulk_ingest.BulkIngestHandler(bring.ingestor, have.progress)
        made = {bulk_ingest.TYPE.name: handler}
    elif queue == file_scan.QUEUE and bring.scan_log is not None and have.objects is not None:
        made = {
            file_scan.OBJECTS: file_scan.FileScanHandler(
                have.objects, bring.scanners, bring.scan_log, bring.scan_bytes_max
            ),
            file_scan.TEST_EVENT: file_scan.acknowledge_test_event,
        }
    elif queue == training.QUEUE and bring.trainer is not None:
        made = {training.TYPE.name: training.TrainingHandler(bring.trainer)}
    elif queue == job_messages.QUEUE and bring.jobs is not None:
        made = {job_messages.TYPE.name: replace(bring.jobs, store=have.objects)}
    else:
        made = _mail_handlers(queue, have)
    return made


def _mail_handlers(queue: str, have: Services) -> Mapping[str, Handler]:
    if queue == email_send.QUEUE and have.mailer is not None:
        return {
            email_send.TYPE.name: email_send.EmailSendHandler(
                have.mailer, have.mail_limit, have.progress
            )
        }
    if queue == ses_events.QUEUE:
        return {ses_events.EVENTS: ses_events.SesEventsHandler(have.deliveries)}
    if queue == ses_reputation.QUEUE:
        return {
            ses_reputation.SIGNAL: ses_reputation.SesReputationHandler(
                have.deliveries, have.mail_limit
            )
        }
    return {}
