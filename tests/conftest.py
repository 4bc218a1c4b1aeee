"""What every rung of the ladder shares: the real broker, and the word on what was left out."""

import shutil
from importlib.util import find_spec

import pytest

pytest_plugins = ["tests.broker"] if find_spec("tests.broker") else []

_left_out: dict[str, tuple[int, str]] = {}


def _missing_for_kafka() -> str | None:
    """Say which programs a real broker would need and this machine lacks; None if it has them."""
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    return f"{' and '.join(missing)} not found on the PATH" if missing else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, visibly, the tests whose outside programs this machine does not have."""
    reason = _missing_for_kafka()
    if reason is None:
        return
    without = [item for item in items if item.get_closest_marker("kafka")]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in set(without)]
        _left_out["kafka"] = (len(without), reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each kind of test that was left out, and why."""
    for marker, (count, reason) in _left_out.items():
        terminalreporter.write_line(
            f"LEFT OUT: {count} tests that need a real {marker.capitalize()}, for {reason}", red=True
        )
