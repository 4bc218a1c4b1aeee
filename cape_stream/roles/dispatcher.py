"""The dispatcher role: one engine over all domains of an App."""

import logging
import threading
from collections.abc import Mapping

from cape_stream.core.plan import PlanError, compile_plan
from cape_stream.errors import Corrupt, Fatal
from cape_stream.ports.log import TopicPartition
from cape_stream.ports.table import Table
from cape_stream.roles.admin import Admin
from cape_stream.roles.backends import Backend, StoppedError, member_name, open_table, patiently
from cape_stream.roles.partition_view import open_view
from cape_stream.roles.partitions import PartitionWatch, check_counts
from cape_stream.roles.settings import Settings
from cape_stream.roles.source_limits import SourceLimits
from cape_stream.runtime.dispatching import DispatchProcessor, Routing, dispatcher_factory
from cape_stream.runtime.lifecycle import TaskState
from cape_stream.runtime.loop import Backgrounds, Engine
from cape_stream.runtime.processor import TaskGroup
from cape_stream.runtime.source_pacing import SourceState
from cape_stream.runtime.steady import ThreadBackground
from cape_stream.sdk.app import App

logger = logging.getLogger(__name__)


class DispatcherPart:
    """Implements `cape_stream.roles.crew.Part`.

    A row that does not decode is answered by wiping this process's rows of the tasks it has, once,
    and restoring them from the changelog; if that does not help, only a person can.

    Args:
        app: what to dispatch.
        backend: where to; stays open.
        settings: everything in effect.

    Raises:
        Fatal: the App cannot work.
    """

    name = "dispatcher"

    def __init__(self, app: App, backend: Backend, settings: Settings) -> None:
        self._app = app
        self._backend = backend
        self._settings = settings
        self._limits = SourceLimits(app.name, settings.engine)
        self._groups = task_groups(app, backend, settings, self._limits)
        self._stopping = threading.Event()
        self._engine: Engine | None = None
        self._admin = Admin(app, backend, settings.admin)
        self._last_figures: Mapping[str, int] = {}
        """What the engine had done when it was stopped."""

    def run(self) -> None:
        """See `Part.run`. Raises Fatal also when another process uses the state folder."""
        table = open_table(self._app.name, self._settings)
        try:
            self._admin.start()
            try:
                self._serve(table)
            except Corrupt as error:
                logger.warning("%s; restoring the tasks from their changelogs", error)
                self._serve(table)
        except Corrupt as error:
            raise Fatal(
                f"{error}, even after the local state was restored: the changelog itself is"
                " damaged; keep the topic for inspection and restore it from a backup"
            ) from error
        except StoppedError:
            return
        finally:
            self._admin.stop()
            table.close()
            self._limits.close()

    def stop(self) -> None:
        """See `Part.stop`."""
        self._stopping.set()

    def figures(self) -> Mapping[str, int]:
        """See `Part.figures`."""
        engine = self._engine
        return self._last_figures if engine is None else _figures(engine)

    def _serve(self, table: Table) -> None:
        """Run one engine until it is stopped or fails."""
        app, backend, settings = self._app, self._backend, self._settings
        place, stopping = backend.place, self._stopping.is_set
        member = member_name(app.name, self.name)
        watch = PartitionWatch(backend, app, settings.process.partition_check_interval_ms)
        patiently(lambda: check_counts(backend.log, app), place, stopping=stopping)
        backgrounds = _backgrounds(settings, len(self._groups))
        try:
            engine = patiently(
                lambda: Engine(
                    log=backend.log,
                    table=table,
                    clock=backend.clock,
                    groups=self._groups,
                    group_id=app.topic_names.dispatcher_group,
                    member_name=member,
                    backgrounds=backgrounds,
                    settings=settings.engine,
                ),
                place,
                stopping=stopping,
            )
            self._engine = engine
            view = open_view(app.name, member, lambda: _owned(engine))
            try:
                self._turn(engine, table, watch)
            finally:
                if view is not None:
                    view.close()
        finally:
            for each in (backgrounds.commits, backgrounds.restores, backgrounds.sources):
                each.close()
            watch.close()

    def _turn(self, engine: Engine, table: Table, watch: PartitionWatch) -> None:
        clock, stopping = self._backend.clock, self._stopping.is_set
        try:
            while not stopping():
                engine.turn()
                self._admin.inspector.turn(engine, clock.now_ms())
                watch.turn(clock.now_ms())
        except BaseException as error:
            # A step that failed may have left things half done: nothing of it must be stored.
            names = [task.name for task in engine.assignment.tasks.values()]
            engine.assignment.lost(_inputs(engine))
            engine.close()
            if isinstance(error, Corrupt):
                for name in names:
                    table.clear(name)
            raise
        self._last_figures, self._engine = _figures(engine), None
        engine.close()


def _owned(engine: Engine) -> list[str]:
    """The tasks of this process, by name; from any thread."""
    return [task.name for task in list(engine.assignment.tasks.values())]


def task_groups(
    app: App, backend: Backend, settings: Settings, limits: SourceLimits
) -> list[TaskGroup]:
    """One group of tasks a domain.

    Args:
        app: whose domains.
        backend: how records are written.
        settings: of the scheduler.
        limits: within which the domains' sources are asked.

    Raises:
        Fatal: the App cannot work; the message says what to change in it.
    """
    names = app.topic_names
    groups = []
    for spec in app.domain_specs():
        try:
            plan = compile_plan(spec)
        except PlanError as error:
            raise Fatal(f"domain {spec.name!r}: {error}") from error
        queues = sorted({entry.queue for entry in plan.lambdas})
        routing = Routing(names=names, domain=spec.name, partitions=app.partitions)
        statuses = names.statuses(spec.name)
        groups.append(
            TaskGroup(
                name=spec.name,
                inputs=(statuses, names.pings(spec.name), names.operations(spec.name)),
                changelog=names.changelog(spec.name),
                make_processor=dispatcher_factory(plan, backend.codec, routing, settings.scheduler),
                replayed_first=(statuses,),
                always_open=(names.operations(spec.name),),
                outputs=names.job_topics(queues),
                source=limits.around(spec.name, app.domains[spec.name].source),
            )
        )
    return groups


def _backgrounds(settings: Settings, domains: int) -> Backgrounds:
    engine = settings.engine
    return Backgrounds(
        commits=ThreadBackground(1, "cape-commits"),
        restores=ThreadBackground(engine.restores_max, "cape-restores"),
        sources=ThreadBackground(engine.source_calls_max * domains, "cape-sources"),
    )


def _inputs(engine: Engine) -> list[TopicPartition]:
    return [each for task in engine.assignment.tasks.values() for each in task.inputs]


def _figures(engine: Engine) -> Mapping[str, int]:
    """What the tasks of this member have done and hold."""
    tasks = list(engine.assignment.tasks.values())
    processors = [t.processor for t in tasks if isinstance(t.processor, DispatchProcessor)]
    counters = [each.scheduler.counters for each in processors]
    sources = list(engine.sources.values())
    return {
        "tasks": len(tasks),
        "tasks_running": sum(task.state is TaskState.RUNNING for task in tasks),
        "pings": sum(each.pings for each in counters),
        "jobs_issued": sum(each.jobs_issued for each in counters),
        "jobs_retried": sum(each.jobs_retried for each in counters),
        "events_done": sum(each.events_done for each in counters),
        "events_failed": sum(each.events_failed for each in counters),
        "in_flight": sum(each.scheduler.open_jobs for each in processors),
        "parked": sum(each.scheduler.parked_events for each in processors),
        "subjects_active": sum(each.scheduler.active_subjects for each in processors),
        "source_queries": sum(each.counters.queries for each in sources),
        "source_calls_failed": sum(
            each.counters.failed_calls + each.counters.timed_out_calls for each in sources
        ),
        "source_subjects_failing": sum(len(each.failing) for each in sources),
        "sources_down": sum(each.state is not SourceState.CLOSED for each in sources),
        "dead_letters": sum(each.counters()["dead_letters"] for each in processors),
    }
