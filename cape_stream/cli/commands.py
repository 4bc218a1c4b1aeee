"""Runs the command that was asked for, and turns what comes of it into lines and an exit code."""

import os
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Sequence
from time import monotonic

from cape_stream.cli.arguments import UsageError, parse
from cape_stream.errors import CapeError

EXIT_DONE = 0
EXIT_FATAL = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

JOIN_S = 1.0
"""How long threads that hang in foreign code are waited for before the process ends anyway."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `cape`; the exit code. Without ``argv`` it is a whole process, and ends as one."""
    try:
        code = _run(argv)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_DONE
    except CapeError as error:
        sys.stderr.write(f"cape: {error}\n")
        code = EXIT_USAGE if isinstance(error, UsageError) or _is_usage(error) else EXIT_FATAL
    if argv is None:
        _end_threads(code)
    return code


def _run(argv: Sequence[str] | None) -> int:
    arguments = parse(argv)
    if arguments.command is None:
        return EXIT_USAGE
    return COMMANDS[arguments.command](arguments)


def _serve(arguments: Namespace) -> int:
    """`cape run`, `cape dispatcher`, `cape worker`, `cape refresh`, `cape outbox`."""
    from cape_stream.roles import launch

    everything = arguments.command == "run"
    launch.serve(
        arguments.app,
        launch.settings(arguments.config, _flags(arguments)),
        backend_name=arguments.backend if everything else "kafka",
        roles=launch.ALL_ROLES if everything else (arguments.command,),
    )
    return EXIT_DONE


def _gateway(arguments: Namespace) -> int:
    from cape_stream.cli.gateway_arguments import ROTATE

    if arguments.app != ROTATE:
        return _serve(arguments)
    from cape_stream.roles import gateway, launch

    print(gateway.rotate_keys(launch.settings(arguments.config, _flags(arguments)).gateway))
    return EXIT_DONE


def _ping(arguments: Namespace) -> int:
    from cape_stream.roles import launch

    if arguments.stdin == (arguments.subject is not None):
        raise UsageError("name one SUBJECT, or give --stdin and one subject a line; not both")
    if arguments.stdin and arguments.latest is not None:
        raise UsageError("--latest belongs to one SUBJECT; with --stdin write it behind a tab")
    one = [launch.Asked(arguments.subject, arguments.latest)]
    outcome = launch.ping(
        arguments.app,
        launch.settings(arguments.config, _flags(arguments)),
        domain=arguments.domain,
        asked=launch.read_lines(sys.stdin.buffer) if arguments.stdin else one,
        backend_name=arguments.backend,
    )
    if outcome.refused and not arguments.stdin:
        raise UsageError(outcome.refused[0])
    print(outcome.as_json() if arguments.json else outcome.in_words())
    return EXIT_DONE if outcome.complete else EXIT_FATAL


def _topics(arguments: Namespace) -> int:
    from cape_stream.roles import launch

    outcome = launch.topics(
        arguments.app,
        launch.settings(arguments.config, _flags(arguments)),
        action=arguments.action,
        replication=arguments.replication,
        backend_name=arguments.backend,
    )
    print(outcome.as_json() if arguments.json else outcome.in_words())
    return EXIT_DONE if outcome.complete or arguments.action == "plan" else EXIT_FATAL


def _operate(arguments: Namespace) -> int:
    from cape_stream.cli.operator_commands import operate

    return EXIT_DONE if operate(arguments, _flags(arguments)) else EXIT_FATAL


def _settings(arguments: Namespace) -> int:
    from cape_stream.roles import launch

    found = launch.settings(arguments.config, _flags(arguments))
    if arguments.json:
        print(launch.settings_as_json(found))
    else:
        print(launch.settings_in_words(found, explain=arguments.explain))
    return EXIT_DONE


def _processor(arguments: Namespace) -> int:
    from cape_stream.roles import fleet_launch, launch

    found = launch.settings(arguments.config, _flags(arguments))
    report = fleet_launch.process(arguments.pool, arguments.equipment, arguments.app, found)
    print(report.as_json())
    return EXIT_DONE if report.adds_up else EXIT_FATAL


def _publisher(arguments: Namespace) -> int:
    from cape_stream.roles import fleet_launch, launch

    found = launch.settings(arguments.config, _flags(arguments))
    fleet_launch.publish(arguments.app, arguments.publish, found)
    return EXIT_DONE


def _queues(arguments: Namespace) -> int:
    from cape_stream.roles import fleet_launch, launch

    outcome = fleet_launch.queues(
        arguments.action,
        arguments.names,
        launch.settings(arguments.config, _flags(arguments)),
        sure=arguments.yes,
        count=arguments.count,
    )
    print(outcome.as_json() if arguments.json else outcome.in_words())
    return EXIT_DONE if outcome.complete else EXIT_FATAL


def _valkey(arguments: Namespace) -> int:
    from cape_stream.roles import valkey

    outcome = valkey.doctor(arguments.url, arguments.prefix, arguments.ca_file)
    print(outcome.as_json() if arguments.json else outcome.in_words())
    return EXIT_DONE if outcome.is_healthy else EXIT_FATAL


def _realtime(arguments: Namespace) -> int:
    from cape_stream.roles import launch, realtime

    found = launch.settings(arguments.config, _flags(arguments)).realtime
    if arguments.action == "rotate-keys":
        print(realtime.rotate_keys(found))
    else:
        realtime.serve_streams(found)
    return EXIT_DONE


def _ws(arguments: Namespace) -> int:
    from cape_stream.roles import launch, realtime

    realtime.serve_platform(launch.settings(arguments.config, _flags(arguments)).realtime)
    return EXIT_DONE


def _demo(arguments: Namespace) -> int:
    from cape_stream.demos import flights

    return flights.main(arguments)


COMMANDS: dict[str, Callable[[Namespace], int]] = {
    "run": _serve,
    "dispatcher": _serve,
    "worker": _serve,
    "refresh": _serve,
    "outbox": _serve,
    "gateway": _gateway,
    "ping": _ping,
    "topics": _topics,
    **dict.fromkeys(("topology", "cursor", "parked", "backfill", "explain", "audit"), _operate),
    "settings": _settings,
    "processor": _processor,
    "publisher": _publisher,
    "queues": _queues,
    "valkey": _valkey,
    "realtime": _realtime,
    "ws": _ws,
    "demo": _demo,
}


def _flags(arguments: Namespace) -> dict[str, str]:
    """Settings that were given on the command line; a flag of its own wins over --set."""
    flags = {}
    for pair in arguments.pairs:
        name, equals, value = pair.partition("=")
        if not equals or "." not in name:
            raise UsageError(
                f"--set {pair!r} is no setting: write SECTION.NAME=VALUE, such as"
                " worker.concurrency=32; `cape settings` lists them"
            )
        flags[name] = value
    listener = "gateway" if arguments.command == "gateway" else "realtime"
    own = {
        "kafka.bootstrap_servers": arguments.kafka,
        "process.data_dir": arguments.data,
        "process.log_level": "info" if arguments.verbose else None,
        "process.progress_interval_ms": "0" if arguments.quiet else None,
        "sqs.endpoint_url": getattr(arguments, "endpoint_url", None),
        "sqs.region": getattr(arguments, "region", None),
        "sqs.prefix": getattr(arguments, "prefix", None),
        f"{listener}.host": getattr(arguments, "host", None),
        f"{listener}.keys_file": getattr(arguments, "keys_file", None),
        "realtime.worker_token_file": getattr(arguments, "worker_token_file", None),
        f"{listener}.{'ws_port' if arguments.command == 'ws' else 'port'}": getattr(
            arguments, "port", None
        ),
        "worker.queues": getattr(arguments, "queues", None),
        "worker.concurrency": getattr(arguments, "concurrency", None),
    }
    return flags | {name: value for name, value in own.items() if value is not None}


def _is_usage(error: CapeError) -> bool:
    """True if what was asked is wrong, and not the world; told by roles, imported by then."""
    from cape_stream.roles import launch

    return isinstance(error, launch.ASKED_WRONGLY)


def _end_threads(code: int) -> None:
    """End the process even if a thread hangs in foreign code, such as a source that never answers.

    Everything that has to be stored is stored by now.
    """
    deadline_s = monotonic() + JOIN_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline_s - monotonic()))
            if thread.is_alive():  # a daemon too: thread pools wait for theirs whatever they are
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
