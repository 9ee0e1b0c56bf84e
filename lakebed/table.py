"""A table: what users open, change, settle and read. It joins the rooms below and holds no logic of theirs.

table = lakebed.create("lake/orders", schema, keys=["id"], sequence_by="updated_at")
table.apply(changes, apply_as_deletes="op = 'd'")
table.settle()
table.to_arrow(where="region = 'EU'")
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakebed import events
from lakebed.compaction.compactor import Compactor
from lakebed.compaction.follow import follow
from lakebed.compaction.recluster_job import ReclusterJob, ReclusterProgress, ReclusterResult
from lakebed.compaction.service import Compaction, CompactResult
from lakebed.compaction.settle import SettleResult, settle
from lakebed.compaction.wide import WideLocator
from lakebed.errors import (
    Contention,
    InvalidChanges,
    InvalidInput,
    StoreUnavailable,
    TableExists,
    TableNotFound,
)
from lakebed.health.examination import Examination, examine
from lakebed.health.exporter import Exporter
from lakebed.health.sampler import Sampler
from lakebed.health.status import Observer, Status
from lakebed.ingest.batch_writer import (
    BatchResult,
    RowChanges,
    WriteTask,
    Written,
    commit_written,
    write_arrow,
    write_dataframe,
)
from lakebed.ingest.stream import Ingest
from lakebed.keyindex.key_index import KeyIndex
from lakebed.manifest.actions import ChangePart, Commit, CommitInfo, Transaction
from lakebed.manifest.conflicts import BLIND
from lakebed.manifest.leases import require_unexpired
from lakebed.manifest.log_store import LogStore
from lakebed.manifest.schema import SparkSchema, canonical_schema
from lakebed.manifest.snapshot import NAMED_BATCH_PREFIX, Snapshot
from lakebed.manifest.store_probe import probe
from lakebed.manifest.stores import open_store
from lakebed.manifest.table_log import Committed, Conflicted, TableLog, Unknown, require_writable
from lakebed.operations import cleanup
from lakebed.operations.create import create_log
from lakebed.operations.hold import hold
from lakebed.operations.mutate import mutate, unsettled_mutations
from lakebed.operations.mutate_unkeyed import mutate_unkeyed
from lakebed.operations.mutation import Mutation, MutationResult
from lakebed.operations.partitions import Partitions, detached_table
from lakebed.operations.set_sort_key import set_sort_key
from lakebed.parts.changes import OP_COLUMN, SEQUENCE_COLUMN, TableShape, prepare, shape_of
from lakebed.parts.dead_rows import DeadRows
from lakebed.parts.locate import IndexLocator, KeyLocator, ScanLocator, payload_types
from lakebed.parts.materialized import LocalParts, own_folder
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, QUARANTINE_SUFFIX
from lakebed.parts.reads import Reads
from lakebed.planning.plan_table import plan_table
from lakebed.planning.settling import reason_to_settle
from lakebed.settings import (
    check_changeable,
    check_creatable,
    interval_seconds,
    parse_settings,
    suggest,
    wrong_properties,
)
from lakebed.storage.engine import connect, connect_sealed
from lakebed.storage.open import open_part_storage
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.roots import spark_path
from lakebed.version import ENGINE
from lakebed.view import clustering, metadata_tables
from lakebed.view.merge_on_read import TableView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lakebed.compaction.maintenance import Maintenance
    from lakebed.monitoring.metrics import Metrics

STREAMS_FOLDER = "_lakebed/streams"
"""Where the checkpoints of ingest are, unless it is told otherwise: a folder a query."""
_TIDY_SECONDS = 3600.0
_logger = logging.getLogger("lakebed.table")
_SETTLE_LOOK_SECONDS = 5.0


def create(
    path: str | os.PathLike[str],
    schema: pa.Schema | SparkSchema,
    keys: Sequence[str] = (),
    sort_key: Sequence[str] = (),
    sequence_by: str | None = None,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Table:
    """Create a table at a local path or an ``s3://`` one.

    ``schema``: pyarrow or Spark; ``keys``: columns that identify a row (none: an append-only table); ``sort_key``:
    what parts are sorted by, columns or terms such as ``date(ts) desc`` (default: the keys); ``sequence_by``: a column of
    the table or of the changes that orders the changes of a key (default: order of arrival); ``partition_by``: columns that
    cut the table into partitions; ``properties``: see docs/format.md. Raises TableExists, InvalidSchema, InvalidInput,
    UnsafeStore.
    """
    properties = properties or {}
    check_creatable(properties)
    settings = replace(
        parse_settings(properties),
        keys=column_names(keys, "keys"),
        sort_key=column_names(sort_key, "sort_key"),
        sort_key_version=1,
        sequence_by=sequence_by,
    )
    log = _open_log(path)
    if _root(path).startswith("s3"):
        probe(log.store)
    partitions = column_names(partition_by, "partition_by")
    match create_log(log, canonical_schema(schema), settings, partitions, properties, ENGINE):
        case Committed():
            return Table(path, log)
        case Conflicted():
            raise TableExists(f"there is already a table at {path}; open it with lakebed.open, or choose another path")
        case Unknown(_, _, cause):
            raise StoreUnavailable(f"whether the table at {path} was created is unknown: {cause}")


def open(path: str | os.PathLike[str]) -> Table:
    """Open a table. Raises TableNotFound, Unsupported (a feature that lakebed lacks)."""
    log = _open_log(path)
    try:
        properties = log.refresh().metadata.configuration
    except TableNotFound:
        raise TableNotFound(f"there is no table at {path}; create it with lakebed.create") from None
    for wrong in wrong_properties(properties).values():
        _logger.warning("a property of %s counts as not set: %s", path, wrong)
    return Table(path, log)


def observer(path: str | os.PathLike[str]) -> Observer:
    """Looks at the status of a table, also of one that can't be opened."""
    return Observer(os.fspath(path), _cache_folder() / "volatile")


def exporter_of(paths: Sequence[str], metrics: Metrics, interval_seconds: float) -> Exporter:
    """Sets the gauges of tables, also of those that can't be opened yet. Raises InvalidInput for what can't be a path."""
    return Exporter(paths, metrics, _cache_folder() / "volatile", interval_seconds)


class Table:
    """One table. Cheap to keep open; safe to use from several threads. Made by ``create``, ``open`` and ``convert``."""

    def __init__(self, path: str | os.PathLike[str], log: TableLog) -> None:
        self.path = _root(path)
        self._log = log
        self._storage: PartStorage = open_part_storage(self.path)
        self._dead_rows = DeadRows(self._storage)
        self._settling = threading.Lock()
        self._maintaining: tuple[Path, str, int] | None = None
        self._index: tuple[TableShape, IndexLocator] | None = None
        self._index_lock = threading.RLock()
        volatile = _cache_folder() / "volatile" / log.refresh().metadata.id
        self._reads = Reads(log)
        self._view = TableView(
            self.path,
            self._storage,
            self._dead_rows,
            self._reading_locator,
            self._reads,
            log.statistics,
            LocalParts(volatile).load,
            volatile,
        )
        self._tidy_up = cleanup.TidyUp(log, self._storage)
        self._compaction = Compaction(self.path, log, self._storage, self._dead_rows, volatile, self._reads)

    def __repr__(self) -> str:
        return f"lakebed.Table({self.path!r}, version={self.version})"

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The newest version."""
        return self._log.refresh().version

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return self._log.refresh().schema

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties, keys and sort key among them."""
        return dict(self._log.refresh().metadata.configuration)

    def set_properties(self, properties: Mapping[str, str]) -> int:
        """Set some properties; returns the version.

        Raises InvalidInput for one that does not exist, is fixed, or can't have its value.
        """
        check_changeable(properties)
        for _ in range(20):
            snapshot = self._log.refresh()
            merged = dict(snapshot.metadata.configuration) | dict(properties)
            for name, wrong in wrong_properties(merged).items():
                if name in properties:  # beside another
                    raise InvalidInput(wrong)
            metadata = replace(snapshot.metadata, configuration=merged)
            info = CommitInfo(
                operation="SET TBLPROPERTIES", commit_id="", parameters={"properties": dict(properties)}, engine=ENGINE
            )
            outcome = self._log.commit(snapshot, [metadata], info, BLIND)
            if isinstance(outcome, Committed):
                return outcome.version
            if isinstance(outcome, Unknown):
                raise StoreUnavailable(f"whether the properties were set is unknown: {outcome.cause}")
        raise Contention("others kept changing the table's properties")

    def detail(self) -> pa.Table:
        """One row: path, keys, counts of parts, rows and bytes at the newest version."""
        return metadata_tables.detail(self.path, self._log.refresh())

    def parts(self, version: int | None = None) -> pa.Table:
        """The parts at a version (default: the newest), a row each: state is ``base`` or ``tail``."""
        snapshot = self._log.refresh() if version is None else self._log.at_version(version)
        return metadata_tables.parts(snapshot)

    def clustering_information(self) -> pa.Table:
        """How well the base is clustered by its sort key (or keys): a row a level, first one of all levels together.

        Columns: counts of parts (total, constant, unsorted, those that wait to be sorted by a new sort key and how often these
        were read in the last hour), average overlaps and depth, greatest depth, histogram of depths, the deepest ranges.
        Raises InvalidInput for a table without an order.
        """
        snapshot = self._log.refresh()
        return clustering.clustering_information(snapshot, self._reads.of(snapshot), self._log.statistics)

    def draw_clustering(self, file: str | os.PathLike[str]) -> None:
        """Draw the parts as bars over the sort key, level by level, with the depth below, as a PNG.

        Raises InvalidInput, MissingPrerequisite (matplotlib: ``lakebed[plots]``).
        """
        clustering.draw(self._log.refresh(), os.fspath(file), self._log.statistics)

    def timeline(self, last: int = 1000) -> pa.Table:
        """The newest commits that the log still has, newest first: version, time, operation, metrics.

        Raises InvalidInput if ``last`` is not above 0.
        """
        return metadata_tables.timeline(self._newest_commits(last))

    def claims(self) -> pa.Table:
        """Who merges which parts until when, live and expired claims, a row each, oldest first."""
        return metadata_tables.claims(self._log.refresh(), self._log.now_ms())

    def compactions(self, last: int = 1000) -> pa.Table:
        """The merges among the newest commits that the log still has, newest first: the cost, and what the plan foretold.

        Raises InvalidInput if ``last`` is not above 0.
        """
        return metadata_tables.compactions(self._newest_commits(last))

    def _newest_commits(self, last: int) -> list[Commit]:
        if last < 1:
            raise InvalidInput(f"last is {last}; it must be above 0")
        newest = self._log.refresh().version
        return list(self._log.commits(max(self._log.oldest_version(), newest - last + 1), newest))

    def metadata(self, name: str, spark: SparkSession | None = None) -> pa.Table | DataFrame:
        """One of the tables that tell of this one, as Arrow or, given a session, as a DataFrame to be joined and queried.

        ``name``: claims, clustering, compactions, detached, detail, mutations, parts, plan or timeline; each has a method of its
        own too. Raises InvalidInput.
        """
        tables: dict[str, Callable[[], pa.Table]] = {
            "claims": self.claims,
            "clustering": self.clustering_information,
            "compactions": self.compactions,
            "detached": self.detached,
            "detail": self.detail,
            "mutations": self.mutations,
            "parts": self.parts,
            "plan": self.plan,
            "timeline": self.timeline,
        }
        if name not in tables:
            raise InvalidInput(
                f"there is no metadata table {name!r}{suggest(name, tables)}; there are {', '.join(tables)}"
            )
        rows = tables[name]()
        return rows if spark is None else spark.createDataFrame(rows)

    def status(self, deep: bool = False) -> Status:
        """Whether the table is well, in figures and findings, each with a cause and a remedy; ``deep``: the doctor's too."""
        return observer(self.path).look(deep)

    def doctor(self, deep: bool = False) -> Examination:
        """Check every invariant that can be checked on the log and the files; ``deep``: on every row of the newest version too.

        Nothing is changed. Raises StoreUnavailable, Contention.
        """
        return examine(self.path, deep)

    # -- changing --------------------------------------------------------------------------------------------------

    def apply(
        self,
        changes: pa.Table | DataFrame,
        apply_as_deletes: str | None = None,
        except_column_list: Sequence[str] = (),
        batch_id: int | str | None = None,
    ) -> int:
        """Commit one batch of changes; returns the version.

        ``changes``: the table's columns plus those that ``apply_as_deletes`` (a SQL expression such as ``"op = 'd'"``)
        and ``sequence_by`` name; other columns are ignored. A column comes in the table's type, or in one whose values can mean
        one thing only in it (``parts.fitting``). Later rows of a key win unless ``sequence_by`` says otherwise.
        ``except_column_list``: columns of the changes that are not taken over (they become null).
        ``batch_id``: a batch with this id is committed once: numbers must increase, over all writers of the table; a text is
        remembered for seven days. A replay writes nothing and returns the newest version. Raises InvalidChanges (nothing was
        committed), StoreUnavailable, Contention.
        """
        started = time.perf_counter()
        snapshot = self._log.refresh()
        require_writable(snapshot.protocol)
        batch = _batch(batch_id)
        if batch and snapshot.transaction_version(batch.app_id) >= batch.version:
            events.emit(events.BatchReplayed(table=self.path, query=batch.app_id, batch_id=batch.version))
            return snapshot.version
        shape = shape_of(snapshot)
        if isinstance(changes, pa.RecordBatch):
            changes = pa.Table.from_batches([changes])
        if isinstance(changes, pa.Table):
            connection = connect() if apply_as_deletes is None else connect_sealed()
            prepared = prepare(changes, shape, connection, apply_as_deletes, except_column_list)
            written = write_arrow(prepared, shape, self.path)
        else:
            frame = changes_frame(changes, shape, apply_as_deletes, except_column_list)
            task = WriteTask(shape, self.path, RowChanges(shape, strict=True))
            written = _unwrap(lambda: write_dataframe(frame, task))
        result = self._commit(snapshot, written, batch, "APPLY", time.perf_counter() - started)
        return result.version

    def ingest(
        self,
        changes: DataFrame,
        apply_as_deletes: str | None = None,
        except_column_list: Sequence[str] = (),
        *,
        keys: Sequence[str] | None = None,
        sequence_by: str | None = None,
        checkpoint: str | None = None,
        query_name: str = "ingest",
        quarantine: str = "table",
        trigger: Mapping[str, Any] | None = None,
    ) -> StreamingQuery:
        """Start a streaming query that applies every micro-batch of ``changes`` exactly once; returns it.

        The arguments are those of ``apply``; ``keys`` and ``sequence_by``, if given, must be the table's.
        ``checkpoint`` defaults to a folder of the query's name inside the table; ``quarantine`` is ``table`` (bad rows
        go to a table beside this one) or ``fail``; ``trigger`` as for ``DataStreamWriter.trigger``.
        """
        snapshot = self._log.refresh()
        shape = shape_of(snapshot)
        if keys is not None and tuple(keys) != shape.keys:
            raise InvalidInput(
                f"the table's keys are {list(shape.keys)}, not {list(keys)}; keys are fixed when a table is created"
            )
        if sequence_by is not None and sequence_by != shape.sequence_by:
            raise InvalidInput(
                f"the table's sequence_by is {shape.sequence_by!r}, not {sequence_by!r}; it is fixed when a table is created"
            )
        frame = changes_frame(changes, shape, apply_as_deletes, except_column_list)
        return self.ingest_with(
            RowChanges(shape),
            frame,
            checkpoint=checkpoint,
            query_name=query_name,
            quarantine=quarantine,
            trigger=trigger,
        )

    def ingest_with(
        self, stream: Any, frame: DataFrame, *, checkpoint: str | None = None, query_name: str = "ingest",
        quarantine: str = "table", trigger: Mapping[str, Any] | None = None,
    ) -> StreamingQuery:  # fmt: skip
        """Like ``ingest``, for a stream whose tasks turn their input into changes themselves (see ``lakebed.ingest``)."""
        if quarantine not in ("table", "fail"):
            raise InvalidInput(f"quarantine is {quarantine!r}; it must be 'table' or 'fail'")
        ingest = Ingest(self.path, self._log, stream, quarantine, self._quarantine_log)
        place = spark_path(checkpoint) if checkpoint else f"{self._storage.spark_root}/{STREAMS_FOLDER}/{query_name}"
        # Named after the table too: one session may run the queries of many tables.
        name = f"{query_name} {self.path}"
        writer = frame.writeStream.queryName(name).option("checkpointLocation", place).foreachBatch(ingest)
        return writer.trigger(**dict(trigger or {"processingTime": "0 seconds"})).start()

    def delete(self, where: str) -> MutationResult:
        """Delete the rows for which ``where`` (one SQL expression in DuckDB's dialect over a row's columns) is true.

        With keys the rows become deletes at the end of the tail: the delete holds for the version that was read, newer
        changes stand. Without keys they are marked dead where they lie. Raises InvalidInput, Contention, StoreUnavailable.
        """
        return self._mutate(Mutation.of(where))

    def update(self, set: Mapping[str, str], where: str) -> MutationResult:
        """Set columns of the rows for which ``where`` is true to SQL expressions over the row as it was.

        Keys and ``sequence_by`` can't be set. Otherwise like ``delete``.
        """
        return self._mutate(Mutation.of(where, dict(set)))

    def mutations(self) -> pa.Table:
        """Deletes and updates whose changes are still in the tail, oldest first; settling completes them."""
        return unsettled_mutations(self._log)

    def truncate(self) -> int:
        """Take all rows out of the table, the tail included; returns the version. Older versions stay readable."""
        return self._partitions().truncate()

    def detach_partition(self, partition: Mapping[str, Any]) -> str:
        """Take a partition, such as ``{"day": "2026-01-01"}``, out of the table without touching its files.

        Returns the name by which it is attached or dropped. Raises InvalidInput, Contention, StoreUnavailable.
        """
        return self._partitions().detach(partition)

    def attach_partition(self, name: str) -> int:
        """Put a detached partition back; returns the version. Refused if one of its keys is live by now.

        With ``sequence_by``, deletes that came meanwhile hold: rows that are older come back dead.
        """
        return self._partitions().attach(name)

    def drop_detached(self, name: str) -> int:
        """Give up a detached partition; returns how many files were deleted.

        While a version from before the detach can still be read, they are left to the cleanup.
        """
        return self._partitions().drop(name)

    def detached(self) -> pa.Table:
        """The detached partitions, oldest first: name, partition, when, counts of parts, rows and bytes."""
        return detached_table(self._log.refresh())

    def replace_partition(self, partition: Mapping[str, Any], rows: pa.Table) -> int:
        """Put ``rows`` in place of a partition's rows in one commit; returns the version.

        Raises InvalidInput for rows of another partition, or with keys that stand twice, are live elsewhere, or
        were deleted with a newer sequence.
        """
        return self._partitions().replace(partition, rows)

    def settle(self) -> SettleResult:
        """Settle the whole tail, so that every Delta reader sees the changes; returns what it did.

        Raises Contention, StoreUnavailable (settling again is safe).
        """
        return self._settle(self._settling_locator)

    def maintain(
        self, spark: SparkSession, *, checkpoint: str | None = None, trigger: Mapping[str, Any] | None = None
    ) -> Maintenance:
        """Start the sibling streaming query; returns what stops it, waits for it and tells how it does, as a StreamingQuery.

        It follows the log, settles the tail and refreshes views; merges run beside it in threads that end with it. If the query
        fails for a cause that passes, it is started again; log, metrics and ``status`` tell. Raises LakebedError for one that
        does not pass.
        """
        from lakebed.compaction.maintain import maintain

        place = checkpoint
        if place is None:
            # What the query remembers is the last version seen, of no use to others, and a query needs it for itself.
            if self._maintaining is None:
                self._maintaining = own_folder(_cache_folder() / "maintain" / self._log.refresh().metadata.id)
            place = f"file://{self._maintaining[0]}/checkpoint"
        return maintain(spark, self.path, lambda: self._step(spark), self._compactor(spark), place, trigger)

    def plan(self) -> pa.Table:
        """What the planner would do now, best first, and what it leaves alone and why; nothing is done."""
        return plan_table(self._compaction.plan())

    def compact(self) -> CompactResult:
        """Merge in this process until the planner finds nothing more to merge; returns what it did.

        Raises Contention, StoreUnavailable, Corrupt (naming the part that can't be read); compacting again is safe.
        """
        return self._compaction.compact()

    def recluster(
        self, where: str | None = None, final: bool = False,
        on_progress: Callable[[ReclusterProgress], object] | None = None,
        stop: Callable[[], bool] | None = None, dry_run: bool = False,
    ) -> ReclusterResult:  # fmt: skip
        """Sort parts of the base together, so that fewer of them lie over a point of the sort key; returns what it did.

        One round makes the lowest level that is deeper than ``lakebed.recluster_depth`` as shallow as that; ``final``: rounds
        until every level is, and every part is sorted by the table's sort key. ``where``: only parts that may hold such rows.
        It can be stopped at any time (Ctrl-C, ``stop``), and goes on where it was when called again. ``dry_run`` estimates.
        Raises InvalidInput (no sort key, wrong ``where``), StoreUnavailable (no room on disk), Contention, Corrupt.
        """
        job = ReclusterJob(
            self.path, self._log, self._storage, where, final, on_progress, stop or (lambda: False), self._reads.of
        )
        return job.foretold() if dry_run else self._compaction.recluster(job)

    def set_sort_key(self, columns: Sequence[str]) -> int:
        """Change what parts are sorted by; returns the version. No row is moved: new parts are sorted so from now on, and the
        older ones are sorted bit by bit by running maintenance, those read most first, or at once by ``recluster(final=True)``.

        ``columns`` as for ``create``; none: by the keys again. The same sort key again changes nothing. Raises InvalidInput.
        """
        return set_sort_key(self._log, column_names(columns, "sort_key"))

    def clean_log(self) -> int:
        """Checkpoint, and delete log files that nothing within ``lakebed.log_retention`` needs; returns how many."""
        snapshot = self._log.refresh()
        self._log.write_checkpoint(snapshot)
        now_ms = cleanup.time_of_cleaning(self._log, self._storage)
        return self._log.clean(snapshot.settings.log_retention_seconds, now_ms)

    def expire_snapshots(
        self, older_than: str | timedelta | None = None, retain_last: int = 1, dry_run: bool = True,
        allow_short_retention: bool = False,
    ) -> pa.Table:  # fmt: skip
        """End versions older than ``older_than`` but the newest ``retain_last``: delete their log files and data files.

        ``older_than``: ``"7 days"`` or a timedelta, by default ``delta.deletedFileRetentionDuration`` (7 days); less than
        an hour only with ``allow_short_retention``. Returns a row a file: path, bytes, reason (``log``; ``expired``: of a
        version that ended; ``orphan``: no kept version names it; ``temporary``: a crashed writer's), modified. A dry run,
        the default, only tells. Raises InvalidInput, Corrupt (no version names a file, and the log does not tell how the
        table became empty), Contention, StoreUnavailable.
        """
        seconds = interval_seconds(older_than)
        return cleanup.expire_snapshots(self._log, self._storage, seconds, retain_last, dry_run, allow_short_retention)

    def remove_orphan_files(
        self, older_than: str | timedelta | None = None, dry_run: bool = True, allow_short_retention: bool = False
    ) -> pa.Table:
        """Delete files that no version within retention names and that are older than ``older_than`` (default: 3 days).

        The age is what protects files of writers that have not committed yet. Otherwise like ``expire_snapshots``.
        """
        seconds = interval_seconds(older_than)
        return cleanup.remove_orphan_files(self._log, self._storage, seconds, dry_run, allow_short_retention)

    def vacuum(
        self, retention: str | timedelta | None = None, dry_run: bool = True, allow_short_retention: bool = False
    ) -> pa.Table:
        """Delete data files that only versions older than ``retention`` name, and orphans; the log stays as it is.

        Those versions can't be read any more. Otherwise like ``expire_snapshots``.
        """
        return cleanup.vacuum(self._log, self._storage, interval_seconds(retention), dry_run, allow_short_retention)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, spark: SparkSession, version: int | None = None, timestamp: str | float | None = None) -> DataFrame:
        """The table at one version, tail included, as a DataFrame that stays at that version.

        ``timestamp``: epoch seconds, or an ISO text (UTC without an offset); the newest version committed until then.
        Raises Corrupt, naming the file, if one is missing or damaged that the tail needs. Files that only a query reads
        are looked at by Spark when it runs: it raises its own error then (FAILED_READ_FILE), which names the file, and its
        advice to refresh does not help: ``to_arrow`` says what to do.
        """
        return self._view.dataframe(spark, self._at(version, timestamp))

    def hold(self, version: int, seconds: float) -> AbstractContextManager[int]:
        """Keep a version from being cleaned up for so many seconds, or until the ``with`` block ends, for a long reader.

        Raises VersionNotFound if it has expired.
        """
        return hold(self._log, version, seconds)

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: str | None = None, version: int | None = None
    ) -> pa.Table:
        """The table at one version, tail included, without Spark. ``where`` is one SQL expression over a row's columns.

        It has no subquery, aggregate or window function. Raises InvalidInput.
        """
        return self._view.arrow(self._at(version, None), columns, where)

    def lookup(
        self, keys: pa.Table | Sequence[Any], columns: Sequence[str] | None = None, version: int | None = None
    ) -> pa.Table:
        """The rows of some keys at one version, tail included, without Spark; in no particular order.

        ``keys``: values of the one key, or a table of columns of this one: rows come back that equal one of its rows in all
        of them, whether or not they are the keys. Only parts and row groups that may hold them are read. Raises InvalidInput.
        """
        return self._view.lookup(self._at(version, None), keys, columns)

    def query(self, sql: str, name: str | None = None, *, allow_files: bool = False) -> pa.Table:
        """The result of a SQL query (DuckDB's dialect) on the newest version; the table's name is its folder's.

        It is one SELECT (also DESCRIBE, SUMMARIZE, EXPLAIN of one) over this table. ``allow_files``: it may be any statements,
        and read and write whatever this process may; the last one's result is returned. Raises InvalidInput.
        """
        return self._view.query(self._at(None, None), sql, Path(self.path).name if name is None else name, allow_files)

    def create_view(self, spark: SparkSession, name: str) -> None:
        """Create or replace a temporary view of the newest version; running maintenance keeps it fresh."""
        self._view.register(spark, name)
        self._view.refresh(self._log.refresh())

    def changes(self, from_version: int, to_version: int | None = None, spark: SparkSession | None = None) -> DataFrame:
        """The change rows of the versions from ``from_version`` to ``to_version`` (both included; default: the newest).

        Columns: the table's, then ``_change_type`` (``upsert``, ``delete``, or ``truncate`` without values),
        ``_change_sequence`` if what orders the changes is no column of the table, ``_commit_version``, ``_commit_timestamp``.
        A change that lacks values its source did not send stands, whole, in the version that settles it.
        As a stream: ``spark.readStream.format("lakebed_changes").option("path", …)``.
        """
        from lakebed.view.changes import changes_dataframe

        return changes_dataframe(spark, self.path, self._log, from_version, to_version)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _sampler(self) -> Sampler:
        """Takes the figures of the table again and again, for gauges."""
        return Sampler(self.path, self._log, _cache_folder() / "volatile")

    def _compactor(self, spark: SparkSession | None) -> Compactor:
        """What merges, cleans up, and settles what becomes due with time, in the background; not started yet."""
        log_retention_seconds = self._log.refresh().settings.log_retention_seconds
        chores: dict[Callable[[], object], float] = {
            self._tidy: max(60.0, min(_TIDY_SECONDS, log_retention_seconds / 2))
        }
        chores[lambda: self._settle_if_due(spark)] = _SETTLE_LOOK_SECONDS
        return self._compaction.in_background(spark, chores)

    def _follow(self, stop: threading.Event) -> None:
        """Maintain the table in this thread, without Spark, until ``stop`` is set."""
        follow(self.path, self._log, lambda: self._step(None), self._compactor(None), stop)

    def _step(self, spark: SparkSession | None) -> None:
        """One round of maintenance: settle if it is due, refresh the views; tidy the index when idle."""
        settled = self._settle_if_due(spark)
        self._view.refresh(self._log.refresh())
        if not settled:
            with self._index_lock:
                if self._index:
                    self._index[1].tidy()

    def _settle_if_due(self, spark: SparkSession | None) -> bool:
        """Settle if the planner says so; returns whether something was settled."""
        with self._settling:  # a tail that waits may become due while a batch is looked at
            now_ms = int(time.time() * 1000)
            if reason_to_settle(self._log.refresh(), now_ms, self._log.statistics) is None:
                return False
            locator = self._wide_locator(spark) if spark else self._settling_locator
            return self._settle(locator).commits > 0

    def _tidy(self) -> None:
        """What is done every hour (or twice in the log's retention), in the background: what no kept version needs goes."""
        self.clean_log()
        while self._tidy_up.round() == cleanup.DELETIONS_MAX:
            pass

    def _settle(self, locator: Callable[[TableShape], KeyLocator]) -> SettleResult:
        result = settle(self._log, self._storage, self._dead_rows, locator, self._set_aside, ENGINE)
        if result.commits or result.conflicts:
            events.emit(
                events.Settled(
                    table=self.path,
                    version=result.version,
                    change_parts=result.change_parts,
                    rows=result.rows,
                    rows_marked_dead=result.rows_marked_dead,
                    conflicts=result.conflicts,
                    seconds=result.seconds,
                    bytes_written=result.bytes_written,
                    quarantined=result.quarantined_rows,
                    superseded=result.late_or_superseded_rows,
                    late=result.late_rows,
                )
            )
        return result

    def _mutate(self, mutation: Mutation) -> MutationResult:
        snapshot = self._log.refresh()
        require_writable(snapshot.protocol)
        operation = mutation.operation.lower()
        events.emit(events.MutationBegan(table=self.path, operation=operation, where=mutation.where.text))
        try:
            if snapshot.settings.keys:
                result = mutate(self._log, self._storage, self._view.rows_for_sql, mutation)
            else:
                result = mutate_unkeyed(self._log, self._storage, self._dead_rows, mutation)
        except BaseException as error:
            events.emit(events.MutationFailed(table=self.path, operation=operation, error=str(error)))
            raise
        events.emit(
            events.MutationEnded(
                table=self.path,
                operation=operation,
                version=result.version,
                rows=result.rows,
                rows_left=result.rows_left,
                parts_read=result.parts_read,
                parts_marked=result.parts_marked,
                parts_added=result.parts_added,
                bytes_written=result.bytes_written,
                conflicts=result.conflicts,
                seconds=result.seconds,
            )
        )
        return result

    def _partitions(self) -> Partitions:
        return Partitions(self._log, self._storage, self._dead_rows, self.settle, self._settling_locator)

    def _wide_locator(self, spark: SparkSession) -> Callable[[TableShape], KeyLocator]:
        return lambda shape: WideLocator(self._settling_locator(shape), spark, shape, self.path)

    def _commit(
        self, snapshot: Snapshot, written: Written, batch: Transaction | None, operation: str, before_seconds: float
    ) -> BatchResult:
        if not written.parts and batch is None:
            return BatchResult(version=snapshot.version, snapshot=snapshot)
        result = commit_written(self._log, snapshot, written, batch, operation, ENGINE)
        if result.replayed and batch:
            events.emit(events.BatchReplayed(table=self.path, query=batch.app_id, batch_id=batch.version))
            return result
        newest = None if written.newest_event_us is None else written.newest_event_us / 1e6
        events.emit(
            events.BatchCommitted(
                table=self.path,
                version=result.version,
                rows=written.rows,
                bytes=sum(part.bytes for part in written.parts),
                parts=len(written.parts),
                quarantined=sum(part.rows for part in written.quarantined),
                seconds=before_seconds + result.commit_seconds,
                commit_seconds=result.commit_seconds,
                attempts=result.attempts,
                newest_event_seconds=newest,
                ignored=0,
                query=batch.app_id if batch else "",
                batch_id=batch.version if batch else None,
            )
        )
        self._log.checkpoint_if_due(result.snapshot, slack=2)  # nobody maintains the table: the writer must
        return result

    def _set_aside(self, change_part: ChangePart, records: pa.Table) -> None:
        """Commit records that a change part leaves behind to the quarantine, once for the part.

        Its name is the batch id, which is remembered for seven days: a settle that crashes is done again before.
        """
        log = self._quarantine_log()
        snapshot = log.refresh()
        batch = Transaction(NAMED_BATCH_PREFIX + change_part.domain, 0)
        if snapshot.transaction_version(batch.app_id) < batch.version:
            written = write_arrow(records, shape_of(snapshot), self.path + QUARANTINE_SUFFIX)
            commit_written(log, snapshot, written, batch, "QUARANTINE", ENGINE)

    def _quarantine_log(self) -> TableLog:
        path = self.path + QUARANTINE_SUFFIX
        try:
            return open(path)._log
        except TableNotFound:
            try:
                return create(path, QUARANTINE_SCHEMA)._log
            except TableExists:
                return open(path)._log

    def _at(self, version: int | None, timestamp: str | float | None) -> Snapshot:
        if version is not None and timestamp is not None:
            raise InvalidInput("give a version or a timestamp, not both")
        newest = self._log.refresh()
        if timestamp is not None:
            version = self._log.version_at(_epoch_ms(timestamp))
        if version is None:
            return newest
        require_unexpired(newest.domains, version, self._log.now_ms())
        return self._log.at_version(version)

    def _settling_locator(self, shape: TableShape) -> KeyLocator:
        """The key index of this process, opened when it is first needed."""
        with self._index_lock:
            if self._index is None or self._index[0] != shape:
                if self._index:
                    self._index[1].close()
                keys = {name: shape.schema.field(name).type for name in shape.keys}
                index = KeyIndex(_cache_folder() / self._log.refresh().metadata.id, keys, payload_types(shape))
                self._index = (shape, IndexLocator(index, shape, self._storage))
            return self._index[1]

    def _reading_locator(self, shape: TableShape) -> KeyLocator:
        """The key index if this process has one; a reader alone does not build one."""
        with self._index_lock:
            if self._index is not None and self._index[0] == shape:
                return self._index[1]
        return ScanLocator(shape, self._storage)


def changes_frame(
    changes: DataFrame, shape: TableShape, apply_as_deletes: str | None, except_columns: Sequence[str]
) -> DataFrame:
    """A user's DataFrame as a struct of the columns that the write tasks expect, the operation worked out by Spark."""
    if apply_as_deletes is not None and not shape.keys:
        raise InvalidInput("apply_as_deletes needs a table with keys; this one has none, so it can only be appended to")
    known = set(changes.columns)
    for name in known:
        if changes.columns.count(name) > 1:
            raise InvalidChanges(f"the changes have the column {name!r} more than once; leave one of them out")
    for name in except_columns:
        if name not in known:
            raise InvalidInput(f"except_column_list names {name!r}, which the changes lack")
        if name in shape.keys or name == shape.sequence_by:
            raise InvalidInput(
                f"except_column_list names {name!r}, which is a key or orders the changes; it can't be left out"
            )
    columns = []  # as one text: every Column is a round trip to the JVM
    for field in shape.schema:
        if field.name in except_columns:
            columns.append(f"null as {_quoted(field.name)}")
        elif field.name in known:
            columns.append(_quoted(field.name))
        else:
            raise InvalidChanges(
                f"the changes lack the column {field.name!r} of the table; add it (null where there is no value)"
            )
    if shape.keys:
        deleted = "false"
        if apply_as_deletes is not None:
            _require_spark_expression(changes, apply_as_deletes)
            deleted = f"coalesce(cast(({apply_as_deletes}\n) as boolean), false)"
        columns.append(f"case when {deleted} then 'd' else 'u' end as {OP_COLUMN}")
    if shape.sequence_by is not None and shape.sequence_column == SEQUENCE_COLUMN:
        if shape.sequence_by not in known:
            raise InvalidChanges(f"the changes lack the column {shape.sequence_by!r}, which sequence_by names")
        columns.append(f"{_quoted(shape.sequence_by)} as {SEQUENCE_COLUMN}")
    try:
        return changes.selectExpr(f"struct({', '.join(columns)}) as row")
    except Exception as error:
        if apply_as_deletes is None or not _is_of_spark(error):
            raise
        raise InvalidInput(f"apply_as_deletes={apply_as_deletes!r} can't be evaluated: {_first_line(error)}") from None


def _require_spark_expression(frame: DataFrame, text: str) -> None:
    """Raises InvalidInput if Spark does not read the text by itself as one expression: no bracket in it closes one of ours."""
    try:
        frame.sparkSession._jsparkSession.sessionState().sqlParser().parseExpression(text)
    except Exception as error:
        if not _is_of_spark(error):
            raise
        raise InvalidInput(f"apply_as_deletes={text!r} is not one SQL expression: {_first_line(error)}") from None


def _is_of_spark(error: Exception) -> bool:
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "no reason given")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _unwrap(run: Callable[[], Written]) -> Written:
    """A task's InvalidChanges as itself, not as the text of a Spark failure."""
    try:
        return run()
    except Exception as error:
        text = str(error)
        marker = "lakebed.errors.InvalidChanges: "
        if marker in text:
            raise InvalidChanges(text.split(marker, 1)[1].splitlines()[0]) from None
        raise


def _batch(batch_id: int | str | None) -> Transaction | None:
    if batch_id is None:
        return None
    if isinstance(batch_id, str):
        return Transaction(f"{NAMED_BATCH_PREFIX}{batch_id}", 0)
    if batch_id < 0:
        raise InvalidInput(f"batch_id is {batch_id}; a number must be 0 or more, and grow from batch to batch")
    return Transaction("lakebed.apply", batch_id)


def _open_log(path: str | os.PathLike[str]) -> TableLog:
    store: LogStore = open_store(_root(path))
    return TableLog(store)


def _root(path: str | os.PathLike[str]) -> str:
    return open_part_storage(os.fspath(path)).root


def _cache_folder() -> Path:
    """Where what can be rebuilt is kept on local disk."""
    base: str = os.environ.get("LAKEBED_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lakebed"
    )
    return Path(base) / "tables"


def _epoch_ms(timestamp: str | float) -> int:
    import datetime

    if isinstance(timestamp, (int, float)):
        return int(timestamp * 1000)
    try:
        moment = datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    except ValueError:
        raise InvalidInput(f"{timestamp!r} is no time; write for example '2026-01-31T12:00:00Z'") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


def column_names(names: Sequence[str], purpose: str) -> tuple[str, ...]:
    """The names as a tuple; one name may stand alone. Raises InvalidInput."""
    if isinstance(names, str):
        return (names,)
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"{purpose} must be column names, not {list(names)!r}")
    return tuple(names)
