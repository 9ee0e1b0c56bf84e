"""The log, storage and caches of one open table. For the rooms above, tests and benchmarks: not public, it may change.

``internals_of(table)`` gives the log, the storage and the caches that ``table`` itself uses.

**Whether the keys of new parts are unique**, among themselves and beside other parts, is a query of Spark's, for many keys. The
driver gets one key at most. Equal is what Spark's groups and joins take for equal: NaN equals NaN, and -0.0 equals 0.0, as in
the key index.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakebed.compaction.compaction import Compaction
from lakebed.compaction.maintenance import Maintenance
from lakebed.compaction.maintenance_query import MaintenanceQuery, commits_of
from lakebed.compaction.settler import Settler
from lakebed.compaction.table_maintainer import Chore, TableDuties
from lakebed.coordination.read_counts import ReadCounts
from lakebed.coordination.rewriting import alone
from lakebed.decode.decoder import Decoder
from lakebed.errors import InvalidInput, LakebedError, TableDropped, TableExists, TableNotFound
from lakebed.failures import spark_job
from lakebed.far_times import python_rows
from lakebed.health.sampler import Sampler
from lakebed.iceberg.publisher import BackgroundPublisher
from lakebed.iceberg.publisher import tidy as tidy_iceberg
from lakebed.ingest.apply import bootstrap
from lakebed.ingest.evolving import Evolution, set_aside
from lakebed.ingest.replay import Replay, ReplayResult
from lakebed.ingest.sorted_rows import write_sorted
from lakebed.ingest.stream import FrameIngest, OffsetDocuments, RangeIngest, start_query
from lakebed.log.actions import ChangePart, Part
from lakebed.log.claims import claims_of
from lakebed.log.entries import QUARANTINED, Operation
from lakebed.log.removals import purged_before, purges_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.merge.materialized import LocalParts, clear_ended
from lakebed.operations.alter import alter
from lakebed.operations.cleanup import DELETIONS_MAX, BackgroundCleanup, clean_log
from lakebed.operations.create import NewTable, create
from lakebed.operations.mutate import Mirror, run_mutation
from lakebed.operations.mutation import Mutation, MutationResult
from lakebed.operations.overwrite import Overwriting, Tasks
from lakebed.operations.partitions import Partitions
from lakebed.operations.purge.files import KEY_INDEX, VOLATILE, PurgedFile
from lakebed.operations.purge.purge import Purge
from lakebed.operations.region import Region, one_partition, region_where
from lakebed.operations.time_to_live import RowExpiry
from lakebed.parts.arrow_rows import Rows, is_spark_frame
from lakebed.parts.changes import WriteSpec
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.quarantine import HEADERS, HEADERS_TYPE, QUARANTINE_SCHEMA, QUARANTINE_SUFFIX, Handover
from lakebed.quoting import quote_for_spark
from lakebed.resolve.locate import KeyLocator
from lakebed.resolve.locators import Locators
from lakebed.schema.change import SchemaChange
from lakebed.sources.source import RangeChanges
from lakebed.sparks.cluster import Cluster
from lakebed.sparks.jvm import is_on_one_machine, is_stopped, require_classic
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.local_folders import cache_folder, process_folder, volatile_folder
from lakebed.storage.roots import spark_path
from lakebed.view.merge_on_read import TableView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# -- Whether keys are new ----------------------------------------------------------------------------------------------


def _require_new_keys(
    view: TableView,
    spark: SparkSession,
    snapshot: Snapshot,
    new: Sequence[Part],
    beside: Sequence[Part],
    whose: str,
) -> None:
    """Raises InvalidInput naming a key that is twice in the new parts, or live in those beside them. ``whose``: the new rows."""
    names = snapshot.logical_settings.keys
    columns = [f"k{at}" for at in range(len(names))]

    def keys_of(parts: Sequence[Part]) -> DataFrame:
        frame = view.dataframe_of_parts(spark, snapshot, parts)
        return frame.selectExpr(
            *(f"{quote_for_spark(name)} as {column}" for name, column in zip(names, columns, strict=True))
        )

    def first(found: DataFrame) -> object:
        with spark_job():
            rows = found.select(*columns).limit(1).toArrow()
        return next(iter(python_rows(rows.rename_columns(list(names)))), None)

    if not new:
        return
    own = keys_of(new)
    if twice := first(own.groupBy(*columns).count().where("count > 1")):
        raise InvalidInput(f"{whose} hold the key {twice} twice")
    if beside and (live := first(keys_in_both(own, keys_of(beside)))):
        raise InvalidInput(f"{whose} have the key {live}, which is live in the table; delete one of the two")


def keys_in_both(own: DataFrame, others: DataFrame) -> DataFrame:
    """The keys that both have. Sorted keys are tiny in files, so Spark would broadcast millions of them from the driver."""
    return own.join(others.hint("merge"), own.columns, "left_semi")


# -- What an open table has --------------------------------------------------------------------------------------------


STREAMS_FOLDER = "_lakebed/streams"
"""Where the checkpoints of ingest are, unless it is given another place: a folder a query."""
_TIDY_SECONDS = 3600.0
_CHECKPOINT_LOOK_SECONDS = 5.0
_STOP_LOOK_SECONDS = 0.1
_PURGES_LOOK_SECONDS = 60.0
_EXPIRY_SECONDS = 600.0
_REPLICATE_SECONDS = 2.0
_logger = logging.getLogger("lakebed.compact")
_ingest_logger = logging.getLogger("lakebed.ingest")


def open_log(root: str, as_given: str = "") -> TableLog:
    """The log at a root; ``as_given``: the path as the user wrote it, for messages.

    Raises TableNotFound, TableDropped, Unsupported (a feature that lakebed lacks).
    """
    log = TableLog(open_store(root))
    try:
        log.refresh()
    except TableDropped:
        raise
    except TableNotFound:
        raise TableNotFound(
            f"there is no table at {as_given or root}; create it with lakebed.create", table=root
        ) from None
    return log


class Internals:
    """The log, storage and caches of one open table, and what this process runs for it. Safe to use from several threads."""

    def __init__(self, path: str, log: TableLog) -> None:
        """``path``: the table's root; ``log``: of a table that exists."""
        self.path = path
        self.log = log
        self.storage = open_part_storage(path)
        self.deletion_vectors = DeletionVectorCache(self.storage)
        self.reads = ReadCounts(log)
        table_id = log.refresh().metadata.id
        self.locators = Locators(self.storage, cache_folder() / table_id)
        local = LocalParts(volatile_folder() / table_id)
        self.view = TableView(
            path,
            self.storage,
            self.deletion_vectors,
            self.locators.for_reading,
            reads=self.reads,
            statistics=log.statistics,
            local=local,
        )
        self._purged_before = 0  # as the key index knows it
        self.tidy_up = BackgroundCleanup(log, self.storage)
        self.iceberg = BackgroundPublisher(log, self.storage)
        self.row_expiry = RowExpiry(log, self.storage, self.deletion_vectors, self.locators.for_reading)
        self.compaction = Compaction(path, log, self.storage, self.deletion_vectors, local, self.reads)
        self.settler = Settler(
            path, log, self.storage, self.deletion_vectors, self.locators.for_settling, self._set_aside
        )

    def partitions(self) -> Partitions:
        """Moves whole partitions out of the table and back in."""
        return Partitions(
            self.log, self.storage, self.deletion_vectors, self.settler.settle, self.locators.for_settling
        )

    def mutate(self, mutation: Mutation) -> MutationResult:
        """Delete or update rows."""
        return run_mutation(self.path, self.log, self.storage, self.deletion_vectors, self.view.rows_for_sql, mutation)

    def overwrite(self, rows: Rows | DataFrame, where: str | None, partition: Mapping[str, Any] | None = None) -> int:
        """Put rows in place of those of a partition, of a condition, or of the table; returns the version."""
        operation = Operation.OVERWRITE if partition is None else Operation.REPLACE_PARTITION
        if not is_spark_frame(rows):
            here = self.partitions()
            with alone(self.log, operation):
                return here.overwrite(rows, where) if partition is None else here.replace(partition, rows)
        frame, spark = rows, rows.sparkSession
        require_classic(spark)

        def region_of(snapshot: Snapshot) -> Region:
            return region_where(snapshot, where) if partition is None else one_partition(partition, snapshot)

        def check(snapshot: Snapshot, new: Sequence[Part], beside: Sequence[Part], whose: str) -> None:
            _require_new_keys(self.view, spark, snapshot, new, beside, whose)

        overwriting = Overwriting(
            log=self.log,
            storage=self.storage,
            deletion_vectors=self.deletion_vectors,
            settle=self.settler.settle,
            locator=self.settler.wide_locator(spark),
            tasks=Tasks(
                write=lambda snapshot: write_sorted(frame, snapshot, self.path, region_of(snapshot).rows),
                check=check,
                locator=self.settler.wide_locator(spark, keys_min=0),
            ),
            operation=operation,
            region_of=region_of,
        )
        with alone(self.log, operation):
            return overwriting.run()

    def sampler(self) -> Sampler:
        """Samples the figures of the table regularly, for gauges."""
        return Sampler(self.path, self.log, volatile_folder())

    # -- ingest --------------------------------------------------------------------------------------------------------

    def start_ingest(
        self,
        stream: Any,
        frame: DataFrame,
        *,
        checkpoint: str | None = None,
        query_name: str = "ingest",
        quarantine: str = "table",
        trigger: Mapping[str, Any] | None = None,
    ) -> StreamingQuery:
        """Like ``Table.ingest``, for a stream whose tasks turn their input into changes themselves (see ``lakebed.ingest``)."""
        place = spark_path(checkpoint) if checkpoint else f"{self.storage.spark_root}/{STREAMS_FOLDER}/{query_name}"
        common = self.path, self.log, stream, quarantine, self.quarantine_log
        ingest: RangeIngest | FrameIngest
        if isinstance(stream, RangeChanges):
            evolution = self.evolution(f"records of the stream {query_name} need it")
            ingest = RangeIngest(*common, evolution=evolution, documents=OffsetDocuments.of(frame.sparkSession, place))
        else:
            ingest = FrameIngest(*common)
        # Named after the table too: one session may run the queries of many tables.
        return start_query(ingest, frame, place, f"{query_name} {self.path}", trigger)

    def bootstrap(self, rows: Callable[[], DataFrame], offsets: Mapping[str, Mapping[int, int]]) -> int | None:
        """Fill the table, unless it was filled before (``ingest.apply``)."""
        return bootstrap(self.path, self.log, rows, offsets, self.quarantine_log)

    def replay_quarantine(self, decoder: Decoder, where: str = "true") -> ReplayResult:
        """Apply the quarantined records that are fine now (``ingest.replay``). Raises TableNotFound if there is no quarantine."""
        evolution = self.evolution("records of the quarantine need it")
        quarantine = open_log(self.path + QUARANTINE_SUFFIX)
        return Replay(self.log, quarantine, decoder, evolution, self.locators.for_reading).run(where)

    def evolution(self, reason: str) -> Evolution:
        """Changes the table where changes for it need that; ``reason``: for its history."""

        def altered(change: SchemaChange, why: str) -> None:
            for note in alter(self.log, change, reason=why, by_records=True).notes:
                _ingest_logger.warning("%s was altered (%s), since %s: %s", self.path, change, why, note)

        return Evolution(self.log, altered, reason)

    def _set_aside(self, change_part: ChangePart, records: pa.Table) -> None:
        set_aside(self.path + QUARANTINE_SUFFIX, self.quarantine_log(), change_part, records)

    def quarantine_log(self, has_headers: bool = False) -> TableLog:
        """The log of the quarantine table, which is created when it is first needed, and so is its column of headers."""
        root = self.path + QUARANTINE_SUFFIX
        try:
            log = open_log(root)
        except TableNotFound:
            try:
                create(root, log := TableLog(open_store(root)), NewTable(schema=QUARANTINE_SCHEMA))
            except TableExists:
                log = open_log(root)
        if has_headers and HEADERS not in log.refresh().logical_schema.names:
            alter(log, SchemaChange(add={HEADERS: HEADERS_TYPE}), reason="a record needs its headers to be decoded")
        return log

    def mirror(self) -> Mirror:
        """Removes rows that the source no longer has, at the end of a resnapshot."""
        return Mirror(
            path=self.path,
            log=self.log,
            storage=self.storage,
            deletion_vectors=self.deletion_vectors,
            rows_for_sql=self.view.rows_for_sql,
        )

    def quarantine(self) -> Internals | None:
        """The open quarantine of the table; None if it has none, or is one."""
        if self.path.endswith(QUARANTINE_SUFFIX):
            return None
        try:
            return Internals(self.path + QUARANTINE_SUFFIX, open_log(self.path + QUARANTINE_SUFFIX))
        except TableNotFound:
            return None

    # -- maintenance ---------------------------------------------------------------------------------------------------

    def maintain(
        self,
        spark: SparkSession | None = None,
        as_query: bool | None = None,
        trigger_seconds: float = 1.0,
        checkpoint: str | None = None,
    ) -> Maintenance:
        """Maintain the table in the background. See ``Table.maintain``; without a session it is a thread."""
        if as_query is None:
            as_query = spark is not None and not is_on_one_machine(spark)
        if spark is None or not as_query:
            return Maintenance(self.duties(spark))
        own = None if checkpoint else tempfile.mkdtemp(prefix="maintain-", dir=process_folder())
        place = spark_path(checkpoint) if checkpoint else f"file://{own}"
        trigger = {"processingTime": f"{round(trigger_seconds * 1000)} milliseconds"}

        def start(each_batch: Callable[[DataFrame, int], None]) -> StreamingQuery:
            return start_query(each_batch, commits_of(spark, self.path), place, f"maintain {self.path}", trigger)

        return MaintenanceQuery(self.duties(spark), start)

    def follow(self, stop: threading.Event) -> None:
        """Maintain the table without Spark until ``stop`` is set. Raises the error that ends the maintenance."""
        maintenance = self.maintain()
        try:
            while not stop.wait(_STOP_LOOK_SECONDS):
                maintenance.awaitTermination(0)
        finally:
            maintenance.stop()

    def duties(
        self,
        spark: SparkSession | None = None,
        in_fleet: bool = False,
        cluster: Cluster | None = None,
        found_version: int | None = None,
    ) -> TableDuties:
        """What the maintenance of this table consists of; starts nothing. With a session, it ends when Spark stops.

        ``in_fleet``: by a worker of a fleet, on whose host nobody reads. ``cluster``: where its large merges run.
        ``found_version``: up to there others may have tried to settle (default: up to the newest version).
        """
        merge_runner = self.compaction.in_background(spark, in_fleet, cluster)
        newest = self.log.refresh()
        log_retention_seconds = newest.settings.log_retention_seconds
        self.settler.spark = spark
        if self.settler.found_version is None:
            self.settler.found_version = newest.version if found_version is None else found_version
        return TableDuties(
            path=self.path,
            log=self.log,
            step=self.step,
            settler=self.settler,
            merge_runner=merge_runner,
            release=self._release,
            renewed=lambda: self.duties(spark, in_fleet, cluster),
            holds_local_parts=self.compaction.holds_local_parts,
            chores=(
                *self.compaction.chores(),
                Chore(
                    run=self.replicate, seconds=_REPLICATE_SECONDS, is_needed=self.compaction.replicates, merges=True
                ),
                Chore(run=self.tidy, seconds=max(60.0, min(_TIDY_SECONDS, log_retention_seconds / 2))),
                Chore(run=self.go_on_with_purges, seconds=_PURGES_LOOK_SECONDS, is_needed=self._has_purges),
                Chore(
                    run=self.row_expiry.run_due, seconds=_EXPIRY_SECONDS, is_needed=lambda: self.row_expiry.is_needed
                ),
                Chore(run=self.checkpoint, seconds=_CHECKPOINT_LOOK_SECONDS, is_needed=self._is_checkpoint_due),
                Chore(
                    run=self.iceberg.publish_newest,
                    seconds=newest.settings.iceberg_seconds,
                    is_needed=self.iceberg.is_behind,
                    is_owed=True,
                ),
            ),
            spark_runs=lambda: spark is None or not is_stopped(spark),
        )

    def step(self) -> None:
        """One maintenance cycle on the newest snapshot in memory: settle if due, refresh the views; tidy the index when idle."""
        settled = self.settler.settle_if_due(looks=False)
        newest = self.log.newest or self.log.refresh()
        self.view.refresh(newest)
        if purged_before(newest.domains) != self._purged_before and self.locators.rewrite_open(newest.parts):
            self._purged_before = purged_before(newest.domains)
        if not settled:
            self.locators.tidy()

    def replicate(self) -> None:
        """Build for the readers of this host what another host merges, and let the views read it."""
        self.compaction.replicate()
        if self.log.newest is not None:
            self.view.refresh(self.log.newest)

    def _release(self, index_bytes_kept: int | None) -> None:
        self.locators.release(index_bytes_kept)
        if index_bytes_kept is None:
            self.compaction.replication.close()
            try:
                self.settler.end()
            except LakebedError as error:
                _logger.warning("that this process tries to settle %s no more could not be noted: %s", self.path, error)

    def checkpoint(self) -> None:
        """Write a checkpoint if one is due. With many parts this takes seconds; settling does not wait for it."""
        if self.log.newest is not None:  # the cycle and the merge runner keep it fresh
            self.log.checkpoint_if_due(self.log.newest)

    def _is_checkpoint_due(self) -> bool:
        return self.log.newest is not None and self.log.checkpoint_is_due(self.log.newest)

    def go_on_with_purges(self) -> None:
        """Bring purges to their end whose processes have died."""
        purge_of(self).resume()

    def _has_purges(self) -> bool:
        return self.log.newest is not None and bool(purges_of(self.log.newest.domains))

    def look_after(self) -> None:
        """What maintenance does now and then, at once, for a table that nobody maintains in the meantime."""
        self.tidy()
        if self.row_expiry.is_needed:
            self.row_expiry.run_due()

    def tidy(self) -> None:
        """Delete what no kept version needs; done hourly (or twice in the log's retention)."""
        clean_log(self.log, self.storage)
        tidy_iceberg(self.log, self.storage, self.log.refresh())
        while self.tidy_up.run_once() == DELETIONS_MAX:
            pass


def purge_of(internals: Internals) -> Purge:
    """Purges rows of the table."""
    return Purge(internals.log, internals.storage, internals.deletion_vectors, _PurgedTable(internals))


def _clear_copies(internals: Internals, snapshot: Snapshot) -> list[PurgedFile]:
    """Delete what is on local disks of this host of parts that the version lacks; returns the files."""
    now_ms = internals.log.now_ms()
    claims = {one.id for one in claims_of(snapshot.domains).values() if snapshot.parts.keys() >= set(one.sources)}
    local = clear_ended(internals.compaction.volatile_base, claims)
    files = [PurgedFile(path=path, where=VOLATILE, bytes=size, gone_ms=now_ms) for path, size in local.items()]
    runs = internals.locators.forget_removed(snapshot.parts)
    if runs is None:
        note = "another process on this host uses it; it writes it again when it next settles or looks at the log"
        folder = str(internals.locators.folder)
        return [*files, PurgedFile(path=folder, where=KEY_INDEX, note=note)]
    return [
        *files,
        *(PurgedFile(path=path, where=KEY_INDEX, bytes=size, gone_ms=now_ms) for path, size in runs.items()),
    ]


class _PurgedTable:
    """See ``operations.purge.purge.PurgedTable``."""

    def __init__(self, internals: Internals) -> None:
        self._internals = internals

    def delete(self, where: str) -> object:
        return self._internals.mutate(Mutation.of(where))

    def settle(self) -> object:
        return self._internals.settler.settle()

    def locator(self, spec: WriteSpec) -> KeyLocator:
        return self._internals.locators.for_reading(spec)

    def clear_local(self, snapshot: Snapshot) -> list[PurgedFile]:
        return _clear_copies(self._internals, snapshot)

    def quarantine(self) -> Purge | None:
        beside = self._internals.quarantine()
        return None if beside is None else purge_of(beside)

    def deliver(self) -> str | None:
        snapshot = self._internals.log.refresh()
        Handover(self._internals.path, self._internals.quarantine_log).deliver(snapshot)
        return snapshot.domains.get(QUARANTINED)
