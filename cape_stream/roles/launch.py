"""What the command line may ask for: finds the App, opens what it needs, and does it."""

import json
import logging
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from cape_stream.errors import Fatal
from cape_stream.roles import run, topic_plan
from cape_stream.roles.backends import Backend, open_backend
from cape_stream.roles.operate import Operator
from cape_stream.roles.ping import Asked, PingOutcome, read_lines
from cape_stream.roles.ping import ping as send_pings
from cape_stream.roles.run import ALL_ROLES
from cape_stream.roles.settings import BackendName, Settings, SettingsError
from cape_stream.roles.settings_explained import explanations
from cape_stream.roles.settings_loading import as_json, load_settings, shown_settings
from cape_stream.roles.topic_plan import Action, TopicOutcome
from cape_stream.sdk.declaration import DeclarationError
from cape_stream.sdk.loading import load_app

__all__ = [
    "ALL_ROLES",
    "ASKED_WRONGLY",
    "Asked",
    "operator",
    "ping",
    "read_lines",
    "serve",
    "settings",
    "topics",
]

INDENT = "    "
EXPLANATION_COLUMNS = 96

ASKED_WRONGLY = (SettingsError, DeclarationError)
"""Errors of whoever asked: the answer is another command line, setting or App."""


def settings(file: str | None, flags: Mapping[str, str]) -> Settings:
    """Everything in effect; also starts the log lines of this process.

    Raises:
        SettingsError: names the value, where it stands, and what may stand there.
    """
    found = load_settings(flags, os.environ, file)
    logging.basicConfig(
        level=found.process.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    return found


def settings_in_words(found: Settings, *, explain: bool) -> str:
    """Every setting with its value and origin, secrets hidden; what each means, if asked."""
    lines = []
    for each in shown_settings(found):
        lines.append(f"{each.name} = {json.dumps(each.value)}  # {each.origin}")
        section, _, name = each.name.partition(".")
        text = explanations(section).get(name) if explain else None
        if text:
            lines += textwrap.wrap(
                text, EXPLANATION_COLUMNS, initial_indent=INDENT, subsequent_indent=INDENT
            )
    return "\n".join(lines)


def settings_as_json(found: Settings) -> str:
    """The same as one object."""
    return as_json(shown_settings(found))


def serve(target: str, found: Settings, *, backend_name: BackendName, roles: Sequence[str]) -> None:
    """Run roles of an App until a signal; see `run.serve`."""
    app = load_app(target)
    app.domain_specs()
    run.serve(app, found, backend_name=backend_name, roles=roles)


def ping(
    target: str,
    found: Settings,
    *,
    domain: str,
    asked: Iterable[Asked],
    backend_name: BackendName | None,
) -> PingOutcome:
    """Ping subjects of an App; see `cape_stream.roles.ping.ping`."""
    app = load_app(target)
    with _opened(backend_name, found) as backend:
        return send_pings(app, backend, domain, asked)


@contextmanager
def operator(target: str, found: Settings, *, admin: str | None) -> Iterator[Operator]:
    """Operators' commands on an App: through one admin API, or on the log and the group.

    Raises:
        Fatal: neither is named, or the log is away.
    """
    app = load_app(target)
    app.domain_specs()
    if admin is not None:
        yield Operator(app, found, None, admin)
    elif found.names_kafka:
        with open_backend("kafka", found) as backend:
            yield Operator(app, found, backend, None)
    else:
        raise SettingsError(
            "name a Kafka with --kafka HOST:PORT, or the dispatcher with --admin http://HOST:PORT"
            " (`cape run` listens there if it is started with --set admin.port=8120)"
        )


def topics(
    target: str,
    found: Settings,
    *,
    action: Action,
    replication: int | None,
    backend_name: BackendName | None,
) -> TopicOutcome:
    """Plan, create or compare the topics of an App; see `topic_plan.carry_out`."""
    app = load_app(target)
    app.domain_specs()
    with _opened(backend_name, found) as backend:
        return topic_plan.carry_out(action, app, backend, replication=replication)


def _opened(name: BackendName | None, found: Settings) -> Backend:
    """The backend asked for; unless one is, Kafka where it is named."""
    chosen: BackendName = name or ("kafka" if found.names_kafka else "embedded")
    try:
        return open_backend(chosen, found)
    except Fatal as error:
        if chosen == "kafka" or isinstance(error, SettingsError):
            raise
        raise Fatal(
            f"{error}. While `cape run` works there nobody else can; it creates its topics and"
            " finds news by itself, every refresh.interval_ms. Stop it first, or name a Kafka"
        ) from error
