"""`cape valkey doctor`, and the ways to reach a server: rights, TLS, sentinels."""

import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cape_stream.coordination.cache import Cache, CacheSettings
from cape_stream.coordination.codecs import JsonCodec
from cape_stream.coordination.doctor import examine
from cape_stream.coordination.locks import Locks
from cape_stream.coordination.settings import Place, ValkeySettings
from cape_stream.errors import Fatal, Retry
from tests.fault_proxy import FaultProxy
from tests.integration.coordination.conftest import OpenStore
from tests.valkey import LocalSentinel, LocalValkey
from tests.waiting import eventually

PAGE = Path(__file__).parents[3] / "docs" / "valkey.md"


def verdicts(open_store: OpenStore, url: str, **more: object) -> dict[str, str]:
    return {each.name: each.verdict for each in examine(open_store(url, **more))}


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cape_stream", "valkey", "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def test_doctor_finds_a_server_healthy(valkey_server: LocalValkey) -> None:
    valkey_server.ask("CONFIG", "SET", "maxmemory", str(1 << 30))

    done = doctor("--url", valkey_server.url, "--json")

    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert found["healthy"]
    assert {each["verdict"] for each in found["findings"]} == {"ok"}


def test_doctor_says_that_nobody_is_there() -> None:
    done = doctor("--url", "valkey://user:secret@127.0.0.1:1/0")

    assert done.returncode == 1
    assert "cannot be reached" in done.stdout
    assert "secret" not in done.stdout + done.stderr


def test_doctor_refuses_a_url_without_showing_its_password() -> None:
    done = doctor("--url", "http://user:secret@127.0.0.1:1/0")

    assert done.returncode == 1
    assert "scheme 'http'" in done.stderr
    assert "secret" not in done.stdout + done.stderr


WITHOUT_CLIENT = """
import sys
sys.modules["redis"] = None  # as if it were not installed
import cape_stream.roles.dispatcher, cape_stream.roles.worker
from cape_stream.cli import main
sys.exit(main(["valkey", "doctor"]))
"""


def test_doctor_says_that_the_client_is_missing_and_the_roles_need_none() -> None:
    words = [sys.executable, "-c", WITHOUT_CLIENT]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("cape: the Valkey client is not installed")


@pytest.mark.usefixtures("valkey_replica")
def test_documented_rights_are_enough(open_store: OpenStore, valkey_server: LocalValkey) -> None:
    words = re.search(r"ACL SETUSER (.*?)```", PAGE.read_text(), re.DOTALL)
    assert words is not None
    valkey_server.ask("ACL", "SETUSER", *words[1].replace("PASSWORD", "pw").split())

    url = f"valkey://cape:pw@127.0.0.1:{valkey_server.port}/0"
    found = verdicts(open_store, url, prefix="cape:1", replicas_min=1)

    assert [name for name, verdict in found.items() if verdict == "fail"] == []


def test_doctor_says_that_there_are_too_few_replicas(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    found = verdicts(open_store, valkey_server.url, replicas_min=1)

    assert [name for name, verdict in found.items() if verdict == "fail"] == ["cache"]


def test_doctor_names_what_rights_are_missing(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    rights = ("~*", "&*", "+@all", "-zadd")
    valkey_server.ask("ACL", "SETUSER", "cape", "on", ">pw", *rights)

    found = verdicts(open_store, f"valkey://cape:pw@127.0.0.1:{valkey_server.port}/0")

    assert found["cache"] == found["pool"] == "fail"
    assert found["events"] == "ok"


def test_doctor_warns_of_a_policy_that_evicts_locks(
    open_store: OpenStore, valkey_server: LocalValkey
) -> None:
    valkey_server.ask("CONFIG", "SET", "maxmemory", str(1 << 30))
    valkey_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    assert verdicts(open_store, valkey_server.url)["memory"] == "warn"


def test_doctor_fails_a_replica(open_store: OpenStore, valkey_replica: LocalValkey) -> None:
    found = verdicts(open_store, valkey_replica.url)

    assert found["role"] == found["locks"] == "fail"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_tls_is_spoken_and_checked(
    open_store: OpenStore, valkey_server: LocalValkey, certificate: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with FaultProxy(valkey_server.port, tls=context) as proxy:
        url = f"valkeys://localhost:{proxy.port}/0"
        locks = Locks(open_store(url, ca_file=str(certificate)))

        lease = locks.acquire("job")

        assert lease is not None
        assert lease.release()
        locks.close()
        with pytest.raises(Retry, match="cannot be reached"):
            Locks(open_store(url)).acquire("job")


@pytest.fixture
def sentinel(valkey_server: LocalValkey) -> Iterator[LocalSentinel]:
    found = LocalSentinel(valkey_server.port)
    yield found
    found.close()


def test_sentinels_lead_to_the_primary_and_to_the_next(
    open_store: OpenStore,
    valkey_server: LocalValkey,
    valkey_replica: LocalValkey,
    sentinel: LocalSentinel,
) -> None:
    store = open_store(f"valkey+sentinel://127.0.0.1:{sentinel.port}/main")
    locks = Locks(store)
    first = locks.acquire("job", ttl_ms=60_000)
    assert first is not None
    sentinel.knows_replica()

    valkey_server.kill()
    sentinel.fail_over()

    def second_fence() -> int:
        try:
            lease = locks.acquire("other", ttl_ms=60_000)
        except Retry:
            return 0
        return lease.fence if lease is not None else 0

    eventually(lambda: second_fence() > first.fence)
    locks.close()


def test_scripts_are_reloaded_inside_a_pipeline(
    open_store: OpenStore,
    valkey_server: LocalValkey,
    valkey_replica: LocalValkey,
    sentinel: LocalSentinel,
) -> None:
    """B58: through sentinels an invalidation and its wait for replicas are one pipeline."""
    place = f"valkey+sentinel://127.0.0.1:{sentinel.port}/main"
    store = open_store(place, replicas_min=1, call_timeout_ms=20_000)
    cache = Cache[int](store, CacheSettings("users", 1, 60_000), JsonCodec())
    values = iter(range(10))
    assert cache.get("k", lambda: next(values), ("t",)) == 0

    for expected in (1, 2):
        valkey_server.ask("SCRIPT", "FLUSH")
        cache.invalidate("t")
        assert cache.get("k", lambda: next(values), ("t",)) == expected

    log = f"{store.settings.prefix}:cache:{{users.1}}:log"
    assert valkey_server.ask("XLEN", log) == 2, "each was carried out once"
    assert valkey_replica.ask("XLEN", log) == 2


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:6379",
        "http://127.0.0.1",
        "valkey://",
        "valkey://:6379",
        "valkey://host:port",
        "valkey://host:0",
        "valkey://host:99999",
        "valkey://host/x",
        "valkey://host/-1",
        "valkey://host/0/1",
        "valkey+sentinel://host",
        "valkey+cluster://host/3",
    ],
)
def test_urls_that_cannot_be_understood_are_refused(url: str) -> None:
    with pytest.raises(Fatal, match=r"valkey\.url"):
        ValkeySettings(url=url)


def test_urls_are_read_whole_and_shown_without_credentials() -> None:
    place = Place.of("valkeys+sentinel://me:p%40ss@h1,h2:1/main/3")

    assert (place.username, place.password) == ("me", "p@ss")
    assert place.hosts == (("h1", 26379), ("h2", 1))
    assert (place.service, place.database, place.tls) == ("main", 3, True)
    assert str(place) == "Valkey at h1:26379,h2:1/main with TLS"
    assert "p@ss" not in repr(place)
    assert "p%40ss" not in repr(ValkeySettings(url="valkey://me:p%40ss@h1"))


@pytest.mark.parametrize(
    "given",
    [
        {"call_timeout_ms": 0},
        {"prefix": "a{b}"},
        {"prefix": ""},
        {"replicas_min": -1},
        {"replicas_min": 1, "url": "valkey+cluster://h1"},
    ],
)
def test_settings_out_of_range_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(Fatal):
        ValkeySettings(**given)  # type: ignore[arg-type]  # the point of the test
