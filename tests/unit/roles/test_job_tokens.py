"""Job tokens: what they vouch for, and everything they must not."""

from dataclasses import replace
from pathlib import Path

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.model.status import EventFailure, FailureClass, JobStatus
from cape_stream.realtime.keys import GrantKeys, rotate
from cape_stream.roles.job_tokens import LATE_MS, TIMEOUTS, JobTokens, TokenFault
from tests.integration.gateway_stage import token_of
from tests.waiting import eventually

OLD, NEW, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))
JOB = Job(
    "1-4-9",
    *("orders", 1, "order-7", "prices", "price", "node", 4, 2, 1_000_000, 30_000),
    [Event(5, b"{}"), Event(9, b"{}")],
)
EXPIRES_MS = 1_000_000 + TIMEOUTS * 30_000 + LATE_MS


def tokens(*keys: tuple[str, bytes], app: str = "shop") -> JobTokens:
    return JobTokens(app, GrantKeys(dict(keys or [("k1", OLD)])))


def report(**changes: object) -> JobStatus:
    status = JobStatus(
        JOB.job_id, JOB.domain, JOB.partition, JOB.subject, JOB.topology, JOB.lambda_id, 4, 2
    )
    for name, value in {"done": (5, 9), **changes}.items():
        setattr(status, name, value)
    return status


def test_token_vouches_for_its_job_until_it_expires() -> None:
    token = tokens().sign(JOB)

    assert tokens().fault(token, report(), EXPIRES_MS - 1) is None
    assert tokens().fault(token, report(), EXPIRES_MS) is TokenFault.EXPIRED


@pytest.mark.parametrize(
    "changes",
    [
        {"job_id": "1-4-8"},
        {"domain": "carts"},
        {"subject": "order-8"},
        {"topology": "price"},
        {"lambda_id": "prices"},
        {"partition": 0},
        {"epoch": 5},
        {"attempt": 1},
        {"done": (5, 10)},
        {"done": (4,)},
        {"done": (), "outputs": {10: b"1"}},
        {"done": (), "failures": [EventFailure(4, FailureClass.BUG)]},
        # Two names that would run together the same way without their lengths.
        {"topology": "pricesprice", "lambda_id": ""},
    ],
)
def test_token_of_another_job_or_for_other_events_is_foreign(changes: dict[str, object]) -> None:
    token = tokens().sign(JOB)

    assert tokens().fault(token, report(**changes), 0) is TokenFault.FOREIGN


def test_token_of_another_app_is_foreign() -> None:
    token = tokens(app="bank").sign(JOB)

    assert tokens().fault(token, report(), 0) is TokenFault.FOREIGN


def test_old_key_verifies_until_it_is_gone_and_a_strangers_key_never() -> None:
    old = tokens(("k1", OLD)).sign(JOB)
    strange = tokens(("k1", OTHER)).sign(JOB)

    assert tokens(("k2", NEW), ("k1", OLD)).fault(old, report(), 0) is None
    assert tokens(("k2", NEW)).fault(old, report(), 0) is TokenFault.FORGED
    assert tokens(("k1", OLD)).fault(strange, report(), 0) is TokenFault.FORGED


def test_rotated_file_is_read_again_by_whoever_meets_the_new_key(tmp_path: Path) -> None:
    file = str(tmp_path / "keys")
    rotate(file)
    before = JobTokens("shop", GrantKeys.from_file(file))
    old = before.sign(JOB)

    rotate(file)
    new = JobTokens("shop", GrantKeys.from_file(file)).sign(JOB)

    assert new.partition(".")[0] != old.partition(".")[0]
    # The file is looked at once a second at most.
    eventually(lambda: before.fault(new, report(), 0) is None)
    assert before.fault(old, report(), 0) is None


def test_every_changed_character_is_a_forgery() -> None:
    token = tokens().sign(JOB)

    for at in range(len(token)):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        assert tokens().fault(changed, report(), 0) is TokenFault.FORGED, at


@pytest.mark.parametrize("token", ["x", ".", "..", "k1..", "k1.AAAA.AAAA", "k1." + "A" * 300, "ü"])
def test_what_is_no_token_is_a_forgery(token: str) -> None:
    assert tokens().fault(token, report(), 0) is TokenFault.FORGED


@pytest.mark.parametrize("token", [None, ""])
def test_no_token_is_missing(token: str | None) -> None:
    assert tokens().fault(token, report(), 0) is TokenFault.MISSING


@pytest.mark.parametrize("headers", [{}, {"n": "v"}])
def test_signed_job_is_read_by_workers_and_by_avro_libraries(headers: dict[str, str]) -> None:
    job = replace(JOB, events=[Event(5, b"{}", headers), Event(9, b"", headers)])
    codec = AvroCodec(sign=tokens().sign)

    first, second = codec.encode_job(job), codec.encode_job(job)

    assert first == second
    assert codec.decode_job(first, "node") == AvroCodec().decode_job(first, "node") == job
    assert token_of(first) == tokens().sign(job)
    assert token_of(AvroCodec().encode_job(job)) is None


def test_job_with_unusual_fields_carries_its_token_too() -> None:
    job = replace(JOB, subject="s" * 1_000, job_id="j" * 200)

    assert token_of(AvroCodec(sign=tokens().sign).encode_job(job)) == tokens().sign(job)
