"""What the command line may ask of the SQS fleet."""

from collections.abc import Sequence

from cape_stream.queues.fleet import Pool
from cape_stream.queues.ledger import DrainReport
from cape_stream.roles import processor, publisher, queue_tools
from cape_stream.roles.equipment_loading import load_equipment
from cape_stream.roles.queue_tools import QueueAction, QueueOutcome
from cape_stream.roles.settings import Settings
from cape_stream.sdk.loading import load_app


def process(pool: str, equipment: str | None, app: str | None, found: Settings) -> DrainReport:
    """Work the queues of a pool until a signal; see `processor.serve`."""
    brought = load_equipment(equipment)
    if app is None:
        return processor.serve(Pool(pool), brought, found)
    return processor.serve_jobs(Pool(pool), brought, found, load_app(app))


def publish(app: str, publish: str, found: Settings) -> None:
    """Carry the jobs of some worker queues to SQS until a signal."""
    names = tuple(name.strip() for name in publish.split(",") if name.strip())
    publisher.serve(load_app(app), names, found)


def queues(
    action: QueueAction, names: Sequence[str], found: Settings, *, sure: bool, count: int
) -> QueueOutcome:
    """Look at queues, or clean up; see `queue_tools.carry_out`."""
    return queue_tools.carry_out(action, names, found, sure=sure, count=count)
