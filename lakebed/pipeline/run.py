"""Execute a pipeline: ingest, a streaming query, and maintenance, threads, in one process, watched and stopped in order.

1. The metrics port is opened, the file checked (``check``) and the table or the database opened before Spark starts, so errors
   there are raised at once. Only Java starts beside this.
2. The queries start. A sampler thread reads figures at intervals; the caller gets the newest ones.
3. A query that fails with a temporary error is started again, each time after a longer pause (``lakebed.failures``).
   Ingest is restarted here; maintenance restarts itself. Any other error ends the execution.
4. At the stop, ingest ends after the current batch; maintenance continues until the tail is empty and, for a bounded time, until
   what is due is merged; then Spark ends. A batch that had only begun is abandoned: the next execution reads it again, and it
   counts once, because the table's positions say what is in it.

What differs between one table and a database is ``Work``: ``table_work``, ``database_work``.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from lakebed import events
from lakebed.discovery import tables_below
from lakebed.errors import InvalidInput, LakebedError, MissingPrerequisite, Unexpected
from lakebed.failures import Health, Restarts, failure_in, failure_of, first_line
from lakebed.health.file_checks import look_at_disk
from lakebed.health.finding import counted
from lakebed.health.run_report import Down, Reporter, RunReport, Waiting, said_by, said_here
from lakebed.health.sampler import SLOW_SECONDS
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.monitoring.metrics import Metrics
from lakebed.monitoring.progress import Figures, Progress
from lakebed.monitoring.table_state import TableState
from lakebed.pipeline.check import Role, check
from lakebed.pipeline.database.check import check_database
from lakebed.pipeline.database.work import DatabaseState, DatabaseWork
from lakebed.pipeline.driver import Abandoned, Driver, SparkStart, StartPhase
from lakebed.pipeline.settings import QUERY_NAME, AnyPipeline, Pipeline
from lakebed.pipeline.table_work import TableWork
from lakebed.pipeline.watches import SAMPLE_SHARE, Watch, seldom
from lakebed.storage.roots import parse_root
from lakebed.table import Table
from lakebed.waits import Stuck

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lakebed.http import MetricsServer

Phase = StartPhase | Literal["first batch", "running", "trying again", "stopping"]
LOOK_SECONDS = 0.25
_FIRST_BATCH_SECONDS = 30.0  # the duration is counted from then on, even if no batch has come
_BATCH_SECONDS_MAX = 15.0
_PROOF_SECONDS = 10.0

_logger = logging.getLogger("lakebed.run")


State = TableState | DatabaseState


@dataclass(frozen=True, slots=True)
class Look:
    """The state of an execution at one moment. ``state`` is None until it was sampled first."""

    phase: Phase
    figures: Figures
    state: State | None
    metrics_url: str | None
    page_url: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an execution. ``table``: None for a database."""

    table: Table | None
    figures: Figures
    state: State


class Work(Protocol):
    """What an execution does. ``path``: of the table or the database; ``progress`` hears its events."""

    @property
    def path(self) -> str: ...
    @property
    def progress(self) -> Progress: ...
    @property
    def table(self) -> Table | None: ...

    def start_ingest(self, spark: SparkSession) -> StreamingQuery:
        """Start the query; once more, if it ended. Raises LakebedError, and what Spark raises."""

    def end_ingest(self) -> None:
        """End what ingest still does when its query has ended, and the watches. Once it has ended, this does nothing."""

    def maintain(self, spark: SparkSession) -> None:
        """Begin to maintain."""

    def end_maintenance(self, waiting: Callable[[], None]) -> None:
        """Settle and merge what is due, for a bounded time, and end. ``waiting`` is called again and again meanwhile."""

    def abandon(self) -> None:
        """End at once, after an error."""

    @property
    def watches(self) -> Sequence[Watch]:
        """The watches over all that it needs, which have begun."""

    @property
    def ingest_trouble(self) -> LakebedError | None:
        """Why nothing can be ingested, though the query runs."""

    @property
    def maintain_trouble(self) -> LakebedError | None:
        """The error for which maintenance waits. Raises the error that ended it."""

    def observe(self) -> State:
        """The figures now, for the display and for the gauges. Raises LakebedError."""

    def wake(self) -> None:
        """Something that was down answers again: what waits to try again waits no longer."""

    def report_lag(self, query: StreamingQuery) -> None:
        """Emit how far the query is behind its source."""


def run(
    pipeline: AnyPipeline,
    start: SparkStart,
    stop: threading.Event,
    watch: Callable[[Look], None],
    duration_seconds: float | None = None,
    only: Role | None = None,
) -> Outcome:
    """Execute the pipeline until ``stop`` is set or the duration has passed since the first batch.

    ``start``: Spark, whose Java may be starting already. The caller ends it.
    If no batch comes within ``_FIRST_BATCH_SECONDS``, the duration counts from then. ``watch`` is called several times a
    second. Raises the LakebedError that ended the execution; everything committed until then stays.
    """
    roles: tuple[Role, ...] = (only,) if only else (("ingest", "maintain") if pipeline.maintain else ("ingest",))
    with ExitStack() as stack:
        metrics = Metrics()
        server = served_metrics(pipeline, metrics)
        if server is not None:
            stack.callback(server.close)
        with _reported(pipeline, roles):
            work = _work(pipeline, metrics, only)
        stack.callback(events.listen(metrics))
        stack.callback(events.listen(work.progress))
        stack.callback(work.end_ingest)  # also if Spark never starts: its threads have begun
        going = _Run(pipeline, work, metrics, watch, roles=roles, metrics_url=server.url if server else None)

        def abandoned() -> bool:
            going.look(start.phase)
            return stop.is_set()

        with suppress(Abandoned):
            with _reported(pipeline, roles):
                driver = start.wait(abandoned)
            going.until(driver, stop, duration_seconds)
        return Outcome(work.table, work.progress.figures(), going.observe())


@contextmanager
def _reported(pipeline: AnyPipeline, roles: tuple[Role, ...]) -> Iterator[None]:
    """If the block fails, leave a report of that. A file with a wrong path leaves nothing there."""
    try:
        yield
    except LakebedError as error:
        with suppress(LakebedError):  # the error of the block is the one to report
            path = str(parse_root(pipeline.path))
            if not isinstance(error, InvalidInput) or _is_used(path):
                _reporter(path, roles).say("failed", [pipeline.document.redact(str(error))])
        raise


def _reporter(path: str, roles: tuple[Role, ...]) -> Reporter:
    return Reporter(open_store(path), RunReport(host=socket.gethostname(), pid=os.getpid(), roles=roles))


def _is_used(path: str) -> bool:
    """Whether there is a table at the path, or below it."""
    return TableLog(open_store(path)).exists() or bool(tables_below(path))


def _work(pipeline: AnyPipeline, metrics: Metrics, only: Role | None) -> Work:
    if isinstance(pipeline, Pipeline):
        notes = check(pipeline, connect=True, only=only).notes
    else:
        notes = check_database(pipeline, connect=True).notes
    for note in notes:
        _logger.warning("%s", note)
    return (
        TableWork(pipeline, metrics, only) if isinstance(pipeline, Pipeline) else DatabaseWork(pipeline, metrics, only)
    )


class _Run:
    def __init__(
        self,
        pipeline: AnyPipeline,
        work: Work,
        metrics: Metrics,
        watch: Callable[[Look], None],
        *,
        roles: tuple[Role, ...],
        metrics_url: str | None,
    ) -> None:
        self._pipeline = pipeline
        self._work = work
        self._progress = work.progress
        self._metrics = metrics
        self._watch = watch
        self._metrics_url = metrics_url
        self._reporter = _reporter(work.path, roles)
        self._roles = roles
        self._ingest: StreamingQuery | None = None
        self._health = Health(work.path, QUERY_NAME)
        self._restarts = Restarts()
        self._again_at: float | None = None
        self._started_at = 0.0
        self._batches_at_failure = 0
        self._state: State | None = None
        self._phase: Phase = "starting Spark"
        self._down: dict[str, Down] = {}
        self._healed = threading.Event()
        self._stuck = Stuck()
        self._sampling_since: float | None = None
        self._is_unread = False

    def look(self, phase: Phase) -> None:
        self._phase = phase
        self._watch(Look(phase, self._progress.figures(), self._state, self._metrics_url))

    def observe(self) -> State:
        """The figures now, for the display and for the gauges."""
        self._state = state = self._work.observe()
        return state

    def until(self, driver: Driver, stop: threading.Event, duration_seconds: float | None) -> None:
        spark = driver.spark
        try:
            with self._sampling():
                if not stop.is_set():
                    if "ingest" in self._roles:
                        self._start_ingest(spark)
                    if "maintain" in self._roles:
                        self._work.maintain(spark)
                    self._watch_queries(driver, stop, duration_seconds)
                self.look("stopping")
                self._end_ingest()
                self._work.end_maintenance(lambda: self.look("stopping"))
            self._reporter.remove()
        except LakebedError as error:
            self._reporter.say("failed", [self._pipeline.document.redact(str(error))])
            self._stop_all()
            if isinstance(error, Unexpected):  # Spark's log may hold the cause
                raise error.with_text(f"{error}; Spark's log is {driver.log}") from error
            raise

    # -- while it runs -----------------------------------------------------------------------------------------------

    def _start_ingest(self, spark: SparkSession) -> None:
        try:
            self._ingest = self._work.start_ingest(spark)
        except LakebedError as error:
            self._ingest_failed(error)
        except Exception as error:  # Spark's errors keep their text in the JVM, so read it while the JVM is alive
            self._ingest_failed(failure_in(str(error), QUERY_NAME))
        else:
            self._restarts.has_started = True
        self._started_at = time.monotonic()
        if self._health.error is None:
            self._health.runs()

    def _watch_queries(self, driver: Driver, stop: threading.Event, duration_seconds: float | None) -> None:
        began = time.monotonic()
        going = False
        while not stop.is_set():
            now, used_before = time.monotonic(), time.thread_time()
            if not going and (self._progress.batches or now - began >= _FIRST_BATCH_SECONDS):
                going, began = True, now
                driver.proven()
                self._progress.restart_clock()
            if going and duration_seconds is not None and now - began >= duration_seconds:
                return
            self._check_ingest(driver.spark)
            waits = self._health.error or self._has_trouble()
            self.look("trying again" if waits else "running" if going or self._ingest is None else "first batch")
            stop.wait(max(LOOK_SECONDS, (time.thread_time() - used_before) / SAMPLE_SHARE))

    def _check_ingest(self, spark: SparkSession) -> None:
        if self._again_at is not None:
            if time.monotonic() >= self._again_at or self._healed.is_set():
                self._again_at = None
                self._healed.clear()
                self._start_ingest(spark)
        elif self._ingest is not None and not self._ingest.isActive:
            stopped = Unexpected("the ingest query was stopped from outside")
            self._ingest_failed(failure_of(self._ingest, QUERY_NAME) or stopped)
        elif (
            self._health.error is not None
            and self._ingest is not None
            and (self._progress.batches > self._batches_at_failure or self._is_proven(self._ingest))
        ):
            self._health.runs()

    def _is_proven(self, query: StreamingQuery) -> bool:
        """Whether the query runs again, though it had failed."""
        troubles = self._trouble_of_needs(), self._work.ingest_trouble, self._work.maintain_trouble
        return not any(troubles) and has_worked(query, time.monotonic() - self._started_at)

    def _ingest_failed(self, error: LakebedError) -> None:
        """Schedules a restart. Raises the error if a restart is of no use."""
        redacted = error.with_text(self._pipeline.document.redact(str(error)))
        self._progress.failed(QUERY_NAME, str(redacted))
        batches = self._progress.batches
        # Pauses are short again when an outage is over.
        is_first = batches > self._batches_at_failure or self._healed.is_set()
        self._healed.clear()
        pause = self._restarts.pause_seconds(error, made_progress=is_first)
        self._batches_at_failure = batches
        if pause is None:
            self._health.failed(redacted)
            raise error
        self._health.waits(redacted, pause)
        self._again_at = time.monotonic() + pause

    def _look_at_needs(self) -> None:
        """Note what is down, and say so in log, metrics and page. Nothing here waits for a store."""
        redact = self._pipeline.document.redact
        found = {one.name: one for watch in self._work.watches if (one := watch.down) is not None}
        for name in found.keys() - self._down.keys():
            error = redact(found[name].error)
            _logger.warning("%s is down: %s", name, error)
            self._progress.failed(name, error)
        for name in self._down.keys() - found.keys():
            seconds = max(0.0, time.time() - self._down[name].since_ms / 1000)  # a clock may go back
            _logger.warning("%s answers again, after %.0f s", name, seconds)
            self._progress.healed(name)
        if self._down.keys() - found.keys():
            self._healed.set()
            self._work.wake()
        self._down = found
        self._note()

    def _trouble_of_needs(self) -> LakebedError | None:
        """Why nothing can be ingested now: something is down without which nothing can."""
        return next((one.trouble for one in self._work.watches if one.stops_all and one.trouble is not None), None)

    def _has_trouble(self) -> bool:
        """Whether ingest or maintenance waits. Raises the error that ended maintenance."""
        ingest = self._trouble_of_needs() or self._work.ingest_trouble
        troubles = {QUERY_NAME: ingest, "maintain": self._work.maintain_trouble}
        for role, trouble in troubles.items():
            if trouble is not None:
                self._progress.failed(role, self._pipeline.document.redact(str(trouble)))
            elif role == "maintain" or self._health.error is None:
                self._progress.healed(role)
        return any(troubles.values())

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """Sample the table, note what is down, and report: each in a thread, since any may wait for a store."""
        done = threading.Event()

        def sample() -> None:
            self._sampling_since = time.monotonic()
            try:
                self.observe()
                self._is_unread = False
            except Exception as error:
                self._not_read()
                if not isinstance(error, LakebedError):
                    raise
            self._sampling_since = None
            self._report_lag()

        threads = [
            threading.Thread(target=seldom, args=(work, done), name=f"lakebed-{name}", daemon=True)
            for name, work in (("sampler", sample), ("needs", self._look_at_needs), ("reporter", self._reporter.write))
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            done.set()
            for thread in threads:
                thread.join(timeout=5)
            said_here.pop(self._work.path, None)

    def _note(self) -> None:
        """Note how the run is, for its report, its metrics and its page."""
        redact, state = self._pipeline.document.redact, self._state
        tables = state.tables if isinstance(state, DatabaseState) else ()
        waiting = [
            Waiting(name=one.name, state=one.state, error=redact(one.error))
            for one in tables
            if one.state in ("waiting", "new")
        ]
        errors = self._progress.errors() if self._phase == "trying again" else ()
        down = [replace(one, error=redact(one.error)) for one in list(self._down.values())]
        stuck = [redact(one) for one in self._stuck.found(self._progress.batches, self._is_in_batch())]
        self._reporter.note("trying again" if errors else "running", errors, waiting, down, stuck)
        said_here[self._work.path] = self._reporter.report
        if (since := self._sampling_since) is not None and time.monotonic() - since > SLOW_SECONDS:
            self._not_read()
        if self._is_unread or isinstance(state, DatabaseState):
            found = [*look_at_disk(self._work.path), *said_by(self._reporter.report, self._work.path)]
            self._metrics.found(self._work.path, counted(found))

    def _not_read(self) -> None:
        """The figures of the table are not known now. What the run itself knows is (``_note``)."""
        if self._work.table is not None and not self._is_unread:  # those of a database are in memory
            self._is_unread = True
            self._metrics.down(self._work.path)

    def _is_in_batch(self) -> bool:
        """Whether there is something to ingest, which has not been committed yet."""
        with suppress(Exception):  # Spark may be shutting down
            return self._ingest is not None and bool(self._ingest.status["isDataAvailable"])
        return False

    def _report_lag(self) -> None:
        if self._ingest is not None:
            with suppress(Exception):  # Spark may be shutting down
                self._work.report_lag(self._ingest)

    # -- the stop ----------------------------------------------------------------------------------------------------

    def _end_ingest(self) -> None:
        query = self._ingest
        if query is None:
            self._work.end_ingest()
            return
        batches = self._progress.batches
        deadline = time.monotonic() + _BATCH_SECONDS_MAX
        while query.isActive and time.monotonic() < deadline:
            status = query.status
            busy = status["isTriggerActive"] and status["isDataAvailable"]
            if not busy or self._progress.batches > batches:
                break
            time.sleep(0.02)
        _stop(query)
        self._work.end_ingest()
        self._health.stopped()

    def _stop_all(self) -> None:
        if self._ingest is not None:
            _stop(self._ingest)
        with suppress(Exception):  # the error that ended the execution is the one to report
            self._work.end_ingest()
            self._work.abandon()


def has_worked(query: StreamingQuery, up_seconds: float) -> bool:
    """Whether a query that was started has done something: a batch, or a look at its source that found nothing.

    That it is up proves nothing while there is a batch to do, since that may wait for a store for long and then fail again. Spark
    reports no progress of a query that finds nothing, so such a query counts after ``_PROOF_SECONDS``.
    """
    with suppress(Exception):  # Spark may be shutting down
        return query.lastProgress is not None or (up_seconds >= _PROOF_SECONDS and not query.status["isDataAvailable"])
    return False


def _stop(query: StreamingQuery) -> None:
    try:
        query.stop()
    except Exception as error:  # Spark is gone, or the batch does not end: the next execution continues in either case
        _logger.warning("a query did not stop cleanly: %s", first_line(error))


def served_metrics(pipeline: AnyPipeline, metrics: Metrics) -> MetricsServer | None:
    """Serve the metrics, if the file wants that. A port that is taken is no reason not to ingest: then it is any free one."""
    host, port = pipeline.metrics.host, pipeline.metrics.port
    if port is None:
        return None
    try:
        return metrics.serve(host, port)
    except MissingPrerequisite as error:
        server = metrics.serve(host, 0)
        _logger.warning("%s; until then they are at %s, where no scraper looks for them", error, server.url)
        return server
