"""What operators can write after `cape`: topology, cursor, parked, backfill, explain, audit."""

from collections.abc import Callable
from typing import Any

AddPlace = Callable[[Any], None]

TOPOLOGY_EXAMPLES = """\
example:
  cape topology pause  shop.events:app orders ledger --kafka broker:9092 --why "database is down"
  cape topology resume shop.events:app orders ledger --kafka broker:9092
  cape topology drain  shop.events:app orders ledger --kafka broker:9092 --wait 60

pause   no new jobs of the topology are issued; what is out goes on, what comes waits, at no cost
drain   the same, and wait until nothing of it is out; exits 1 if something still is
resume  deliver everything that has come meanwhile
"""

CURSOR_EXAMPLES = """\
example:
  cape cursor show   shop.events:app orders order-7
  cape cursor rewind shop.events:app orders order-7 ledger --to 41 --why "prices were wrong"
  cape cursor skip   shop.events:app orders order-7 ledger --event 42 --why "cannot be read"
  cape cursor set    shop.events:app orders order-7 ledger --to 50 --why "done by hand"

rewind  everything after --to is delivered again; jobs that are out are given up
skip    one event is taken as done
set     the cursor is put there, forward (what lies between is taken as done) or back
A cursor of -1 is before the first event.
"""

PARKED_EXAMPLES = """\
example:
  cape parked list    shop.events:app orders --topology ledger
  cape parked release shop.events:app orders order-7 ledger --event 42
  cape parked retry   shop.events:app orders order-7 ledger
  cape parked skip    shop.events:app orders order-7 ledger --event 42 --why "cannot be read"

list     what failed and is tried again later, and what is in quarantine, with its errors
release  one event is tried now, also out of quarantine
retry    the same for everything of the subject
skip     the event is taken as done
"""

BACKFILL_EXAMPLES = """\
example:
  cape backfill shop.events:app orders ledger --from 0 --why "new column"
  cape backfill shop.events:app orders ledger --from 100 --subjects some.txt --why "bad deploy"

Every subject of the source, or one a line of the file, gets everything from --from on once more.
"""

EXPLAIN_EXAMPLES = """\
example:
  cape explain shop.events:app orders order-7 --kafka broker:9092
  cape explain shop.events:app orders order-7 --admin http://127.0.0.1:8120 --json
"""

AUDIT_EXAMPLES = """\
example:
  cape audit shop.events:app orders --kafka broker:9092

Holds cursors, rows, their index and the in-flight table against one another on every dispatcher.
What is wrong twice in a row is told, a JSON object a line with --json; exits 1 if there is any.
"""


def add_operator_commands(commands: Any, add_place: AddPlace) -> None:
    """Add all of them.

    Args:
        commands: subparsers of `cape`.
        add_place: adds ``--kafka`` and the other flags that say where the log is.
    """
    _add_topology(commands, add_place)
    _add_cursor(commands, add_place)
    _add_parked(commands, add_place)
    backfill = _command(
        commands, "backfill", "deliver everything from an event on again", BACKFILL_EXAMPLES
    )
    _add_words(backfill, "topology")
    backfill.add_argument(
        "--from", dest="sequence", metavar="SEQ", required=True, help="first event to deliver again"
    )
    backfill.add_argument("--subjects", metavar="FILE", help="some subjects, one a line")
    _finish(backfill, add_place, is_order=True)
    explain = _command(commands, "explain", "say why a subject waits", EXPLAIN_EXAMPLES)
    _add_words(explain, "subject")
    _finish(explain, add_place)
    audit = _command(commands, "audit", "look for rows that cannot be", AUDIT_EXAMPLES)
    _add_words(audit)
    _finish(audit, add_place)


def _add_topology(commands: Any, add_place: AddPlace) -> None:
    topology = _command(commands, "topology", "pause, drain or resume one", TOPOLOGY_EXAMPLES)
    for verb in _verbs(
        topology,
        pause="issue no new jobs of it",
        drain="the same, and wait until nothing of it is out",
        resume="deliver everything that has come meanwhile",
    ):
        _add_words(verb, "topology")
        if verb.prog.endswith("drain"):
            verb.add_argument(
                "--wait", metavar="S", default="300", help="longest wait in seconds (default: 300)"
            )
        _finish(verb, add_place, is_order=True)


def _add_cursor(commands: Any, add_place: AddPlace) -> None:
    cursor = _command(commands, "cursor", "look at a cursor, or move it", CURSOR_EXAMPLES)
    show, rewind, skip, put = _verbs(
        cursor,
        show="how far each topology is with a subject",
        rewind="deliver everything after an event again",
        skip="take one event as done",
        set="put the cursor somewhere, forward or back",
    )
    _add_words(show, "subject")
    _finish(show, add_place)
    for verb, flag, what in (
        (rewind, "--to", "last event that stays done; -1 for none"),
        (skip, "--event", "the event"),
        (put, "--to", "last event that is taken as done; -1 for none"),
    ):
        _add_words(verb, "subject", "topology")
        verb.add_argument(flag, dest="sequence", metavar="SEQ", required=True, help=what)
        _finish(verb, add_place, is_order=True)


def _add_parked(commands: Any, add_place: AddPlace) -> None:
    parked = _command(commands, "parked", "what was put aside: list it, retry it", PARKED_EXAMPLES)
    listed, release, skip, retry = _verbs(
        parked,
        list="what waits for another attempt, or for a person",
        release="try one event now, also out of quarantine",
        skip="take the event as done",
        retry="try everything of the subject now",
    )
    _add_words(listed)
    listed.add_argument("--topology", metavar="TOPOLOGY", help="of this one only")
    listed.add_argument("--limit", metavar="N", default="1000", help="at most so many")
    _finish(listed, add_place)
    for verb in (release, skip, retry):
        _add_words(verb, "subject", "topology")
        if verb is not retry:
            verb.add_argument(
                "--event", dest="sequence", metavar="SEQ", required=True, help="the event"
            )
        _finish(verb, add_place, is_order=True)


def _command(commands: Any, name: str, what: str, epilog: str) -> Any:
    return commands.add_parser(
        name, help=what, description=what[0].upper() + what[1:] + ".", epilog=epilog
    )


def _verbs(parser: Any, **meanings: str) -> list[Any]:
    """One parser a verb, with what it does and the examples of its command."""
    kind = type(parser)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=kind)
    return [
        verbs.add_parser(
            name, help=what, description=what[0].upper() + what[1:] + ".", epilog=parser.epilog
        )
        for name, what in meanings.items()
    ]


def _add_words(parser: Any, *names: str) -> None:
    parser.add_argument("app", metavar="APP", help="the App, as module:attribute")
    parser.add_argument("domain", metavar="DOMAIN", help="the domain")
    for name in names:
        parser.add_argument(name, metavar=name.upper(), help=f"the {name}")


def _finish(parser: Any, add_place: AddPlace, *, is_order: bool = False) -> None:
    if is_order:
        parser.add_argument("--why", metavar="TEXT", default="", help="the reason, for the audit")
        parser.add_argument("--who", metavar="NAME", help="who orders it (default: the login name)")
    parser.add_argument(
        "--admin",
        metavar="URL",
        help="admin API of a dispatcher (default: found in the consumer group on Kafka)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_place(parser)
