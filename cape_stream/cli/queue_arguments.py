"""What can be written after `cape processor`, `cape publisher` and `cape queues`."""

from typing import Any

from cape_stream.cli.place_flags import add_place_flags, positive

POOLS = ("general", "bulk", "dev", "training")
ACTIONS = ("list", "depth", "redrive", "peek", "purge")


def add_queue_commands(commands: Any) -> None:
    """Add them to the subcommands of `cape`."""
    _add_processor(commands)
    _add_publisher(commands)
    _add_queues(commands)


def _add_processor(commands: Any) -> None:
    processor = commands.add_parser(
        "processor",
        help="work the SQS queues of a pool",
        description="Work the SQS queues of a pool.",
        epilog="example:\n"
        "  cape processor shop.work:equipment --pool general\n"
        "  cape processor shop.work:equipment --pool dev --endpoint-url http://127.0.0.1:5000\n\n"
        "general drains all but bulk and training, bulk only bulk, training only training, dev all."
        "\nSIGTERM drains; the last line is the report, and the exit code is 0 only if it adds up.",
    )
    processor.add_argument(
        "equipment",
        metavar="EQUIPMENT",
        nargs="?",
        help="the application's code, as module:attribute, such as shop.work:equipment",
    )
    processor.add_argument("--pool", choices=POOLS, required=True, help="which queues to drain")
    processor.add_argument(
        "--app", metavar="APP", help="the App whose jobs the jobs queue carries; needs --kafka"
    )
    _add_place(processor)


def _add_publisher(commands: Any) -> None:
    publisher = commands.add_parser(
        "publisher",
        help="carry jobs from their topics to SQS",
        description="Carry jobs from their topics to SQS, for workers without Kafka.",
        epilog="example:\n"
        "  cape publisher shop.events:app --publish slow,general --kafka broker:9092\n\n"
        "Name worker queues that no `cape worker` serves. Start as many as there are partitions.",
    )
    publisher.add_argument("app", metavar="APP", help="the App, as module:attribute")
    publisher.add_argument(
        "--publish", metavar="A,B", required=True, help="worker queues that go to SQS"
    )
    _add_place(publisher)


def _add_queues(commands: Any) -> None:
    queues = commands.add_parser(
        "queues",
        help="look at the SQS queues, and clean up",
        description="Look at the SQS queues, and clean up.",
        epilog="example:\n"
        "  cape queues list                        the queues of the fleet, and which are there\n"
        "  cape queues depth ingest steps\n"
        "  cape queues peek ingest-dead --count 5  counts as a receive of each message\n"
        "  cape queues redrive ingest-dead         let dead letters go back to their queue\n"
        "  cape queues purge ingest-dead --yes     delete everything in it",
    )
    queues.add_argument("action", choices=ACTIONS, help="what to do")
    queues.add_argument(
        "names", metavar="QUEUE", nargs="*", help="short names, such as ingest or ingest-dead"
    )
    queues.add_argument("--count", type=positive, default=10, metavar="N", help="peek: at most")
    queues.add_argument("--yes", action="store_true", help="purge: it is meant")
    queues.add_argument("--json", action="store_true", help="as one JSON object")
    _add_place(queues)


def _add_place(parser: Any) -> None:
    parser.add_argument("--endpoint-url", metavar="URL", help="an SQS that is not AWS")
    parser.add_argument("--region", metavar="NAME", help="AWS region (default: us-east-1)")
    parser.add_argument(
        "--prefix", metavar="TEXT", help="what queue names begin with (default: cape-)"
    )
    add_place_flags(parser, verbose="log what happens")
