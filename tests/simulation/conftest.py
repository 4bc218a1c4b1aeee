"""After the worlds: one look at how much has happened in them."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulation.seeds import TOTALS, summary

FIGURES = "figures of simulated worlds"
"""Name of the property by which a test's figures reach the process that prints the summary."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note on every test what happened in its worlds."""
    TOTALS.clear()
    try:
        yield
    finally:
        item.user_properties.append((FIGURES, dict(TOTALS)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the simulated worlds of this session went through, in whichever process."""
    totals: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            properties = dict(getattr(report, "user_properties", ()))
            figures = properties.get(FIGURES)
            if isinstance(figures, dict):
                totals.update(figures)
    lines = list(summary(totals))
    if lines:
        terminalreporter.section("simulated worlds")
        for line in lines:
            terminalreporter.line(line)
