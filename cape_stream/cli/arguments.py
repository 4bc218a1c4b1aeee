"""What can be written after `cape`, with an example for everything."""

from argparse import (
    Action,
    ArgumentParser,
    Namespace,
    RawDescriptionHelpFormatter,
    _SubParsersAction,
)
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from cape_stream.cli.gateway_arguments import add_gateway_command
from cape_stream.cli.operator_arguments import add_operator_commands
from cape_stream.cli.place_flags import add_place_flags, positive
from cape_stream.cli.queue_arguments import add_queue_commands
from cape_stream.cli.realtime_arguments import add_realtime_commands
from cape_stream.cli.valkey_arguments import add_valkey_commands
from cape_stream.errors import Fatal

APP_HELP = "the App, as module:attribute, such as shop.events:app"

MAIN_EXAMPLES = """\
a first run, without any service:
  cape demo --events 5000                 deliver some real flights and prove the result
  cape run shop.events:app                all roles in one process, kept in ./cape-data

on Kafka, each role as often as you like:
  cape topics apply shop.events:app --kafka broker:9092
  cape dispatcher   shop.events:app --kafka broker:9092
  cape worker       shop.events:app --kafka broker:9092 --concurrency 32
  cape refresh      shop.events:app --kafka broker:9092

workers of the SQS fleet, see docs/queues.md:
  cape processor shop.work:equipment --pool general
  cape queues depth

exit codes: 0 stopped as asked, 1 cannot go on (the reason is the last line), 2 asked wrongly
"""

SETTINGS_EXAMPLES = """\
example:
  cape settings                           every setting, its value and where it comes from
  cape settings --explain                 and what it means
  CAPE_ENGINE_COMMIT_INTERVAL_MS=50 cape settings
  cape settings --set worker.concurrency=32 --json

a file, the environment and flags set the same things, each stronger than the one before:
  cape.toml       [kafka]
                  bootstrap_servers = "broker:9092"
                  "security.protocol" = "SASL_SSL"       # names with dots go to the Kafka client
                  [worker]
                  concurrency = 32
  environment     CAPE_WORKER_CONCURRENCY=32  CAPE_KAFKA_SASL_PASSWORD=...
  flag            --set worker.concurrency=32
"""


class UsageError(Fatal):
    """The command line cannot be understood; the message ends with how to learn more."""


class Parser(ArgumentParser):
    """An argparse parser whose help keeps its line breaks and whose errors say what to do."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message}; see `{self.prog} --help`")


class ShowVersion(Action):
    """Prints the version of the installed package; looks it up only when asked."""

    def __call__(self, parser: ArgumentParser, *_: object) -> NoReturn:
        """Print and leave."""
        from importlib.metadata import version

        print(f"cape_stream {version('cape-stream')}")
        parser.exit()


def parse(argv: Sequence[str] | None) -> Namespace:
    """The command line as values; ``--help`` and ``--version`` print and leave.

    Raises:
        UsageError: it cannot be understood.
    """
    parser = Parser(
        prog="cape",
        description="Event delivery: pings in, every event to every topology, in order.",
        epilog=MAIN_EXAMPLES,
    )
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    _add_roles(commands)
    add_gateway_command(commands, _add_place_flags)
    _add_ping(commands)
    _add_topics(commands)
    _add_settings(commands)
    add_operator_commands(commands, _add_place_flags)
    add_queue_commands(commands)
    add_valkey_commands(commands)
    add_realtime_commands(commands)
    _add_demo(commands)
    found, unknown = parser.parse_known_args(argv)
    if unknown:
        raise _strange(_asked(parser, found), unknown)
    if found.command is None:
        parser.print_help()
    return found


def _asked(parser: ArgumentParser, found: Namespace) -> ArgumentParser:
    """The parser of the command, or of its verb, that was written."""
    for action in parser._actions:
        if isinstance(action, _SubParsersAction) and (name := getattr(found, action.dest, None)):
            return _asked(action.choices[name], found)
    return parser


def _strange(parser: ArgumentParser, unknown: Sequence[str]) -> UsageError:
    """Words that the command does not know, with the option that was meant, if one looks like it,
    and its own help."""
    known = [*parser._option_string_actions]
    close = get_close_matches(unknown[0].partition("=")[0], known, n=1)
    hint = f", did you mean {close[0]}?" if close else ";"
    return UsageError(
        f"unrecognized arguments: {' '.join(unknown)}{hint} see `{parser.prog} --help`"
    )


def _add_roles(commands: Any) -> None:
    run = _command(
        commands,
        "run",
        "run all roles of an App in one process",
        "example:\n  cape run shop.events:app\n  cape run shop.events:app --data /var/lib/shop\n\n"
        "Everything is kept in one folder; a kill -9 at any moment loses and reorders nothing.",
    )
    _add_app(run)
    _add_worker_flags(run)
    _add_backend(run, "embedded")
    for role, what, example in (
        ("dispatcher", "decide which events go where (one or more, on Kafka)", ""),
        ("worker", "run the handlers of an App (one or more, on Kafka)", " --queues general,slow"),
        ("refresh", "find what was never pinged (one leads, others stand by)", ""),
        ("outbox", "ping what a PostgreSQL outbox notifies of, and prune it", ""),
    ):
        command = _command(
            commands,
            role,
            what,
            f"example:\n  cape {role} shop.events:app --kafka broker:9092{example}",
        )
        _add_app(command)
        if role == "worker":
            _add_worker_flags(command)
        _add_place_flags(command)


def _add_ping(commands: Any) -> None:
    ping = _command(
        commands,
        "ping",
        "say that subjects have news",
        "example:\n  cape ping shop.events:app orders order-7 --latest 3\n"
        "  cape ping shop.events:app orders --stdin < subjects.txt\n\n"
        "With --stdin: one subject a line, as UTF-8, optionally a tab and its newest sequence id.\n"
        "A ping says what is already true, so repeating one does no harm.",
    )
    _add_app(ping)
    ping.add_argument("domain", metavar="DOMAIN", help="the domain the subject belongs to")
    ping.add_argument("subject", metavar="SUBJECT", nargs="?", help="the subject")
    ping.add_argument("--latest", metavar="N", help="its newest sequence id, if known")
    ping.add_argument("--stdin", action="store_true", help="many subjects, one a line")
    ping.add_argument("--json", action="store_true", help="the outcome as one JSON object")
    _add_backend(ping, None)


def _add_topics(commands: Any) -> None:
    topics = _command(
        commands,
        "topics",
        "create or compare the topics of an App",
        "example:\n  cape topics plan  shop.events:app --kafka broker:9092\n"
        "  cape topics apply shop.events:app --kafka broker:9092\n"
        "  cape topics check shop.events:app --kafka broker:9092\n\n"
        "plan says what apply would do; check exits 1 when something is missing or differs.",
    )
    topics.add_argument("action", choices=("plan", "apply", "check"), help="what to do")
    _add_app(topics)
    topics.add_argument(
        "--replication",
        type=positive,
        metavar="N",
        help="copies of each partition of a new topic (default: as the cluster is set)",
    )
    topics.add_argument("--json", action="store_true", help="the outcome as one JSON object")
    _add_backend(topics, None)


def _add_settings(commands: Any) -> None:
    settings = _command(
        commands, "settings", "show every setting and where it comes from", SETTINGS_EXAMPLES
    )
    settings.add_argument("--explain", action="store_true", help="say what each one means")
    settings.add_argument("--json", action="store_true", help="as one JSON object")
    _add_place_flags(settings)


def _add_demo(commands: Any) -> None:
    demo = _command(
        commands,
        "demo",
        "deliver real flights to three topologies and prove the result with SQL",
        "example:\n  cape demo --events 5000\n  cape demo --backend kafka --json",
    )
    demo.add_argument("--events", type=positive, metavar="N", help="only the first N events")
    demo.add_argument(
        "--backend",
        choices=("embedded", "kafka"),
        default="embedded",
        help="embedded needs no service; kafka starts one of its own (default: embedded)",
    )
    demo.add_argument("--data", metavar="DIR", help="folder to work in (default: a temporary one)")
    demo.add_argument("--json", action="store_true", help="print nothing but the result")


def _command(commands: Any, name: str, what: str, epilog: str) -> Parser:
    parser: Parser = commands.add_parser(
        name, help=what, description=what[0].upper() + what[1:] + ".", epilog=epilog
    )
    return parser


def _add_app(parser: Parser) -> None:
    parser.add_argument("app", metavar="APP", help=APP_HELP)


def _add_worker_flags(parser: Parser) -> None:
    parser.add_argument("--queues", metavar="A,B", help="queues to serve (default: all)")
    parser.add_argument("--concurrency", metavar="N", help="jobs at a time (default: 8)")


def _add_backend(parser: Parser, default: str | None) -> None:
    parser.add_argument(
        "--backend",
        choices=("embedded", "kafka"),
        default=default,
        help=f"where the log is (default: {default or 'kafka if one is named, else embedded'})",
    )
    _add_place_flags(parser)


def _add_place_flags(parser: Parser) -> None:
    add_place_flags(parser, verbose="log what happens to every task")
