"""The table of failure classes in docs/handlers.md against the code it tells of."""

import builtins
import re
from pathlib import Path

import pytest

import cape_stream
from cape_stream.model.status import FailureClass
from cape_stream.model.topology import LambdaSpec
from cape_stream.runtime.worker_settings import WorkerSettings
from cape_stream.sdk.failures import classify

PAGE = (Path(__file__).parents[3] / "docs" / "handlers.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| [^|]+ \| (`[^|]+) \|$", PAGE, re.MULTILINE)


def test_table_has_every_failure_class() -> None:
    assert [name for name, _ in ROWS] == [str(each) for each in FailureClass]


@pytest.mark.parametrize(
    ("name", "exception"),
    [(name, each) for name, cell in ROWS for each in re.findall(r"`(\w+)`", cell)],
)
def test_exceptions_of_the_table_have_the_class_it_says(name: str, exception: str) -> None:
    raised = getattr(cape_stream, exception, None) or getattr(builtins, exception)

    assert classify(raised("why")) == FailureClass(name)


def test_defaults_the_page_names_are_those_of_the_code() -> None:
    settings, entry = WorkerSettings(queues=("general",)), LambdaSpec(lambda_id="only")

    assert f"`worker.output_bytes_max` ({settings.output_bytes_max:,})" in PAGE
    assert f"`worker.backlog_percent` ({settings.backlog_percent})" in PAGE
    assert f"`worker.live_slots` ({settings.live_slots})" in PAGE
    assert entry.max_batch == 50, "the page and the limit of an output are made for this one"
