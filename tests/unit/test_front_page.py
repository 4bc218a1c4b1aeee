"""The front page of the package: what it promises is there, and costs nothing until used."""

import subprocess
import sys

import pytest

import cape_stream


def test_every_promised_name_is_there() -> None:
    missing = [name for name in cape_stream.__all__ if not hasattr(cape_stream, name)]

    assert missing == []
    assert set(cape_stream.__all__) <= set(dir(cape_stream))


def test_unknown_name_is_refused_as_by_any_module() -> None:
    name = "NoSuchThing"

    with pytest.raises(AttributeError, match="has no attribute 'NoSuchThing'"):
        getattr(cape_stream, name)


def test_import_loads_no_third_party_and_no_part() -> None:
    code = (
        "import sys, cape_stream;"
        "print(*[m for m in sys.modules if m.split('.')[0] in "
        "{'confluent_kafka', 'fastavro', 'rocksdict', 'msgspec', 'sqlalchemy'}"
        " or m.startswith('cape_stream.') and m != 'cape_stream.errors'])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []
