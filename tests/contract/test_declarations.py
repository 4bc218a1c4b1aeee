"""What implementations declare, held against what the suites ask for."""

import re
from pathlib import Path

import pytest

from tests.contract.log_implementations import LOGS, LogImplementation
from tests.contract.queue_implementations import QUEUES, QueueImplementation
from tests.contract.table_implementations import TABLES, TableImplementation

NEED = re.compile(r"^@needs\(\"([^\"]+)\"\)$", re.MULTILINE)


def _asked_for(pattern: str) -> set[str]:
    files = Path(__file__).parent.glob(pattern)
    return {word for file in files for word in NEED.findall(file.read_text())}


@pytest.mark.parametrize(
    ("implementations", "pattern"),
    [(LOGS, "test_log_*.py"), (TABLES, "test_table*.py"), (QUEUES, "test_queue.py")],
)
def test_every_declared_word_is_asked_for_by_a_test(
    implementations: list[pytest.ParameterSet], pattern: str
) -> None:
    """A word that no test knows excuses nothing and only misleads who reads it."""
    declared: set[str] = set()
    for each in implementations:
        (implementation,) = each.values
        known = LogImplementation | TableImplementation | QueueImplementation
        assert isinstance(implementation, known)
        declared.update(implementation.cannot)

    assert declared <= _asked_for(pattern)
    assert declared
