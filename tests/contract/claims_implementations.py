"""Every claim store, with what a test may do to it from outside."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from cape_stream.adapters.claims_file import FileClaims
from cape_stream.adapters.claims_s3 import S3Claims
from cape_stream.ports.claims import ClaimStore

DAY_S = 86_400


@dataclass
class ClaimsUnderTest:
    """One store."""

    store: ClaimStore
    again: Callable[[], ClaimStore]
    """Opens the same place as another process would."""
    names: Callable[[], list[str]]
    """Everything that is kept there."""
    break_down: Callable[[], None]
    """Makes every further call fail."""


@contextmanager
def file_claims(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClaimsUnderTest]:
    root = folder / "claims" / "of-app"
    moved = folder / "moved"

    def names() -> list[str]:
        files = [path for path in root.rglob("*") if path.is_file()]
        return sorted("".join(path.relative_to(root).parts) for path in files)

    def break_down() -> None:
        root.rename(moved)
        root.write_bytes(b"a file where the folder was")

    yield ClaimsUnderTest(FileClaims(root), lambda: FileClaims(root), names, break_down)


@contextmanager
def s3_claims(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClaimsUnderTest]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_CONFIG_FILE": str(folder / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    bucket = f"claims-{os.getpid()}-{time.monotonic_ns()}"
    place = {"LocationConstraint": "eu-central-1"}
    client.create_bucket(Bucket=bucket, CreateBucketConfiguration=place)

    def names() -> list[str]:
        found = client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return sorted(each["Key"].removeprefix("of/app/") for each in found)

    def break_down() -> None:
        for each in client.list_objects_v2(Bucket=bucket).get("Contents", []):
            client.delete_object(Bucket=bucket, Key=each["Key"])
        client.delete_bucket(Bucket=bucket)

    try:
        store = S3Claims(bucket, "of/app")
        yield ClaimsUnderTest(store, lambda: S3Claims(bucket, "of/app"), names, break_down)
        store.close()
    finally:
        server.stop()


CLAIMS = [pytest.param(file_claims, id="file"), pytest.param(s3_claims, id="s3")]
