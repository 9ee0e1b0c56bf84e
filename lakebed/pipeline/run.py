"""One run of a pipeline: ingest and maintenance as streaming queries of one process, watched and stopped in order.

1. The metrics port is taken and the table opened or created before Spark starts: what is wrong there is told at once.
2. The queries start. A sampler thread takes the table's figures now and then; the caller is told after every look.
3. A query that failed with an error that says "try again" is started again, later each time; so is one that Spark
   ended for a reason of its own (a worker that died), less often. Any other error of lakebed ends the run.
4. The stop: ingest ends after the batch that is running; maintenance goes on until the tail is empty; then Spark ends.
   A batch that had just begun is left alone: the next run does it again, under the same batch id, so it counts once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lakebed import events
from lakebed.errors import LakebedError, Retry
from lakebed.ingest.kafka_lag import lag_by_topic
from lakebed.monitoring.metrics import Metrics, MetricsServer
from lakebed.monitoring.progress import Figures, Progress
from lakebed.monitoring.table_state import TableState
from lakebed.pipeline.checkpoint import take_checkpoint
from lakebed.pipeline.driver import Abandoned, Driver, spark_driver
from lakebed.pipeline.failures import failure_in, failure_of
from lakebed.pipeline.settings import FilesSection, KafkaSection, Pipeline
from lakebed.pipeline.sources import QUERY_NAME, open_source, start_ingest
from lakebed.pipeline.target import open_or_create
from lakebed.table import STREAMS_FOLDER, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Role = Literal["ingest", "maintain"]
Phase = Literal["starting Spark", "running", "trying again", "stopping"]
LOOK_SECONDS = 0.25
FIRST_BATCH_SECONDS = 30.0  # if no batch comes until then, the time of the run counts nevertheless
SAMPLE_SECONDS = 1.0
SAMPLE_SHARE = 0.05  # of the time, at most, goes into sampling the table
BATCH_SECONDS_MAX = 15.0
DRAIN_SECONDS_MAX = 10.0
RETRIES_MAX = 10
RESTARTS_MAX = 3
RETRY_SECONDS_MAX = 30.0

_logger = logging.getLogger("lakebed.run")


@dataclass(frozen=True, slots=True)
class Look:
    """What is to be seen of a run at one moment. ``state`` is None before the table was looked at."""

    phase: Phase
    figures: Figures
    state: TableState | None
    metrics_url: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did."""

    table: Table
    figures: Figures
    state: TableState


def run(
    pipeline: Pipeline,
    stop: threading.Event,
    watch: Callable[[Look], None],
    duration_seconds: float | None = None,
    only: Role | None = None,
) -> Outcome:
    """Run until ``stop`` is set or the duration is over; it counts from the first batch (or ``FIRST_BATCH_SECONDS``).

    Raises the LakebedError that ended the run; what was committed until then stands.
    """
    with ExitStack() as stack:
        metrics = Metrics()
        server = _serve(pipeline, metrics)
        if server is not None:
            stack.callback(server.close)
        table = open_or_create(pipeline)
        if only != "maintain":
            open_source(pipeline, table.schema)  # what is wrong with the source is told before Spark starts
            take_checkpoint(pipeline, pipeline.checkpoint or f"{table.path}/{STREAMS_FOLDER}/{QUERY_NAME}")
        progress = Progress(table.path)
        stack.callback(events.listen(metrics))
        stack.callback(events.listen(progress))
        going = _Run(pipeline, table, progress, metrics, watch, only, server.url if server else None)

        def abandoned() -> bool:
            going.look("starting Spark")
            return stop.is_set()

        with suppress(Abandoned), spark_driver(pipeline.spark, _wants_s3(pipeline), abandoned) as driver:
            going.until(driver, stop, duration_seconds)
        return Outcome(table, progress.figures(), going.observe())


class _Run:
    def __init__(
        self,
        pipeline: Pipeline,
        table: Table,
        progress: Progress,
        metrics: Metrics,
        watch: Callable[[Look], None],
        only: Role | None,
        metrics_url: str | None,
    ) -> None:
        self._pipeline = pipeline
        self._table = table
        self._progress = progress
        self._metrics = metrics
        self._watch = watch
        self._metrics_url = metrics_url
        self._roles: tuple[Role, ...] = (
            (only,) if only else (("ingest", "maintain") if pipeline.maintain else ("ingest",))
        )
        self._queries: dict[Role, StreamingQuery] = {}
        self._failures: dict[Role, int] = {}
        self._again_at: dict[Role, float] = {}
        self._batches_at_failure = 0
        self._state: TableState | None = None
        self._sampler = table._sampler()
        self._sampling_lock = threading.Lock()

    def look(self, phase: Phase) -> None:
        self._watch(Look(phase, self._progress.figures(), self._state, self._metrics_url))

    def observe(self) -> TableState:
        """The table's figures now, for the display and for the gauges."""
        with self._sampling_lock:
            parked = len(self._table._compaction.parked())
            self._state = state = replace(self._sampler.sample(), parked_parts=parked)
        self._metrics.observe(self._table.path, state)
        return state

    def until(self, driver: Driver, stop: threading.Event, duration_seconds: float | None) -> None:
        spark = driver.spark
        try:
            with self._sampling():
                if not stop.is_set():
                    for role in self._roles:
                        self._start(role, spark)
                    self._watch_queries(spark, stop, duration_seconds)
                self.look("stopping")
                self._end_ingest()
                self._end_maintenance()
        except LakebedError as error:
            self._stop_all()
            if type(error) is LakebedError:  # not one of ours: what Spark wrote may tell more
                raise LakebedError(f"{error}; Spark's log is {driver.log}") from error
            raise

    # -- while it runs -----------------------------------------------------------------------------------------------

    def _start(self, role: Role, spark: SparkSession) -> None:
        try:
            if role == "ingest":
                self._queries[role] = start_ingest(self._pipeline, self._table, spark)
            else:
                self._queries[role] = self._table.maintain(spark)
        except LakebedError:
            raise
        except Exception as error:  # Spark's: its text is in the JVM, and must be asked for as long as that lives
            raise failure_in(str(error), role) from None

    def _watch_queries(self, spark: SparkSession, stop: threading.Event, duration_seconds: float | None) -> None:
        began = time.monotonic()
        going = False
        while not stop.is_set():
            now = time.monotonic()
            if not going and (self._progress.figures().batches or now - began >= FIRST_BATCH_SECONDS):
                going, began = True, now
                self._progress.restart_clock()
            if going and duration_seconds is not None and now - began >= duration_seconds:
                return
            for role in self._roles:
                self._care_for(role, spark)
            self.look("trying again" if self._again_at else "running")
            stop.wait(LOOK_SECONDS)

    def _care_for(self, role: Role, spark: SparkSession) -> None:
        if role in self._again_at:
            if time.monotonic() >= self._again_at[role]:
                del self._again_at[role]
                self._start(role, spark)
            return
        query = self._queries[role]
        if query.isActive:
            return
        error = failure_of(query, role) or LakebedError(f"the {role} query was stopped by somebody else")
        self._progress.failed(self._pipeline.document.redact(str(error)))
        self._metrics.failed(self._table.path, error)
        batches = self._progress.figures().batches
        if batches > self._batches_at_failure:  # it got somewhere meanwhile
            self._failures[role] = 0
        self._batches_at_failure = batches
        self._failures[role] = self._failures.get(role, 0) + 1
        if self._failures[role] > _restarts_max(error):
            raise error
        pause = min(RETRY_SECONDS_MAX, 2.0 ** (self._failures[role] - 1))
        _logger.warning("%s starts again in %.0f s: %s", role, pause, self._pipeline.document.redact(str(error)))
        self._again_at[role] = time.monotonic() + pause

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """Take the table's figures in the background, so seldom that it costs next to nothing."""
        done = threading.Event()

        def sample() -> None:
            while not done.is_set():
                started = time.monotonic()
                try:
                    self.observe()
                except LakebedError:
                    self._metrics.down(self._table.path)
                self._tell_lag()
                done.wait(max(SAMPLE_SECONDS, (time.monotonic() - started) / SAMPLE_SHARE))

        thread = threading.Thread(target=sample, name="lakebed-sampler", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(timeout=5)

    def _tell_lag(self) -> None:
        query = self._queries.get("ingest")
        if query is None or not isinstance(self._pipeline.source, KafkaSection):
            return
        with suppress(Exception):  # Spark may be on its way out
            progress = query.lastProgress
            for topic, records in lag_by_topic(dict(progress) if progress else {}).items():
                events.emit(events.SourceLagged(self._table.path, topic, records))

    # -- the stop ----------------------------------------------------------------------------------------------------

    def _end_ingest(self) -> None:
        query = self._queries.get("ingest")
        if query is None:
            return
        batches = self._progress.figures().batches
        deadline = time.monotonic() + BATCH_SECONDS_MAX
        while query.isActive and time.monotonic() < deadline:
            status = query.status
            busy = status["isTriggerActive"] and status["isDataAvailable"]
            if not busy or self._progress.figures().batches > batches:
                break
            time.sleep(0.02)
        _stop(query)

    def _end_maintenance(self) -> None:
        query = self._queries.get("maintain")
        if query is None:
            return
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while query.isActive and time.monotonic() < deadline:
            busy = query.status["isTriggerActive"] and query.status["isDataAvailable"]
            if not self._table._log.refresh().tail and not busy:
                break
            self.look("stopping")
            time.sleep(0.05)
        _stop(query)
        self._table._compaction.close()  # merges that run give their claims back
        if self._table._log.refresh().tail:
            self._table.settle()

    def _stop_all(self) -> None:
        for query in self._queries.values():
            _stop(query)


def _restarts_max(error: LakebedError) -> int:
    """How often in a row a query may start again after such an error."""
    if isinstance(error, Retry):
        return RETRIES_MAX
    return RESTARTS_MAX if type(error) is LakebedError else 0


def _stop(query: StreamingQuery) -> None:
    try:
        query.stop()
    except Exception as error:  # Spark may be gone, or the batch does not end: the next run carries on either way
        _logger.warning("a query did not stop cleanly: %s", str(error).splitlines()[0])


def _serve(pipeline: Pipeline, metrics: Metrics) -> MetricsServer | None:
    port = pipeline.metrics.port
    return None if port is None else metrics.serve(pipeline.metrics.host, port)


def _wants_s3(pipeline: Pipeline) -> bool:
    places = [pipeline.table.path, pipeline.checkpoint or ""]
    if isinstance(pipeline.source, FilesSection):
        places.append(pipeline.source.folder)
    return any(place.startswith(("s3:", "s3a:")) for place in places)
