from pathlib import Path

import pytest

from cape_stream.adapters.claims_file import FileClaims
from cape_stream.adapters.claims_s3 import S3Claims
from cape_stream.roles.claims import open_claims
from cape_stream.roles.settings import SettingsError
from cape_stream.roles.settings_loading import load_settings
from cape_stream.runtime.worker_settings import WorkerSettings


def settings_with(claims: str) -> WorkerSettings:
    return load_settings({"worker.claims": claims}, {}).worker(("general",))


def test_no_store_is_opened_unless_one_is_named() -> None:
    assert open_claims(WorkerSettings(queues=("general",))) is None


def test_folder_is_opened_and_made(tmp_path: Path) -> None:
    claims = open_claims(settings_with(f"file:{tmp_path}/a/b"))

    assert isinstance(claims, FileClaims)
    assert (tmp_path / "a" / "b").is_dir()
    assert claims.place == f"file:{tmp_path}/a/b"


@pytest.mark.parametrize(
    ("named", "place"),
    [
        ("s3://outputs", "s3://outputs/"),
        ("s3://outputs/", "s3://outputs/"),
        ("s3://outputs/flight-ops/eu/", "s3://outputs/flight-ops/eu"),
    ],
)
def test_bucket_is_opened_with_or_without_a_prefix(
    named: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    claims = open_claims(settings_with(named))

    assert isinstance(claims, S3Claims)
    assert claims.place == place
    claims.close()


@pytest.mark.parametrize("named", ["/folder", "file:folder", "file:/", "s3:bucket", "s3://", "x"])
def test_place_that_is_none_is_refused_at_start(named: str) -> None:
    with pytest.raises(SettingsError, match="claims must be file:/folder or s3://bucket/prefix"):
        settings_with(named)


@pytest.mark.parametrize("limit", [0, 1_000_001])
def test_limit_that_no_record_holds_is_refused_at_start(limit: int) -> None:
    with pytest.raises(SettingsError, match="output_bytes_max must be 1 to 1000000"):
        load_settings({"worker.output_bytes_max": limit}, {}).worker(("general",))
