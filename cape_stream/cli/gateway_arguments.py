"""What can be written after `cape gateway`."""

from collections.abc import Callable
from typing import Any

ROTATE = "rotate-keys"
EXAMPLES = """\
example:
  cape gateway rotate-keys --keys-file /etc/cape/job-keys       make or renew the signing keys
  cape gateway shop.events:app --kafka broker:9092 --keys-file /etc/cape/job-keys
  cape run     shop.events:app --set gateway.port=8092 --set gateway.keys_file=/etc/cape/job-keys

Dispatchers need the same keys, as gateway.keys_file: they sign the jobs. docs/gateway.md is the
contract with workers.
"""


def add_gateway_command(commands: Any, add_place_flags: Callable[[Any], None]) -> None:
    """Add it to the subcommands of `cape`."""
    command = commands.add_parser(
        "gateway",
        help="take reports and pings over HTTP, for those who cannot reach Kafka",
        description="Take reports and pings over HTTP, for those who cannot reach Kafka.",
        epilog=EXAMPLES,
    )
    command.add_argument("app", metavar="APP", help=f"the App, as module:attribute; or {ROTATE}")
    command.add_argument(
        "--host", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)"
    )
    command.add_argument("--port", metavar="N", help="port to listen on (default: 8092)")
    command.add_argument("--keys-file", metavar="FILE", help="keys that sign job tokens")
    add_place_flags(command)
