"""`cape gateway` as a process, on a real broker."""

import json
import socket
import urllib.request
import uuid
from pathlib import Path

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.kafka import KafkaLog, KafkaSettings
from cape_stream.model.topic_names import TopicNames
from cape_stream.ports.log import TopicPartition
from tests.integration import run_app
from tests.integration.gateway_stage import status_of, token_of
from tests.waiting import eventually

APP = "tests.integration.run_app:app"


def post(port: int, path: str, body: object) -> object:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def listens(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.timeout(120)
def test_gateway_process_takes_a_ping_and_a_report_and_leaves_in_order(
    tmp_path: Path, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"runs-{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("RUN_APP_NAME", name)
    monkeypatch.setenv("CAPE_KAFKA_BOOTSTRAP_SERVERS", kafka_bootstrap)
    monkeypatch.setenv("CAPE_GATEWAY_KEYS_FILE", str(tmp_path / "job-keys"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run_app.fill(tmp_path, subjects=1, events_each=2, first=0)
    for words in (("gateway", "rotate-keys"), ("topics", "apply", APP)):
        process = run_app.start(tmp_path, *words)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    dispatcher = run_app.start(tmp_path, "dispatcher", APP, "--data", str(tmp_path / "data"))
    gateway = run_app.start(tmp_path, "gateway", APP, "--port", str(port))
    eventually(lambda: listens(port))
    accepted = {"verdicts": [{"verdict": "accepted"}]}

    assert post(port, "/v1/pings", {"subject": "order-0", "latest": 1}) == accepted
    log = KafkaLog(KafkaSettings(bootstrap_servers=kafka_bootstrap))
    reader, names = log.reader(), TopicNames(name)

    def records(topic: str) -> list[bytes]:
        found: list[bytes] = []
        for number in range(4):
            place = TopicPartition(topic, number)
            for batch in reader.read(place, *reader.watermarks(place)):
                found += [each.value for each in batch if each.value is not None]
        return found

    eventually(lambda: bool(records(names.jobs("general"))))
    record = records(names.jobs("general"))[0]
    job = AvroCodec().decode_job(record, "general")
    assert post(port, "/v1/job-statuses", status_of(job, token_of(record))) == accepted
    assert len(records(names.statuses("orders"))) == 1, "acknowledged before the answer"
    # The topology `audit` comes after `ledger`, so its job shows that the report has counted.
    eventually(lambda: len(records(names.jobs("general"))) == 2)

    reader.close()
    log.close()
    codes = [run_app.end(process)[0] for process in (gateway, dispatcher)]
    assert codes == [0, 0]
