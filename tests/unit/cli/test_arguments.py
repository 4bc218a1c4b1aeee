"""What the command line says to somebody who has asked wrongly, and to somebody who asks how."""

import subprocess
import sys
from pathlib import Path

import pytest

from cape_stream.cli import commands, main

COMMANDS = sorted(commands.COMMANDS)
VERBS = ["topology pause", "topology drain", "topology resume", "cursor show", "cursor rewind"]
VERBS += ["cursor skip", "cursor set", "parked list", "parked release", "parked skip"]
VERBS += ["parked retry"]
HEAVY = ["confluent_kafka", "rocksdict", "sqlalchemy", "fastavro", "asyncio", "cape_stream.sdk"]

APP = """\
from cape_stream import App
from cape_stream.adapters.sources.memory import MemoryEventSource

app = App("shop", partitions=2)
orders = app.domain("orders", source=MemoryEventSource())
ledger = orders.topology("ledger")

@ledger.handler()
def book(batch):
    pass

empty = App("empty")
number = 5
"""


@pytest.fixture(autouse=True)
def in_a_folder_with_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_app.py").write_text(APP)
    (tmp_path / "broken_app.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("CAPE_CONFIG", raising=False)
    monkeypatch.delenv("CAPE_KAFKA_BOOTSTRAP_SERVERS", raising=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fly", "invalid choice: 'fly'"),
        ("run", "the following arguments are required: APP; see `cape run --help`"),
        (
            "run shop_app:app --nonsense",
            "unrecognized arguments: --nonsense; see `cape run --help`",
        ),
        ("run shop_app:app --concurency=3", "did you mean --concurrency? see `cape run --help`"),
        ("run shop_app:app other", "unrecognized arguments: other; see `cape run --help`"),
        ("cursor show shop_app:app orders s --jsn", "--json? see `cape cursor show --help`"),
        ("--nonsense", "unrecognized arguments: --nonsense; see `cape --help`"),
        ("run shop_app", "write module:attribute, such as shop_app:app"),
        ("run shop_app.py:app", "write module:attribute, such as shop_app:app"),
        ("run gone_app:app", "there is no module 'gone_app'"),
        ("run shop_app:gone", "module 'shop_app' has no 'gone'; it holds shop_app:app"),
        ("run shop_app:number", "'shop_app:number' is a int, not an App"),
        ("run shop_app:empty", "App 'empty' has no domain"),
        ("run broken_app:app", "importing it raised ZeroDivisionError"),
        ("run shop_app:app --set engine", "--set 'engine' is no setting"),
        ("run shop_app:app --set engin.x=1", "there is no section 'engin'"),
        ("run shop_app:app --set engine.x=1", "[engine] has no 'x'"),
        ("run shop_app:app --concurrency many", "worker.concurrency must be a whole number"),
        ("run shop_app:app --queues fast", "worker.queues names 'fast', which no handler"),
        ("run shop_app:app --config gone.toml", "settings file gone.toml: No such file"),
        ("run shop_app:app --backend kafka", "kafka.bootstrap_servers is not set"),
        ("dispatcher shop_app:app", "kafka.bootstrap_servers is not set: give --kafka HOST:PORT"),
        ("worker shop_app:app", "without a Kafka, `cape run` does everything"),
        ("refresh shop_app:app", "kafka.bootstrap_servers is not set"),
        ("outbox shop_app:app", "kafka.bootstrap_servers is not set"),
        ("ping shop_app:app orders", "name one SUBJECT, or give --stdin"),
        ("ping shop_app:app orders s --stdin", "name one SUBJECT, or give --stdin"),
        ("ping shop_app:app orders --stdin --latest 3", "--latest belongs to one SUBJECT"),
        ("ping shop_app:app parcels s", "App 'shop' has no domain 'parcels'; it has orders"),
        ("topics destroy shop_app:app", "invalid choice: 'destroy'"),
        ("topics apply shop_app:app --replication 0", "'0' is not a whole number from 1 on"),
        ("demo --events none", "'none' is not a whole number from 1 on"),
        ("settings --set engine.source_calls_max=0", "[engine]: source_calls_max must be >= 1"),
        ("settings --set embedded.session_timeout_ms=1", "session_timeout_ms must be >= 100"),
        ("settings --set process.data_dir=", "data_dir is empty: name a folder"),
        ("settings --set process.state_memory_bytes=9", "state_memory_bytes must be >= 8388608"),
        ("backfill shop_app:app orders ledger --from 0", "cape backfill needs a reason"),
        ("cursor skip shop_app:app orders s ledger --event 1", "cape cursor skip needs a reason"),
        ("settings --set worker.concurrency=0", "[worker]: concurrency must be 1 to 1000"),
        ("processor", "the following arguments are required: --pool"),
        ("processor --pool night", "invalid choice: 'night'"),
        ("processor --pool bulk --set processor.grace_ms=9", "grace_ms must be >= 25000"),
        ("processor gone:work --pool bulk", "loading it raised ModuleNotFoundError"),
        ("processor shop_app:number --pool bulk", "is a int, not an Equipment"),
        ("publisher shop_app:app --publish slow", "kafka.bootstrap_servers is not set"),
        ("queues shred", "invalid choice: 'shred'"),
        ("queues peek", "peek takes one queue, such as ingest-dead"),
        ("queues purge ingest-dead", "say --yes if that is meant"),
    ],
)
def test_cape_refuses_and_says_why_when_it_is_asked_wrongly(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(words.split())

    errors = capsys.readouterr().err
    assert said in errors
    assert errors.splitlines()[-1].startswith("cape: ")
    assert code == 2


def test_cape_says_what_it_can_do_when_it_is_asked_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main([])

    assert code == 2
    assert "cape run shop.events:app" in capsys.readouterr().out


@pytest.mark.parametrize("command", [*COMMANDS, *VERBS])
def test_help_of_every_command_teaches_by_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--help"])

    text = capsys.readouterr().out
    assert left.value.code == 0
    assert f"  cape {command}" in text.split("example:")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["s", "--latest", "-1"], "cape: latest is negative: -1"),
        (["s", "--latest", "1.0"], "cape: latest must be a whole number, not '1.0'"),
        (["s", "--latest", "1_0"], "cape: latest must be a whole number, not '1_0'"),
        (["s", "--latest", "9223372036854775808"], "cape: latest is beyond int64"),
        (["s", "--latest", ""], "cape: latest must be a whole number, not ''"),
        ([""], "cape: subject is empty"),
        (["y" * 1_025], "cape: subject has 1025 bytes, more than 1024"),
        (["\udcff"], "cape: subject is not valid UTF-8 text"),
    ],
)
def test_ping_of_what_is_no_subject_or_sequence_id_is_asked_wrongly(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["topics", "apply", "shop_app:app"])
    capsys.readouterr()

    code = main(["ping", "shop_app:app", "orders", *words])

    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert told.err.splitlines()[-1].startswith(said)


@pytest.mark.parametrize("folder", ["shop_app.py", "shop_app.py/below"])
def test_demo_names_a_folder_it_cannot_work_in(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["demo", "--events", "5", "--data", folder])

    assert code == 1
    assert f"cape: cannot work in {folder}: " in capsys.readouterr().err


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    import cape_stream

    with pytest.raises(SystemExit):
        main(["--version"])

    assert capsys.readouterr().out == f"cape_stream {cape_stream.__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom cape_stream.cli import main\n"
        "try:\n    main(['run', '--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )

    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout

    assert told.splitlines()[-1] == "[]"


def test_settings_command_shows_values_origins_and_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("cape.toml").write_text('[kafka]\nbootstrap_servers = "b:1"\n"sasl.password" = "s3cret"\n')
    monkeypatch.setenv("CAPE_REFRESH_LIMIT", "7")

    code = main(["settings", "--set", "worker.concurrency=5", "--data", "/tmp/d"])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert "worker.concurrency = 5  # command line" in lines
    assert 'process.data_dir = "/tmp/d"  # command line' in lines
    assert "refresh.limit = 7  # CAPE_REFRESH_LIMIT" in lines
    assert 'kafka.bootstrap_servers = "b:1"  # cape.toml' in lines
    assert 'kafka.sasl.password = "<hidden>"  # cape.toml' in lines
    assert "engine.commit_interval_ms = 100  # default" in lines


def test_settings_command_explains_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    main(["settings", "--explain"])

    text = capsys.readouterr().out
    assert "engine.commit_interval_ms = 100  # default\n    How often state goes out." in text
