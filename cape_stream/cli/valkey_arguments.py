"""What can be written after `cape valkey`."""

from typing import Any

EXAMPLES = """\
example:
  cape valkey doctor --url valkey://cache.example:6379/0
  CAPE_VALKEY_URL=valkeys://cape:...@cache.example:6379 cape valkey doctor --json

It reads, and uses every service once under names of its own, which expire. It exits 1 if something
does not work.
"""


def add_valkey_commands(commands: Any) -> None:
    """Add `cape valkey` to the commands."""
    valkey = commands.add_parser(
        "valkey",
        help="examine the Valkey server that coordinates a fleet",
        description="Examine the Valkey server that coordinates a fleet.",
        epilog=EXAMPLES,
    )
    valkey.add_argument("action", choices=("doctor",), help="what to do")
    valkey.add_argument(
        "--url",
        metavar="URL",
        help="where it is (default: CAPE_VALKEY_URL, else valkey://127.0.0.1:6379/0); a password"
        " belongs into the variable, for everybody can read a command line",
    )
    valkey.add_argument(
        "--prefix", metavar="WORD", default="cape:1", help="before every key (default: cape:1)"
    )
    valkey.add_argument("--ca-file", metavar="FILE", help="certificates to trust, for TLS")
    valkey.add_argument("--json", action="store_true", help="the findings as one JSON object")
