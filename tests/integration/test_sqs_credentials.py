"""Wrong credentials: a worker backs off, says so, and recovers without a restart."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.integration.sqs_fleet import MAIL_QUEUES, PATIENCE_S, own_moto, until
from tests.tidy.tree import PROJECT

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def strict_moto(aws_credentials: None) -> Iterator[str]:
    """A moto of its own, for who may do what is a matter of the whole process."""
    with own_moto() as (endpoint, _):
        yield endpoint


def key_of_a_user(endpoint: str) -> tuple[str, str]:
    """A user who may do anything with queues; from now on nobody else may."""
    iam = boto3.client("iam", endpoint_url=endpoint, region_name="us-east-1")
    sqs = boto3.client("sqs", endpoint_url=endpoint, region_name="us-east-1")
    for name in MAIL_QUEUES:
        sqs.create_queue(QueueName=f"cape-{name}")
    iam.create_user(UserName="worker")
    statement = {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_user_policy(UserName="worker", PolicyName="queues", PolicyDocument=policy)
    key = iam.create_access_key(UserName="worker")["AccessKey"]
    for client in (iam, sqs):
        client.close()
    request = urllib.request.Request(
        f"{endpoint}/moto-api/reset-auth",
        data=b"0",
        headers={"Content-Type": "text/plain"},
        method="POST",
    )
    urllib.request.urlopen(request, timeout=10).close()
    return key["AccessKeyId"], key["SecretAccessKey"]


def write_key(file: Path, key: str, secret: str) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    partial.replace(file)


def test_worker_waits_for_credentials_that_are_right(strict_moto: str, tmp_path: Path) -> None:
    key, secret = key_of_a_user(strict_moto)
    credentials = tmp_path / "credentials"
    write_key(credentials, "AKIAWRONG0WRONG0WRON", "wrong")
    environment: dict[str, Any] = os.environ | {"AWS_SHARED_CREDENTIALS_FILE": str(credentials)}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "cape_stream", "processor", "--pool", "general"]
    command += ["--endpoint-url", strict_moto, "--data", str(tmp_path / "data")]
    command += ["--set", "processor.wait_s=1", "--set", "processor.grace_ms=8000"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=output
        )
    try:
        until(lambda: "check the credentials" in log.read_text())
        assert worker.poll() is None
        assert secret not in log.read_text()

        write_key(credentials, key, secret)
        until(lambda: "pool general drains" in log.read_text())

        worker.terminate()
        report = json.loads(worker.communicate(timeout=PATIENCE_S)[0].splitlines()[-1])
        assert worker.returncode == 0
        assert report["adds_up"]
    finally:
        worker.kill()
        worker.communicate()
