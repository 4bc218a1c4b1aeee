"""The admin API of a dispatcher process: glue between HTTP, the engine and the log."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from cape_stream.adapters.http.calls import AdminCalls, MisdirectedError
from cape_stream.core.plan import compile_plan
from cape_stream.errors import CapeError, Fatal, Reject
from cape_stream.model.subject import BadSubjectError, check_subject, partition_of
from cape_stream.ports.log import TopicPartition
from cape_stream.roles.admin_settings import AdminSettings
from cape_stream.roles.auditing import Auditor, Ledger
from cape_stream.roles.backends import Backend
from cape_stream.roles.live_tail import LiveTail, NoTail, open_tail
from cape_stream.roles.orders import carry_out, entry_as_fields, operation_of
from cape_stream.runtime.inspecting import (
    Here,
    Inspector,
    NotOursError,
    Steps,
    about_consistency,
    about_jobs,
    about_parked,
    about_subject,
    about_tables,
    about_topologies,
)
from cape_stream.sdk.app import App

if TYPE_CHECKING:
    from cape_stream.adapters.http.serving import HttpServer

Answer = dict[str, Any]


class Admin:
    """Answers for the tasks of one dispatcher; `inspector` has its turn in the engine's thread."""

    def __init__(self, app: App, backend: Backend, settings: AdminSettings) -> None:
        self._app = app
        self._backend = backend
        self._settings = settings
        self.inspector = Inspector()
        self._server: HttpServer | None = None
        self._tail: LiveTail = NoTail()

    def start(self) -> None:
        """Listen, if a port is set; raises Fatal when it cannot be had."""
        if self._settings.port and self._server is None:
            try:
                from cape_stream.adapters.http.admin import admin_app
                from cape_stream.adapters.http.serving import HttpServer
            except ImportError as error:
                raise Fatal(
                    "admin.port is set, and the web server is not installed: pip install"
                    " 'cape-stream[realtime]'"
                ) from error
            calls = AdminCalls(
                explain=self.explain,
                parked=self.parked,
                topologies=self.topologies,
                audit=self.audit,
                order=self.order,
            )
            self._tail = open_tail(self._app.name)
            app = admin_app(calls, self._settings.token or None)
            self._server = HttpServer(app, self._settings.host, self._settings.port)

    def stop(self) -> None:
        """Free the port."""
        if self._server is not None:
            self._server.stop()
            self._server = None
            self._tail.close()

    def explain(self, domain: str, subject: str) -> Answer:
        """Why a subject waits."""
        self._check_domain(domain)
        try:
            check_subject(subject)
        except BadSubjectError as error:
            raise Reject(str(error)) from error
        try:
            [answer] = self._ask(about_subject(domain, self._app.partitions, subject))
        except NotOursError as error:
            owner = self._owner(domain, partition_of(subject.encode(), self._app.partitions))
            raise MisdirectedError(str(error), owner) from error
        return answer

    def parked(self, domain: str, topology: str | None, limit: int) -> list[Answer]:
        """What is put aside in the partitions that are here."""
        self._check_domain(domain)
        return self._ask(about_parked(domain, topology, limit))

    def topologies(self, domain: str) -> list[Answer]:
        """Paused or not, and jobs out."""
        self._check_domain(domain)
        return self._ask(about_topologies(domain))

    def audit(self, domain: str) -> list[Answer]:
        """Findings in the partitions that are here.

        Raises:
            Reject: there is no such domain.
            Retry: the log or the source is away, or the engine did not answer in time.
        """
        self._check_domain(domain)
        found = self._ask(about_consistency(domain, self._app.partitions))
        ledgers = [Ledger(**each) for each in self._ask(about_tables(domain))]
        [spec] = [each for each in self._app.domain_specs() if each.name == domain]
        auditor = Auditor(
            compile_plan(spec),
            self._app.domains[domain].source,
            self._backend.codec,
            self._app.topic_names,
            self._app.partitions,
        )
        with closing(self._backend.log.reader()) as reader:
            found += auditor.findings(reader, ledgers, lambda: self._jobs_out(domain))
        return found

    def _jobs_out(self, domain: str) -> dict[int, set[str]]:
        return {each["partition"]: each["jobs"] for each in self._ask(about_jobs(domain))}

    def order(self, fields: Mapping[str, Any]) -> Iterable[Answer]:
        """Carry an order out, wherever its subject is."""
        operation = operation_of(self._app, fields, self._backend.clock.now_ms())
        timeout_ms = self._settings.timeout_ms
        entries = carry_out(self._app, self._backend, [operation], timeout_ms, self._tail)
        return map(entry_as_fields, entries)

    def _ask(self, steps: Callable[[Here, int], Steps]) -> list[Answer]:
        return self.inspector.ask(steps, self._settings.timeout_ms / 1_000)

    def _check_domain(self, domain: str) -> None:
        if domain not in self._app.domains:
            known = ", ".join(self._app.domains)
            raise Reject(f"there is no domain {domain!r}; known: {known}")

    def _owner(self, domain: str, partition: int) -> str | None:
        """Base URL of the member that has the partition, as far as the group tells."""
        names = self._app.topic_names
        try:
            owners = self._backend.owner_addresses(names.dispatcher_group)
        except CapeError:
            return None
        address = owners.get(TopicPartition(names.pings(domain), partition))
        return f"http://{address}" if address else None
