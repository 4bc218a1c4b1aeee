"""The status gateway, by HTTP, against a real dispatcher on a real log."""

import json
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.adapters.http.gateway_openapi import OPENAPI
from cape_stream.model.job import Job
from cape_stream.model.ping import Ping
from cape_stream.queues.messages import jobs as job_messages
from cape_stream.roles.gateway_items import PING_FIELDS, STATUS_FIELDS
from tests.integration import run_app
from tests.integration.gateway_stage import QUEUE, GatewayStage, status_of
from tests.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
REPORTS, PINGS = "/v1/job-statuses", "/v1/pings"
CURL = ("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}")
AVRO = "application/vnd.cape.avro"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[GatewayStage]:
    limits = {"gateway.body_bytes_max": "20000", "gateway.batch_max": "50"}
    with GatewayStage(tmp_path, **limits, **{"gateway.body_timeout_ms": "500"}) as stage:
        yield stage


def one_job(stage: GatewayStage, *payloads: bytes) -> tuple[Job, str | None]:
    for number, payload in enumerate(payloads or (b"{}",), 1):
        stage.source.append("order-7", number, payload)
    told = stage.post(PINGS, {"subject": "order-7"})
    assert (told.status, told.fields) == (200, {"verdicts": [{"verdict": "accepted"}]})
    return stage.jobs(1)[0]


def framed(*records: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(record)) + record for record in records)


def figures(stage: GatewayStage, name: str) -> int:
    return stage.gateway.figures().get(name, 0)


def test_ping_and_report_over_http_deliver_an_event(stage: GatewayStage) -> None:
    job, token = one_job(stage)

    told = stage.post(REPORTS, status_of(job, token))

    assert told.fields == {"verdicts": [{"verdict": "accepted"}]}
    assert stage.statuses() == 1, "the answer came after the acknowledgement"
    eventually(lambda: stage.events_done == 1)
    assert (figures(stage, "pings_accepted"), figures(stage, "statuses_accepted")) == (1, 1)


def test_replayed_report_is_taken_again_and_changes_nothing(stage: GatewayStage) -> None:
    job, token = one_job(stage)

    answers = [stage.post(REPORTS, status_of(job, token)).status for _ in range(3)]

    assert answers == [200, 200, 200]
    eventually(lambda: stage.events_done == 1)
    assert len(list(stage.records())) == 1, "and nothing is issued again"


def test_half_a_bad_batch_is_judged_item_by_item(
    stage: GatewayStage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    job, token = one_job(stage)
    good = status_of(job, token)
    assert token is not None
    batch: list[object] = [
        good,
        status_of(job, None),
        status_of(job, token[:-1] + ("A" if token[-1] != "A" else "B")),
        status_of(job, token, subject="order-8"),
        status_of(job, token, done=[99]),
        status_of(job, token, attempt="1"),
        status_of(job, token, kind="finished"),
        status_of(job, token, failed=[]),
        {"token": token},
        7,
        status_of(job, token, kind="heartbeat", done=[]),
    ]

    told = stage.post(REPORTS, batch)

    assert told.status == 207
    assert told.codes == [
        *("", "missing_token", "forged_token", "foreign_token", "foreign_token"),
        *("bad_item", "bad_item", "bad_item", "bad_item", "bad_item", ""),
    ]
    assert stage.statuses() == 2
    assert figures(stage, "refused_forged_token") == 1
    assert figures(stage, "refused_foreign_token") == 2
    assert figures(stage, "gateway_refused") == 9
    reasons = [each.get("reason", "") for each in told.fields["verdicts"]]
    assert "attempt must be an integer, not '1'" in reasons[5]
    assert "has no field 'failed'; it has attempt," in reasons[7]
    assert token not in json.dumps(told.fields), "no answer repeats a secret"
    assert token not in caplog.text, "and no log line"


def test_expired_token_is_refused_and_counted(stage: GatewayStage) -> None:
    job, token = one_job(stage)
    # The same job an age later: the clock of the gateway goes ahead.
    clock = stage.backend.clock
    stage.backend.clock = type(
        "Later", (), {"now_ms": lambda _: clock.now_ms() + 10**9, "sleep_ms": clock.sleep_ms}
    )()

    told = stage.post(REPORTS, status_of(job, token))

    assert (told.status, told.codes) == (422, ["expired_token"])
    assert (stage.statuses(), figures(stage, "refused_expired_token")) == (0, 1)


def test_avro_reports_and_pings_are_taken_in_batches(stage: GatewayStage) -> None:
    job, token = one_job(stage)
    codec = AvroCodec()
    unsigned = codec.encode_status(stage_status(job))
    assert token is not None
    signed = unsigned[:-1] + b"\x02" + avro_text(token)

    told = stage.post(REPORTS, framed(signed, unsigned, b"junk", signed[:-1], b""), AVRO)
    assert (told.status, told.codes) == (
        207,
        ["", "missing_token", "bad_item", "bad_item", "bad_item"],
    )

    pings = framed(codec.encode_ping(Ping("a", 1)), codec.encode_ping(Ping("b", None)), b"\x00")
    told = stage.post(f"{PINGS}?domain=orders", pings, AVRO)
    assert (told.status, told.codes) == (207, ["", "", "bad_item"])
    eventually(lambda: stage.events_done == 1)


def stage_status(job: Job) -> Any:
    from cape_stream.model.status import JobStatus

    return JobStatus(
        job.job_id,
        *(job.domain, job.partition, job.subject, job.topology, job.lambda_id),
        *(job.epoch, job.attempt),
        done=[event.sequence for event in job.events],
    )


def avro_text(text: str) -> bytes:
    size, octets = len(text) * 2, b""
    while size > 127:
        octets += bytes([size & 127 | 128])
        size >>= 7
    return octets + bytes([size]) + text.encode()


@pytest.mark.parametrize(
    ("path", "body", "kind", "status", "code"),
    [
        (REPORTS, b"", "application/json", 400, "empty"),
        (REPORTS, b"[]", "application/json", 400, "empty"),
        (REPORTS, b"{", "application/json", 400, "not_json"),
        (REPORTS, b"\xff\xfe", "application/json", 400, "not_json"),
        (REPORTS, b"NaN", "application/json", 400, "not_json"),
        (REPORTS, b"[" * 19_000, "application/json", 400, "not_json"),
        (REPORTS, b"1" * 19_000, "application/json", 400, "not_json"),
        (REPORTS, b"x" * 20_001, "application/json", 413, "too_large"),
        (REPORTS, json.dumps([1] * 51).encode(), "application/json", 413, "too_many"),
        (REPORTS, b"{}", "text/plain", 415, "content_type"),
        (REPORTS, b"{}", None, 415, "content_type"),
        (PINGS, b"{}", "application/x-www-form-urlencoded", 415, "content_type"),
        (REPORTS, b"\x00\x00", AVRO, 400, "cut_off"),
        (REPORTS, b"\xff\xff\xff\xff\x00", AVRO, 400, "cut_off"),
    ],
)
def test_bad_body_is_refused_as_a_whole(
    stage: GatewayStage, path: str, body: bytes, kind: str | None, status: int, code: str
) -> None:
    told = stage.post(path, body, kind)

    assert (told.status, told.fields["code"]) == (status, code)
    assert figures(stage, f"refused_{code}") == 1
    assert stage.post(PINGS, {"subject": "a"}).status == 200, "the next request is served"


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"subject": ""}, "subject is empty"),
        ({"subject": "s" * 1_025}, "more than 1024"),
        ({"subject": 7}, "must be a string"),
        ({"subject": "a\ud800"}, "not valid UTF-8"),
        ({"subject": "a", "latest": -1}, "latest is negative"),
        ({"subject": "a", "latest": 2**63}, "beyond int64"),
        ({"subject": "a", "latest": True}, "must be an integer"),
        ({"subject": "a", "domain": "carts"}, "domain must be one of orders"),
        ({"subject": "a", "domain": None}, "domain must be a text"),
        ({"subjects": ["a"]}, "has no field 'subjects'"),
        ("a", "must be a JSON object"),
    ],
)
def test_bad_ping_says_what_is_wrong(stage: GatewayStage, item: object, reason: str) -> None:
    told = stage.post(PINGS, [item, {"subject": "a", "latest": None}])

    assert (told.status, told.codes) == (207, ["bad_item", ""])
    assert reason in told.fields["verdicts"][0]["reason"]


def test_endless_body_and_one_that_never_comes_are_cut_off(stage: GatewayStage) -> None:
    head = "POST /v1/pings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for rest, status in (
        ("Content-Length: 99\r\n\r\n{", b"408"),
        ("Transfer-Encoding: chunked\r\n\r\n" + ("1000\r\n" + " " * 4096 + "\r\n") * 6, b"413"),
    ):
        with socket.create_connection(("127.0.0.1", stage.gateway.port), timeout=20) as link:
            link.sendall((head + rest).encode())

            assert link.recv(100).split()[1] == status


def test_pings_ask_for_the_secret_where_one_is_set(tmp_path: Path) -> None:
    secret = "0123456789abcdef"
    with GatewayStage(tmp_path, **{"gateway.ping_token": secret}) as stage:
        ping = {"subject": "a"}
        shown = [
            {},
            {"Authorization": "Bearer 0123456789abcdeF"},
            {"Authorization": f"Bearer {secret}"},
        ]
        answers = [stage.post(PINGS, ping, headers=each).status for each in shown]

    assert answers == [401, 401, 200]


def test_document_agrees_with_routes_and_fields(stage: GatewayStage) -> None:
    schemas = OPENAPI["components"]["schemas"]

    assert set(schemas["JobStatus"]["properties"]) == STATUS_FIELDS
    assert set(schemas["Ping"]["properties"]) == PING_FIELDS
    for path, methods in OPENAPI["paths"].items():
        for method in ("get", "post", "put"):
            asked = subprocess.run(
                [*CURL, "-X", method.upper(), stage.url + path],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            assert (asked != "405") == (method in methods), (path, method, asked)
    shown = subprocess.run(
        ["curl", "-sS", f"{stage.url}/openapi.json"], capture_output=True, check=True
    )
    assert json.loads(shown.stdout) == OPENAPI


def test_curl_of_the_page_pings(stage: GatewayStage) -> None:
    [command] = re.findall(r"^(curl .*/v1/pings .*\\\n .*)$", PAGE.read_text(), re.MULTILINE)

    shown = subprocess.run(
        ["bash", "-c", command.replace("http://127.0.0.1:8092", stage.url)],
        capture_output=True,
        check=True,
        text=True,
    )

    assert shown.stdout in PAGE.read_text()


def test_javascript_worker_of_the_page_does_a_job(stage: GatewayStage, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the worker of docs/gateway.md was NOT run")
    one_job(stage, b'{"cents": 625}', b"not json")
    [program] = re.findall(r"^```javascript\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "worker.js").write_text(program)
    bodies = [
        job_messages.TYPE.outgoing(job_messages.in_place(QUEUE, record)).body
        for record in stage.records()
    ]

    done = subprocess.run(
        [node, str(tmp_path / "worker.js")],
        input="\n".join(bodies),
        env={"GATEWAY": stage.url},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert done.stdout.startswith('200 {"verdicts":[{"verdict":"accepted"}]}'), done.stderr
    eventually(lambda: stage.events_done == 1)
    eventually(lambda: stage.dispatcher.figures()["events_failed"] == 1)


@pytest.mark.timeout(120)
def test_one_process_on_the_embedded_log_serves_the_gateway_too(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    keys_file = str(tmp_path / "job-keys")
    run_app.fill(tmp_path, subjects=1, events_each=2)
    made = run_app.start(tmp_path, "gateway", "rotate-keys", "--keys-file", keys_file)
    assert made.wait(60) == 0
    process = run_app.start(
        tmp_path,
        *("run", "tests.integration.run_app:app", "--data", str(tmp_path / "data")),
        *("--set", f"gateway.port={port}", "--set", f"gateway.keys_file={keys_file}"),
    )
    command = [*CURL, "--json", '{"subject": "order-0"}', f"http://127.0.0.1:{port}{PINGS}"]

    def answer() -> str:
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert process.poll() is None, "it still runs"
        return asked.stdout

    eventually(lambda: answer() == "200")
    run_app.wait_for(tmp_path, ["ledger", "audit"], 2, process)
    assert run_app.end(process)[0] == 0
