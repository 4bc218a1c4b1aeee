"""Tests that need what this machine does not have are left out, and one line a thing says so.

A module that brings a server declares what its tests need, and is loaded after this one::

    NEEDS.append(Need("on a real Kafka", is_marked, missing_tool))
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

LEFT_OUT = "left out"
"""The outcome in pytest's last line; `skipped` would be listed again, test by test, by `-ra`."""


@dataclass(slots=True, frozen=True)
class Need:
    """Something that not every machine has."""

    where: str
    """Where its tests run, for the line, such as ``on a real Kafka``."""
    wanted: Callable[[pytest.Item], bool]
    """True for a test that cannot do without it."""
    missing: Callable[[], object | None]
    """Why it cannot be had, None if it can."""


NEEDS: list[Need] = []


@pytest.hookimpl(tryfirst=True)  # before any fixture starts a server
def pytest_runtest_setup(item: pytest.Item) -> None:
    for need in NEEDS:
        if need.wanted(item) and (missing := need.missing()) is not None:
            item.user_properties.append((LEFT_OUT, f"{need.where}, because {missing}"))
            pytest.skip(str(missing))


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, str] | None:
    return (LEFT_OUT, "s", "LEFT OUT") if _reason(report) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [_reason(report) for report in terminalreporter.getreports(LEFT_OUT)]
    for reason in dict.fromkeys(reasons):
        count = reasons.count(reason)
        tests = f"{count} test{'s' if count > 1 else ''}"
        terminalreporter.write_line(f"LEFT OUT: {tests} {reason}", yellow=True)


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str | None:
    """Why the test was left out; None if it was not, or was skipped for reasons of its own."""
    if isinstance(report, pytest.TestReport) and report.skipped and report.when == "setup":
        return next((str(why) for name, why in report.user_properties if name == LEFT_OUT), None)
    return None
