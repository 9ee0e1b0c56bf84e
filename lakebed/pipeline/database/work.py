"""What a run does for a pipeline of a whole database: one streaming query for all topics, and one maintenance for all tables.

1. Before Spark starts, the tables of the topics that there are now are opened. Their positions are where planning begins.
2. The query's checkpoint decides nothing, since the tables' logs say what is in them. So it is a folder of the process, a new one
   for each start of the query, unless the settings begin elsewhere than at the earliest offset: that must be remembered.
3. Topics that appear later become tables as their first records come. Each table that is opened is maintained from then on.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lakebed import events
from lakebed.compaction.maintenance import TableMaintainers
from lakebed.coordination.failing import parked_of
from lakebed.decode.formats import TYPED_FORMATS, schemas_of
from lakebed.discovery import NoTable, TableName, tables_below
from lakebed.errors import LakebedError, Retry
from lakebed.ingest.database_batch import DatabaseIngest, PlanRequest, TableStanding
from lakebed.ingest.database_member import Ignored, Member, OpenTable
from lakebed.ingest.database_runner import Runner
from lakebed.ingest.stream import OffsetDocuments, start_query
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.monitoring.metrics import Metrics
from lakebed.monitoring.progress import Progress
from lakebed.pipeline.check import Role
from lakebed.pipeline.database.introducer import Introduced, Introducer, NotYet, ingest_of
from lakebed.pipeline.database.resnapshot import Resnapshots, follow, typed_notifications
from lakebed.pipeline.places import checkpoint_of
from lakebed.pipeline.settings import QUERY_NAME, DatabasePipeline, decoder_options
from lakebed.pipeline.sources import kafka_settings, pace, trigger
from lakebed.pipeline.watches import Watch, kafka_watches, registry_watch, store_watches
from lakebed.points.keeper import PointKeeper, Points, PointSettings, SettledPoints
from lakebed.points.window import JsonTransactions, TransactionReader, TypedTransactions
from lakebed.positions.point_log import PointLog
from lakebed.positions.resnapshots import note_topic, topic_gone_of
from lakebed.sources.kafka.lag import lag_of_tables
from lakebed.sources.source import Range
from lakebed.storage.local_folders import process_folder
from lakebed.storage.roots import parse_root, spark_path
from lakebed.table import Internals, internals_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lakebed.pipeline.database_section import PointsSection
    from lakebed.sources.kafka.settings import KafkaSettings


# -- Topics that are gone are noticed in a thread, and the logs of their tables say so -------------------------------------
#
# A table whose topic is gone stays as it is: nothing comes any more, and no batch shows that. A topic counts as gone when two
# looks in a row do not find it, since brokers that have just started do not know all of theirs.


LOOK_SECONDS = 60.0
_logger = logging.getLogger("lakebed.run")


class VanishedTopics:
    """``there``: asks the brokers for the topics that are there; ``tables``: the logs of the tables, by topic."""

    def __init__(self, there: Callable[[], Collection[str]], tables: Callable[[], Mapping[str, TableLog]]) -> None:
        self._there = there
        self._tables = tables
        self._missed: set[str] = set()

    def look(self) -> None:
        """Compare the topics with the tables. Raises LakebedError if the brokers do not answer."""
        there, tables = self._there(), self._tables()
        missing = {topic for topic in tables if topic not in there}
        for topic, log in tables.items():
            try:
                self._note(topic, log, is_missing=topic in missing)
            except LakebedError as error:  # the next look tries again
                _logger.info("whether the topic %s is gone can't be noted: %s", topic, error)
        self._missed = missing

    def _note(self, topic: str, log: TableLog, *, is_missing: bool) -> None:
        newest = log.newest or log.refresh()
        is_noted = topic_gone_of(newest) is not None
        if is_noted == is_missing or (is_missing and topic not in self._missed):
            return
        if note_topic(log, topic, is_gone=is_missing) and is_missing:
            _logger.warning("the topic %s is gone, or can't be read: nothing comes into %s any more", topic, log.root)

    def run(self, stop: threading.Event) -> None:
        """Look now and then until ``stop`` is set."""
        while not stop.wait(LOOK_SECONDS):
            try:
                self.look()
            except LakebedError as error:
                _logger.info("which topics there are is not known now: %s", error)
            except Exception:
                _logger.exception("which topics there are is not known now")


# -- The work --------------------------------------------------------------------------------------------------------------


_OPEN_THREADS = 16
"""Opening a table is a few requests to its store."""
_DRAIN_SECONDS_MAX = 15.0
_FOLLOWED_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseState:
    """A database at one moment. ``rates``: rows a second of the tables that committed lately, by name; ``unread``: records that
    no batch has read yet, None if that is not known.
    """

    tables: tuple[TableStanding, ...]
    rates: Mapping[str, float]
    unread: int | None

    def count(self, state: str) -> int:
        """How many tables are in a state."""
        return sum(one.state == state for one in self.tables)


class DatabaseWork:
    """See ``run.Work``."""

    table = None

    def __init__(self, pipeline: DatabasePipeline, metrics: Metrics, only: Role | None) -> None:
        """Opens the tables that there are. Raises LakebedError if the brokers do not answer, or refuse the settings."""
        from lakebed.sources.kafka.database_source import KafkaDatabaseReader

        self._pipeline = pipeline
        self._metrics = metrics
        self.path = str(parse_root(pipeline.path))
        self.progress = Progress(self.path, is_database=True)
        self._settings = with_transactions(kafka_settings(pipeline.source), pipeline.database.points)
        self._reader = KafkaDatabaseReader(self._settings)
        self.watches: list[Watch] = store_watches(self.path)
        if only != "maintain":
            self.watches += kafka_watches(self._settings)
            if pipeline.registry is not None:
                self.watches.append(registry_watch(pipeline.registry.settings()))
        self._watches_run = False
        self._introducer = Introducer(pipeline, self._reader)
        self._folder = Path(tempfile.mkdtemp(prefix="database-", dir=process_folder()))
        self._starts = 0
        self._max_ages: dict[str, float] = {}
        self._opened: dict[str, Introduced] = {}
        self._maintenance: TableMaintainers | None = None
        self._ending = threading.Event()
        self._ingest_ends = threading.Event()
        self._following: threading.Thread | None = None
        self._watching: threading.Thread | None = None
        self._spark: SparkSession | None = None
        self._unread: int | None = None
        self._lagging: set[str] = set()
        runner = Runner(self.open_table, together=self._reader.together)
        self._ingest = DatabaseIngest(self.path, self.open_table, points=self._points(), runner=runner)
        self._ingest.is_something_down = lambda: any(
            watch.trouble for watch in self.watches if watch.name != "connector"
        )
        self._ingest.know(self._members())

    # -- ingest --------------------------------------------------------------------------------------------------------

    def start_ingest(self, spark: SparkSession) -> StreamingQuery:
        from lakebed.sources.kafka.database_source import KafkaDatabaseSource
        from lakebed.sources.kafka.gathering import PlannedBatch

        folder = self._folder / str(self._starts)
        folder.mkdir()
        self._starts += 1
        self.watch()
        checkpoint = f"file://{folder}/checkpoint"
        if self._pipeline.checkpoint or self._settings.starting_offsets != "earliest":
            checkpoint = spark_path(checkpoint_of(self._pipeline))
        documents = OffsetDocuments.of(spark, checkpoint)
        first: int | None = None

        def planned(batch_id: int) -> PlannedBatch:
            nonlocal first
            first = batch_id if first is None else first
            batch = PlannedBatch.of(documents.of_batch(batch_id)[1])
            return batch.with_beginnings(positions) if batch_id == first else batch

        positions = self._ingest.begin(planned, lambda request: self._ask(folder, request))
        source = KafkaDatabaseSource(self._settings, folder, positions, pace(self._pipeline))
        common = checkpoint, f"{QUERY_NAME} {self.path}", trigger(self._pipeline.trigger_seconds)
        return start_query(self._ingest, source.stream(spark), *common)

    def end_ingest(self) -> None:
        if self._ingest_ends.is_set():
            return
        self._ingest_ends.set()
        self._ingest.close()
        if self._following is not None:
            self._following.join(_FOLLOWED_SECONDS_MAX)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def ingest_trouble(self) -> LakebedError | None:
        return self._ingest.trouble

    def wake(self) -> None:
        self._ingest.wake()

    def report_lag(self, query: StreamingQuery) -> None:
        waiting = {one.topic: one.unread for one in self._ingest.standings() if one.state != "live"}
        lag, self._unread = lag_of_tables(dict(query.lastProgress or {}), waiting, self._lagging)
        self._lagging = {topic for topic in self._lagging | lag.keys() if lag.get(topic, 1)}
        for topic, records in lag.items():
            if topic in self._opened:
                events.emit(events.SourceLagged(table=self._opened[topic].table.path, topic=topic, records=records))

    def watch(self) -> None:
        """Start what goes on beside the query, unless it has begun: until ``end_ingest``."""
        self._watch_needs()
        self._follow_resnapshots()
        self._watch_topics()

    def _watch_needs(self) -> None:
        """Start the watches over what it needs, unless they run: until ``end_ingest``."""
        if not self._watches_run:
            self._watches_run = True
            for watch in self.watches:
                watch.start(self._ingest_ends)

    def _follow_resnapshots(self) -> None:
        """Follow the connector's notifications in a thread, if the file says where they are."""
        topic = self._pipeline.database.notification_topic
        if topic is None or self._following is not None:
            return

        def tables() -> dict[str, Internals]:
            return {str(found.name): internals_of(found.table) for found in list(self._opened.values())}

        def ends(of: str) -> dict[int, int]:
            from lakebed.sources.kafka.cluster import ends_of

            return {number: offset for (_, number), offset in ends_of(self._settings, of).items()}

        followed = Resnapshots(prefix=self._pipeline.naming.prefix, tables=tables, ends=ends)
        arguments = followed, self._settings, topic, self._ingest_ends, typed_notifications(self._pipeline)
        self._following = threading.Thread(target=follow, args=arguments, name="lakebed-resnapshots", daemon=True)
        self._following.start()

    def _watch_topics(self) -> None:
        """Notice in a thread when topics are gone."""
        if self._watching is not None:
            return
        from lakebed.sources.kafka.cluster import DatabaseCluster

        cluster, earlier = DatabaseCluster(self._settings), cache(self._tables_of_earlier_runs)

        def there() -> set[str]:
            return {topic for topic, _ in cluster.partitions()}

        def tables() -> dict[str, TableLog]:
            return earlier() | {topic: internals_of(one.table).log for topic, one in list(self._opened.items())}

        watching = VanishedTopics(there, tables)
        arguments = (self._ingest_ends,)
        self._watching = threading.Thread(target=watching.run, args=arguments, name="lakebed-topics", daemon=True)
        self._watching.start()

    def _tables_of_earlier_runs(self) -> dict[str, TableLog]:
        """Tables that this pipeline would read, and has not opened since their topics were not there, by topic."""
        opened = {one.table.path for one in list(self._opened.values())}
        found: dict[str, TableLog] = {}
        for root in tables_below(self.path).values():
            if root not in opened:
                log = TableLog(open_store(root))
                topic = log.refresh().settings.source_topic
                if topic is not None and self._settings.chosen({topic}):
                    found[topic] = log
        return found

    def _ask(self, folder: Path, request: PlanRequest) -> None:
        from lakebed.sources.kafka.gathering import Control, write_control

        points = self._pipeline.database.points
        control = Control(
            tick=request.tick,
            default_max_age_seconds=self._pipeline.database.max_age_seconds,
            max_age_seconds=dict(self._max_ages),
            limits=dict.fromkeys(request.left_out, 0),
            together_seconds=points.interval_seconds if points else None,
        )
        write_control(folder, control)

    def _points(self) -> Points | None:
        """What keeps the database's points, if the file asks for them. Raises StoreUnavailable."""
        section = self._pipeline.database.points
        if section is None:
            return None
        transactions: TransactionReader = JsonTransactions()
        if self._pipeline.format_kind in TYPED_FORMATS:
            transactions = TypedTransactions(schemas_of(self._pipeline.format_kind, decoder_options(self._pipeline))[0])
        naming = self._pipeline.naming
        settings = PointSettings(
            topic=section.transaction_topic,
            prefix=naming.prefix,
            wait_seconds=section.wait_seconds,
            is_read=lambda topic: isinstance(naming.table_of(topic), TableName),
        )
        keeper = PointKeeper(settings, PointLog.of(self.path), self._reader.impatient(), transactions)
        return Points(keeper, section.interval_seconds)

    # -- tables --------------------------------------------------------------------------------------------------------

    def _members(self) -> list[Member]:
        """The topics whose tables can be opened now. Any other topic's is opened, or made, by the batch that reads it first."""
        from lakebed.sources.kafka.cluster import DatabaseCluster

        points = self._pipeline.database.points
        topics = {topic for topic, _ in DatabaseCluster(self._settings).partitions()}
        topics -= {points.transaction_topic} if points else set()
        with ThreadPoolExecutor(_OPEN_THREADS, "lakebed-open") as pool:
            return [member for member in pool.map(self._member, sorted(topics)) if member is not None]

    def _member(self, topic: str) -> Member | None:
        try:
            found = self.open_table(topic, ())
            if isinstance(found, Ignored):
                return Member(topic, is_ignored=True)
            return Member(topic, found, parked=parked_of(found.log.refresh()))
        except LakebedError as error:  # or it has none yet: the batch that reads it tries again, and reports it
            _logger.debug("the table of the topic %s is not opened yet: %s", topic, error)
            return None

    def open_table(self, topic: str, ranges: Sequence[Range]) -> OpenTable | Ignored:
        """The table of a topic, which is made if it is not there, of what records in ``ranges`` say. See ``Open``."""
        found = self._introducer.table_for(topic, ranges)
        if isinstance(found, NoTable):
            return Ignored(found.reason)
        if isinstance(found, NotYet):
            raise Retry(f"the topic {topic} can't become a table yet: {found.reason}")
        ingest = ingest_of(self._pipeline, topic, found, self._reader)
        if found.wishes.max_age_seconds != self._pipeline.database.max_age_seconds:
            self._max_ages[topic] = found.wishes.max_age_seconds
        self._opened[topic] = found
        self._maintain(found)
        return OpenTable(str(found.name), found.table.path, internals_of(found.table).log, ingest)

    # -- maintenance ---------------------------------------------------------------------------------------------------

    def maintain(self, spark: SparkSession) -> None:
        self._watch_needs()
        self._maintenance = TableMaintainers()
        self._settle_up_to_points(self._maintenance)
        self._spark = spark
        for found in list(self._opened.values()):
            self._maintain(found)

    def _maintain(self, found: Introduced) -> None:
        maintenance, path = self._maintenance, found.table.path
        if maintenance is not None and path not in maintenance.tables:
            maintenance.add(internals_of(found.table).duties(self._spark))

    @property
    def maintain_trouble(self) -> LakebedError | None:
        troubles = self._maintenance.troubles() if self._maintenance is not None else {}
        return next(iter(troubles.values()), None)

    def _settle_up_to_points(self, maintenance: TableMaintainers) -> None:
        """Settle all tables up to one point now and then, in a thread, if the file asks for it."""
        section = self._pipeline.database.points
        if section is None or section.settle_seconds is None:
            return

        def path(name: str) -> str:
            return f"{self.path}/{TableName(name).folder}"

        settling = SettledPoints(
            PointLog.of(self.path),
            lambda name, version: maintenance.settle_to(path(name), version),
            section.settle_seconds,
            lambda name: maintenance.hold_back(path(name), None),
        )
        threading.Thread(target=settling.run, args=(self._ending,), name="lakebed-settled-points", daemon=True).start()

    def end_maintenance(self, waiting: Callable[[], None]) -> None:
        self._ending.set()
        if self._maintenance is not None:
            for path in self._maintenance.tables:
                self._maintenance.hold_back(path, None)
            self._maintenance.drain(_DRAIN_SECONDS_MAX, waiting)
            self._maintenance.stop()

    def abandon(self) -> None:
        self._ending.set()
        if self._maintenance is not None:
            self._maintenance.stop()

    # -- figures -------------------------------------------------------------------------------------------------------

    def observe(self) -> DatabaseState:
        names = {found.table.path: str(found.name) for found in list(self._opened.values())}
        rates = {names.get(root, root): rate for root, rate in self.progress.rates().items()}
        return DatabaseState(tables=tuple(self._ingest.standings()), rates=rates, unread=self._unread)


def with_transactions(settings: KafkaSettings, points: PointsSection | None) -> KafkaSettings:
    """The settings of a source that also reads the topic of transactions, if points are taken."""
    if points is None or points.transaction_topic in settings.topics:
        return settings
    if settings.topic_pattern is None:
        return replace(settings, topics=(*settings.topics, points.transaction_topic))
    return replace(settings, topic_pattern=f"{settings.topic_pattern}|{re.escape(points.transaction_topic)}")
