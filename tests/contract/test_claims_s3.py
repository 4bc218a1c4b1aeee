"""What only claims in a bucket have: versions, prefixes and refusals."""

from datetime import timedelta
from pathlib import Path

import boto3
import pytest

from cape_stream.adapters.claims_s3 import S3Claims
from cape_stream.adapters.claims_s3 import store as module
from cape_stream.errors import Retry
from tests.contract.claims_implementations import s3_claims

NAME = "a" * 64


def test_claim_is_sent_again_only_once_it_is_a_day_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_claims(tmp_path, monkeypatch) as claims:
        client, bucket = boto3.client("s3"), claims.store.place.split("/")[2]
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})

        def versions() -> int:
            return len(client.list_object_versions(Bucket=bucket).get("Versions", []))

        for _ in range(3):
            claims.store.put(NAME, b"one")
        assert versions() == 1

        monkeypatch.setattr(module, "YOUNG", timedelta(days=-1))
        claims.store.put(NAME, b"one")
        assert versions() == 2


def test_bucket_without_a_prefix_is_used_from_its_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_claims(tmp_path, monkeypatch) as claims:
        bucket = claims.store.place.split("/")[2]
        S3Claims(bucket, "").put(NAME, b"one")

        keys = [each["Key"] for each in boto3.client("s3").list_objects(Bucket=bucket)["Contents"]]
        assert keys == [NAME]


def test_server_that_is_away_is_to_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_claims(tmp_path, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        monkeypatch.setattr(module, "TRIES", 1)
        away = S3Claims("any", "")

        with pytest.raises(Retry, match="s3://any/"):
            away.put(NAME, b"one")
        with pytest.raises(Retry, match="s3://any/"):
            away.get(NAME)
