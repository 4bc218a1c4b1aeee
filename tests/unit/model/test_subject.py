from typing import Any
from zlib import crc32

import pytest

from cape_stream.model.subject import (
    SUBJECT_BYTES_MAX,
    BadSubjectError,
    check_subject,
    partition_of,
    subject_of_key,
)


@pytest.mark.parametrize("subject", ["a", " ", "a\x00b", "é" * 512, "🚀" * 256, "k" * 1_024])
def test_check_subject_accepts_and_changes_nothing(subject: str) -> None:
    assert check_subject(subject) is subject
    assert subject_of_key(subject.encode()) == subject


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("", "subject is empty"),
        ("k" * 1_025, "subject has 1025 bytes, more than 1024"),
        ("🚀" * 257, "subject has 1028 bytes, more than 1024"),
        ("\ud800", "subject is not valid UTF-8 text: surrogates not allowed"),
        (None, "subject must be a string, not NoneType"),
        (b"a", "subject must be a string, not bytes"),
        (7, "subject must be a string, not int"),
    ],
)
def test_check_subject_refuses_naming_the_fault(subject: Any, reason: str) -> None:
    with pytest.raises(BadSubjectError) as caught:
        check_subject(subject)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, "record has no key"),
        (b"", "subject is empty"),
        (b"k" * 1_025, "subject has 1025 bytes, more than 1024"),
        (b"a\xff", "subject is not UTF-8: invalid start byte at 1"),
        (b"caf\xc3", "subject is not UTF-8: unexpected end of data at 3"),
        (b"\xed\xa0\x80", "subject is not UTF-8: invalid continuation byte at 0"),
    ],
)
def test_subject_of_key_refuses_naming_the_fault(key: bytes | None, reason: str) -> None:
    with pytest.raises(BadSubjectError) as caught:
        subject_of_key(key)
    assert str(caught.value) == reason


def test_subjects_that_look_alike_stay_apart() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"

    assert subject_of_key(composed.encode()) != subject_of_key(decomposed.encode())
    assert subject_of_key(b"acct-1 ") != subject_of_key(b"acct-1")


def test_partition_of_is_the_consistent_partitioner_of_librdkafka() -> None:
    keys = [b"acct-%d" % number for number in range(1_000)]

    assert [partition_of(key, 6) for key in keys] == [crc32(key) % 6 for key in keys]
    assert {partition_of(key, 6) for key in keys} == set(range(6))
    assert SUBJECT_BYTES_MAX == 1_024
