"""After the worlds: one look at how much has happened in them."""

import pytest

from tests.simulation.seeds import summary


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the simulated worlds of this session went through."""
    lines = list(summary())
    if lines:
        terminalreporter.section("simulated worlds")
        for line in lines:
            terminalreporter.line(line)
