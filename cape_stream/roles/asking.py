"""What the command line asks dispatchers over their admin APIs."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from cape_stream.errors import Fatal, Reject, Retry
from cape_stream.model.subject import partition_of
from cape_stream.ports.log import TopicPartition
from cape_stream.roles.admin_settings import AdminSettings
from cape_stream.roles.backends import Backend
from cape_stream.sdk.app import App

Answer = dict[str, Any]
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
"""No proxy: the token is for the member alone."""
NO_ADDRESS = (
    "tells no admin address: start it with admin.port set (--set admin.port=8120), or name one"
    " with --admin http://HOST:PORT"
)


class AdminClient:
    """Speaks to one admin API.

    Args:
        base: such as ``http://127.0.0.1:8120``.
        settings: the token to show, and how long to wait.
    """

    def __init__(self, base: str, settings: AdminSettings) -> None:
        if urllib.parse.urlsplit(base).scheme not in ("http", "https"):
            raise Reject(f"--admin {base!r} is no address: write http://HOST:PORT")
        self.base = base.rstrip("/")
        self._settings = settings

    def get(self, path: str, **parameters: str) -> Any:
        """The answer to a question; JSON lines come as a list.

        Raises:
            Reject: the question is wrong, or the token.
            Retry: nobody answers there, or not in time.
            Fatal: the answer is none.
        """
        return self._send(f"{path}?{urllib.parse.urlencode(parameters)}", None)

    def post(self, path: str, fields: Mapping[str, Any]) -> Any:
        """The answer to an order; raises as `get`."""
        return self._send(path, json.dumps(fields).encode())

    def _send(self, path: str, body: bytes | None) -> Any:
        where = self.base + path
        request = urllib.request.Request(where, data=body)  # noqa: S310  # http only, see above
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if self._settings.token:
            request.add_header("Authorization", f"Bearer {self._settings.token}")
        timeout_s = self._settings.timeout_ms / 1_000 + 5
        try:
            with _open(request, timeout=timeout_s) as answer:
                text = answer.read().decode()
                is_lines = "ndjson" in answer.headers.get("content-type", "")
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from error
        except OSError as error:
            raise Retry(f"no answer from {self.base}: {error}") from error
        try:
            return (
                [json.loads(each) for each in text.splitlines()] if is_lines else json.loads(text)
            )
        except ValueError as error:
            raise Fatal(f"{self.base} answers what is no JSON: {error}") from error

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        try:
            fields = json.loads(error.read())
            reason = str(fields["error"])
        except (ValueError, KeyError, TypeError):
            return Fatal(f"{self.base} answers {error.code} {error.reason}")
        if error.code == HTTPStatus.MISDIRECTED_REQUEST:
            owner = fields.get("owner")
            where = f": ask {owner}" if owner else " and the group tells no address of its owner"
            return Retry(f"{self.base}: {reason}{where}")
        if error.code in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED):
            return Reject(reason)
        return Retry(f"{self.base}: {reason}")


def members(
    app: App, backend: Backend | None, settings: AdminSettings, given: str | None, domain: str
) -> list[AdminClient]:
    """Every dispatcher that owns a partition of the domain.

    Raises:
        Fatal: nobody owns some partition, or an owner tells no address.
    """
    if given is not None:
        return [AdminClient(given, settings)]
    owners = _owners(app, backend, domain)
    return [AdminClient(f"http://{each}", settings) for each in sorted(set(owners.values()))]


def owner(
    app: App,
    backend: Backend | None,
    settings: AdminSettings,
    given: str | None,
    domain: str,
    subject: str,
) -> AdminClient:
    """The dispatcher that owns a subject; raises as `members`."""
    if given is not None:
        return AdminClient(given, settings)
    partition = partition_of(subject.encode(), app.partitions)
    return AdminClient(f"http://{_owners(app, backend, domain)[partition]}", settings)


def all_of(clients: Iterable[AdminClient], path: str, **parameters: str) -> list[Answer]:
    """The answers of all of them, one after the other."""
    return [each for client in clients for each in client.get(path, **parameters)]


def _owners(app: App, backend: Backend | None, domain: str) -> dict[int, str]:
    """Partition → address of its owner."""
    if backend is None or backend.name != "kafka":
        raise Fatal("the process that works on this folder " + NO_ADDRESS)
    names = app.topic_names
    found = backend.owner_addresses(names.dispatcher_group)
    owners: dict[int, str] = {}
    for partition in range(app.partitions):
        place = TopicPartition(names.pings(domain), partition)
        if place not in found:
            raise Fatal(
                f"nobody owns partition {partition} of {place.topic}: no dispatcher runs, or the"
                " group is moving partitions; try again"
            )
        address = found[place]
        if address is None:
            raise Fatal(f"the dispatcher that owns partition {partition} {NO_ADDRESS}")
        owners[partition] = address
    return owners
