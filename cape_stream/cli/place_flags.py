"""Flags that say where and by which settings a command works, the same for every command."""

from argparse import ArgumentParser, ArgumentTypeError


def add_place_flags(parser: ArgumentParser, *, verbose: str) -> None:
    """Add them; ``verbose`` is the help of that flag."""
    parser.add_argument("--kafka", metavar="HOST:PORT", help="address of the Kafka brokers")
    parser.add_argument("--data", metavar="DIR", help="folder for state (default: ./cape-data)")
    add_settings_flags(parser, verbose=verbose)
    parser.add_argument("--quiet", action="store_true", help="no progress lines")


def add_settings_flags(parser: ArgumentParser, *, verbose: str) -> None:
    """Those of them that a command without a place takes, too."""
    parser.add_argument("--config", metavar="FILE", help="settings file (default: cape.toml)")
    parser.add_argument(
        "--set",
        dest="pairs",
        metavar="SECTION.NAME=VALUE",
        action="append",
        default=[],
        help="any setting; `cape settings` lists them; may be repeated",
    )
    parser.add_argument("--verbose", action="store_true", help=verbose)


def positive(text: str) -> int:
    """A whole number from 1 on. Raises ArgumentTypeError, which argparse tells."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)
