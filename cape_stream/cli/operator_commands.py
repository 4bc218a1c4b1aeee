"""Runs the operators' commands."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cape_stream.cli.arguments import UsageError

if TYPE_CHECKING:
    from cape_stream.roles.operate import Operator, Shown

INT64 = 2**63


def operate(arguments: Namespace, flags: Mapping[str, str]) -> bool:
    """Carry one of them out; True if all is well.

    Raises:
        UsageError: a number is none, or a reason is missing.
        CapeError: whatever keeps it from being done.
    """
    from cape_stream.roles import launch

    _check_reason(arguments)
    with launch.operator(
        arguments.app, launch.settings(arguments.config, flags), admin=arguments.admin
    ) as operator:
        shown = _carry_out(operator, arguments)
    text = shown.as_json() if arguments.json else shown.in_words()
    if text:
        sys.stdout.write(text + "\n")
    return shown.is_good


def _carry_out(operator: "Operator", arguments: Namespace) -> "Shown":
    command, verb = arguments.command, getattr(arguments, "verb", "")
    domain = arguments.domain
    match command, verb:
        case "explain", _:
            return operator.explain(domain, arguments.subject)
        case "audit", _:
            return operator.audit(domain)
        case "cursor", "show":
            return operator.cursors(domain, arguments.subject)
        case "parked", "list":
            limit = _number(arguments.limit, "--limit", 1)
            return operator.parked(domain, arguments.topology, limit)
        case "topology", "drain":
            wait_s = _number(arguments.wait, "--wait", 0)
            who, why = _who(arguments), arguments.why
            return operator.drain(domain, arguments.topology, who=who, why=why, wait_s=wait_s)
        case "backfill", _:
            return operator.backfill(
                domain,
                arguments.topology,
                _number(arguments.sequence, "--from", 0),
                _subjects(arguments.subjects),
                who=_who(arguments),
                why=arguments.why,
            )
    text = getattr(arguments, "sequence", None)
    return operator.order(
        verb,
        domain,
        arguments.topology,
        who=_who(arguments),
        why=arguments.why,
        subject=getattr(arguments, "subject", None),
        sequence=None if text is None else _number(text, "the sequence id", -1),
    )


def _check_reason(arguments: Namespace) -> None:
    """Before anything is sent: who changes what is delivered says why."""
    verb = getattr(arguments, "verb", arguments.command)
    command = " ".join(dict.fromkeys(["cape", arguments.command, verb]))
    if verb in {"rewind", "set", "skip", "backfill"} and not arguments.why.strip():
        raise UsageError(f'{command} needs a reason, which the audit keeps: add --why "..."')


def _who(arguments: Namespace) -> str:
    """Who orders it: as said, else the login name."""
    if arguments.who is not None:
        return str(arguments.who)
    from getpass import getuser

    try:
        return getuser()
    except (OSError, KeyError) as error:
        raise UsageError("nobody knows who you are: add --who NAME") from error


def _number(text: str, what: str, least: int) -> int:
    sign = text.removeprefix("-")
    if not sign.isascii() or not sign.isdigit() or not least <= int(text) < INT64:
        raise UsageError(f"{what} must be a whole number from {least} on, not {text!r}")
    return int(text)


def _subjects(file: str | None) -> Iterator[str] | None:
    if file is None:
        return None
    try:
        lines = Path(file).read_text(encoding="utf-8").split("\n")
        return iter([each for line in lines if (each := line.removesuffix("\r"))])
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--subjects {file}: {error}") from error
