"""Where settings come from, which one wins, and what is refused."""

import json
from pathlib import Path

import pytest

from cape_stream.roles.settings import SECTION_NAMES, Settings, SettingsError
from cape_stream.roles.settings_explained import explanations
from cape_stream.roles.settings_loading import as_json, load_settings, shown_settings
from cape_stream.runtime.settings import EngineSettings
from cape_stream.runtime.worker_handler import Executor


def written(folder: Path, text: str) -> str:
    path = folder / "some.toml"
    path.write_text(text)
    return str(path)


def test_settings_are_the_defaults_when_nobody_says_anything() -> None:
    settings = load_settings({}, {})

    assert settings.engine == EngineSettings()
    assert settings.process.data_dir == "./cape-data"
    assert settings.worker(("a", "b")).queues == ("a", "b")


def test_settings_of_a_flag_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path,
) -> None:
    file = written(
        tmp_path,
        "[engine]\ncommit_interval_ms = 1\npoll_records_max = 2\nidle_poll_ms = 3\n",
    )
    environment = {"CAPE_ENGINE_COMMIT_INTERVAL_MS": "10", "CAPE_ENGINE_POLL_RECORDS_MAX": "20"}

    engine = load_settings({"engine.commit_interval_ms": "100"}, environment, file).engine

    assert (engine.commit_interval_ms, engine.poll_records_max, engine.idle_poll_ms) == (
        100,
        20,
        3,
    )


def test_settings_come_from_cape_toml_in_the_working_directory_unless_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cape.toml").write_text("[worker]\nconcurrency = 3\n")
    other = written(tmp_path, "[worker]\nconcurrency = 4\n")

    found = [
        load_settings({}, environment, file).worker(("q",)).concurrency
        for environment, file in (({}, None), ({"CAPE_CONFIG": other}, None), ({}, other))
    ]

    assert found == [3, 4, 4]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("worker.concurrency", "1_000", 1_000),
        ("worker.inline", "false", False),
        ("worker.executor", "process", Executor.PROCESS),
        ("process.log_level", "debug", "debug"),
    ],
)
def test_settings_turn_texts_into_what_their_field_wants(
    name: str, text: str, value: object
) -> None:
    section, _, field = name.partition(".")
    settings = load_settings({name: text}, {})

    made = settings.worker(("q",)) if section == "worker" else settings.process
    assert getattr(made, field) == value


def test_settings_take_a_list_of_queues_from_a_text_and_from_a_file(tmp_path: Path) -> None:
    file = written(tmp_path, '[worker]\nqueues = ["b"]\n')

    assert load_settings({"worker.queues": "a, b"}, {}).worker(("a", "b")).queues == ("a", "b")
    assert load_settings({}, {}, file).worker(("a", "b")).queues == ("b",)


@pytest.mark.parametrize(
    ("flags", "environment", "text", "said"),
    [
        ({}, {}, "[engin]\n", "there is no section 'engin'; did you mean 'engine'?"),
        (
            {},
            {},
            "[engine]\ncommit_ms = 1\n",
            "[engine] has no 'commit_ms'; did you mean 'commit_interval_ms'? it knows busy_poll_ms",
        ),
        ({}, {}, "[worker]\nconcurency = 1\n", "did you mean 'concurrency'?"),
        ({}, {}, "[worker]\nconcurrency = true\n", "must be a whole number, not True"),
        ({}, {}, "[worker]\nconcurrency = 1.0\n", "must be a whole number, not 1.0"),
        ({}, {}, "[worker]\nqueues = 3\n", "worker.queues must be a list of names, not 3"),
        ({}, {}, "[worker]\nqueues = []\n", "worker.queues is empty"),
        ({}, {}, "[process]\ndata_dir = 3\n", "process.data_dir must be a text, not 3"),
        ({}, {}, "concurrency = 3\n", "concurrency stands outside a table"),
        ({}, {}, "[worker\n", "is not TOML"),
        ({}, {"CAPE_ENGINE_FOO": "1"}, "", "CAPE_ENGINE_FOO: [engine] has no 'foo'"),
        ({}, {"CAPE_WORKER_INLINE": "yes"}, "", "worker.inline must be true or false, not 'yes'"),
        (
            {"worker.concurrency": "many"},
            {},
            "",
            "command line: worker.concurrency must be a whole",
        ),
        ({"worker.concurrency": "-1"}, {}, "", "worker.concurrency must be >= 0, not -1"),
        ({"worker.concurrency": "0"}, {}, "", "[worker]: concurrency must be 1 to 1000, not 0"),
        ({"process.log_level": "loud"}, {}, "", "must be debug or info or warning or error"),
        ({"refresh.limit": "0"}, {}, "", "[refresh]: limit must be >= 1, not 0"),
        ({"kafka.session_timeout_ms": "9"}, {}, "", "kafka.bootstrap_servers is not set"),
    ],
)
def test_settings_refuse_what_they_do_not_know_and_say_where_it_stands(
    tmp_path: Path, flags: dict[str, object], environment: dict[str, str], text: str, said: str
) -> None:
    file = written(tmp_path, text)

    with pytest.raises(SettingsError) as caught:
        load_settings(flags, environment, file)

    assert said in caught.value.reason


def test_settings_name_the_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"gone\.toml: No such file"):
        load_settings({}, {}, str(tmp_path / "gone.toml"))


def test_settings_leave_other_peoples_variables_alone() -> None:
    assert load_settings({}, {"CAPE_TOWN": "1", "PATH": "/bin"}).given == {}


def test_settings_refuse_a_queue_the_app_does_not_use() -> None:
    settings = load_settings({"worker.queues": "fast"}, {})

    with pytest.raises(SettingsError, match="names 'fast', which no handler of the App uses"):
        settings.worker(("general", "slow"))


KAFKA = """
[kafka]
"bootstrap.servers" = "broker:9092"
session_timeout_ms = 9000
security.protocol = "SASL_SSL"
"sasl.username" = "shop"
sasl.password = "from-file"
"enable.ssl.certificate.verification" = false
"""


def test_settings_pass_the_clients_own_names_through_to_kafka(tmp_path: Path) -> None:
    environment = {"CAPE_KAFKA_SASL_PASSWORD": "s3cret"}

    kafka = load_settings({}, environment, written(tmp_path, KAFKA)).kafka

    assert kafka.bootstrap_servers == "broker:9092"
    assert kafka.session_timeout_ms == 9_000
    assert kafka.extra == {
        "security.protocol": "SASL_SSL",
        "sasl.username": "shop",
        "sasl.password": "s3cret",
        "enable.ssl.certificate.verification": "false",
    }


@pytest.mark.parametrize(
    "name", ["sasl.password", "ssl.key.pem", "sasl.oauthbearer.config", "some.new.secret"]
)
def test_settings_never_show_a_secret(tmp_path: Path, name: str) -> None:
    settings = load_settings({f"kafka.{name}": "s3cret"}, {"CAPE_KAFKA_BOOTSTRAP_SERVERS": "b:1"})

    shown = {each.name: each for each in shown_settings(settings)}

    assert shown[f"kafka.{name}"].value == "<hidden>"
    assert shown[f"kafka.{name}"].origin == "command line"
    assert shown["kafka.bootstrap_servers"].value == "b:1"
    assert "s3cret" not in as_json(list(shown.values()))
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in repr(settings.kafka)


def test_settings_do_not_repeat_a_secret_that_has_the_wrong_type(tmp_path: Path) -> None:
    file = written(tmp_path, '[kafka]\n"sasl.password" = ["s3cret"]\n')

    with pytest.raises(SettingsError) as caught:
        load_settings({}, {}, file)

    assert "kafka.sasl.password must be a text" in caught.value.reason
    assert "s3cret" not in caught.value.reason


def test_settings_show_every_value_with_its_origin(tmp_path: Path) -> None:
    file = written(tmp_path, "[engine]\nidle_poll_ms = 3\n")
    settings = load_settings({"worker.queues": "a,b"}, {"CAPE_REFRESH_LIMIT": "7"}, file)

    shown = json.loads(as_json(shown_settings(settings)))

    assert shown["engine.idle_poll_ms"] == {"value": 3, "origin": file}
    assert shown["refresh.limit"] == {"value": 7, "origin": "CAPE_REFRESH_LIMIT"}
    assert shown["worker.queues"] == {"value": ["a", "b"], "origin": "command line"}
    assert shown["engine.commit_interval_ms"] == {"value": 100, "origin": "default"}


def test_settings_from_nothing_are_usable() -> None:
    assert Settings().refresh.interval_ms == 2_000


@pytest.mark.parametrize("section", SECTION_NAMES)
def test_every_setting_is_explained_where_it_is_declared(section: str) -> None:
    flags = {"kafka.bootstrap_servers": "b:1"}
    names = [
        name
        for each in shown_settings(load_settings(flags, {}))
        if (name := each.name.partition("."))[0] == section
    ]

    explained = explanations(section)

    assert names
    assert [name for _, _, name in names if len(explained.get(name, "")) < 20] == []
