"""What can be written after `cape realtime` and `cape ws`."""

from typing import Any

from cape_stream.cli.place_flags import add_settings_flags

REALTIME_EXAMPLES = """\
example:
  cape realtime rotate-keys --keys-file /etc/cape/grant-keys    make or renew the signing keys
  cape realtime --keys-file /etc/cape/grant-keys                serve streams
  cape realtime --keys-file ... --port 8090 --set realtime.allowed_origins=https://app.example

Start it as often as you like on one port. SIGTERM asks the streams to reconnect one by one, over
realtime.drain_ms; give the process that long. docs/realtime.md is the contract with clients.
"""

WS_EXAMPLES = """\
example:
  cape ws --keys-file /etc/cape/grant-keys --worker-token-file /etc/cape/worker-token

Callers show hook tokens, workers the secret of the file, operators' pages a grant of the platform.
"""


def add_realtime_commands(commands: Any) -> None:
    """Add them to the subcommands of `cape`."""
    realtime = _command(commands, "realtime", "stream to browsers", REALTIME_EXAMPLES)
    realtime.add_argument(
        "action",
        nargs="?",
        choices=("serve", "rotate-keys"),
        default="serve",
        help="serve, or put a new signing key first in the keys file (default: serve)",
    )
    realtime.add_argument("--port", metavar="N", help="port to listen on (default: 8090)")
    ws = _command(
        commands, "ws", "carry the platform's own sockets: requests, console, dev", WS_EXAMPLES
    )
    ws.add_argument("--port", metavar="N", help="port to listen on (default: 8091)")
    ws.add_argument(
        "--worker-token-file",
        metavar="FILE",
        help="secret that workers show; none may come without",
    )


def _command(commands: Any, name: str, what: str, epilog: str) -> Any:
    command = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=epilog
    )
    command.add_argument(
        "--host", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)"
    )
    command.add_argument("--keys-file", metavar="FILE", help="keys that sign grants")
    add_settings_flags(command, verbose="log what happens")
    command.set_defaults(kafka=None, data=None, quiet=False)
    return command
