"""What every `ClaimStore` must do."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from cape_stream.errors import Retry
from tests.contract.claims_implementations import CLAIMS, ClaimsUnderTest


@pytest.fixture(params=CLAIMS)
def claims(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClaimsUnderTest]:
    with request.param(tmp_path, monkeypatch) as under_test:
        yield under_test


def name_of(value: bytes) -> str:
    return sha256(value).hexdigest()


@pytest.mark.parametrize("value", [b"", b"\x00\xff" * 3, b"x" * 3_000_000], ids=["empty", "", "3M"])
def test_claim_comes_back_as_it_was_put(claims: ClaimsUnderTest, value: bytes) -> None:
    claims.store.put(name_of(value), value)

    assert claims.store.get(name_of(value)) == value
    assert claims.again().get(name_of(value)) == value


def test_claim_nobody_put_is_none(claims: ClaimsUnderTest) -> None:
    claims.store.put(name_of(b"one"), b"one")

    assert claims.store.get(name_of(b"two")) is None


def test_claim_put_again_is_stored_once(claims: ClaimsUnderTest) -> None:
    for store in (claims.store, claims.store, claims.again()):
        store.put(name_of(b"one"), b"one")

    assert claims.names() == [name_of(b"one")]


def test_claims_put_by_many_at_once_are_all_there(claims: ClaimsUnderTest) -> None:
    values = [b"value %d" % (number % 10) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda value: claims.store.put(name_of(value), value), values))

    assert claims.names() == sorted({name_of(value) for value in values})
    assert all(claims.store.get(name_of(value)) == value for value in values)


def test_store_that_broke_says_to_try_again_and_where_it_is(claims: ClaimsUnderTest) -> None:
    claims.store.put(name_of(b"one"), b"one")
    claims.break_down()

    with pytest.raises(Retry, match=claims.store.place):
        claims.store.put(name_of(b"two"), b"two")
    with pytest.raises(Retry, match=claims.store.place):
        claims.store.get(name_of(b"one"))
