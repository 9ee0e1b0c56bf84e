"""A table: what users open, change, settle and read. It joins the rooms below and holds no logic of theirs.

table = lakebed.create("lake/orders", schema, keys=["id"], sequence_by="updated_at")
table.apply(changes, apply_as_deletes="op = 'd'")
table.settle()
table.to_arrow(where="region = 'EU'")
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from lakebed.compaction.settle import SettleResult
from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.far_times import pandas_frame
from lakebed.health.examination import Examination, examine
from lakebed.health.status import Observer, Status
from lakebed.ingest.apply import How, apply, filled, frame_changes
from lakebed.ingest.stream import require_keys
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.operations.alter import AlterResult, alter, evolved_by
from lakebed.operations.convert import convert as convert_table
from lakebed.operations.create import NewTable
from lakebed.operations.create import create as create_table
from lakebed.operations.mutate.mutation import Mutation, MutationResult
from lakebed.operations.mutate.run import run_mutation
from lakebed.operations.restore import restore
from lakebed.operations.set_properties import set_properties
from lakebed.operations.set_sort_key import set_sort_key
from lakebed.parts.arrow_rows import Rows
from lakebed.parts.changes import write_spec_of
from lakebed.schema.conversion import SparkSchema, canonical_type
from lakebed.schema.evolve import SchemaChange
from lakebed.schema.fitting import Evolution, EvolvePolicy, OnMismatch
from lakebed.schema.type_names import parse_type
from lakebed.settings import PropertyValue, TableSettings, column_names, property_texts, wrong_properties
from lakebed.storage.open import open_part_storage
from lakebed.table.html import table_as_html
from lakebed.table.inspect import TableInspect
from lakebed.table.internals import Internals, open_log, purge_of
from lakebed.table.maintenance import TableMaintenance
from lakebed.view.time_travel import snapshot_at

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lakebed.compaction.maintenance import Maintenance

_logger = logging.getLogger("lakebed.table")


def create(
    path: str | os.PathLike[str],
    schema: pa.Schema | SparkSchema,
    keys: Sequence[str] = (),
    sort_key: Sequence[str] = (),
    *,
    sequence_by: str | None = None,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, PropertyValue] | None = None,
    types: Literal["given", "wide"] = "given",
) -> Table:
    """Create a table at a local path or an ``s3://`` one.

    ``schema``: pyarrow or Spark; ``keys``: columns that identify a row (none: an append-only table); ``sort_key``:
    what parts are sorted by, columns or terms such as ``date(ts) desc`` (default: the keys); ``sequence_by``: a column of
    the table or of the changes that orders the changes of a key (default: order of arrival); ``partition_by``: columns that
    cut the table into partitions; ``properties``: see docs/format.md; ``types``: ``wide`` makes integers long, floats double and
    decimals 38 digits long at any depth, so that no column has to be widened later, which not every reader can read. Raises
    TableExists, InvalidSchema, InvalidInput, UnsafeStore.
    """
    table = NewTable(
        schema=schema,
        keys=column_names(keys, "keys"),
        sort_key=column_names(sort_key, "sort_key"),
        sequence_by=sequence_by,
        partition_by=column_names(partition_by, "partition_by"),
        properties=property_texts(properties or {}),
        types=types,
    )
    root = _root(path)
    log = TableLog(open_store(root))
    create_table(root, log, table)
    return Table(Internals(root, log))


def open(path: str | os.PathLike[str]) -> Table:
    """Open a table. Raises TableNotFound, Unsupported (a feature that lakebed lacks)."""
    root = _root(path)
    log = open_log(root, os.fspath(path))
    for wrong in wrong_properties(log.refresh().metadata.configuration).values():
        _logger.warning("a property of %s counts as not set: %s", path, wrong)
    return Table(Internals(root, log))


def convert(
    path: str | os.PathLike[str], keys: Sequence[str] = (), sort_key: Sequence[str] = (), sequence_by: str | None = None
) -> Table:
    """Adopt an existing Delta table without rewriting its files; from then on only lakebed writes to it.

    The keys are declared, and checked: no null, no value twice. Raises TableNotFound, InvalidInput naming a duplicate
    key, Unsupported naming a feature or property that lakebed lacks, Corrupt naming a file that is missing or damaged,
    Contention if others keep committing.
    """
    settings = TableSettings(
        keys=column_names(keys, "keys"), sort_key=column_names(sort_key, "sort_key"), sequence_by=sequence_by
    )
    root = _root(path)

    def read_columns(log: TableLog, snapshot: Snapshot, columns: list[str]) -> pa.Table:
        return Internals(root, log).view.arrow(snapshot, columns, None)

    convert_table(root, open_log(root, os.fspath(path)), open_part_storage(root), settings, read_columns)
    return open(path)


def _root(path: str | os.PathLike[str]) -> str:
    return open_part_storage(os.fspath(path)).root


class Table:
    """One table. Cheap to keep open; safe to use from several threads. Made by ``create``, ``open`` and ``convert``."""

    def __init__(self, internals: Internals) -> None:
        self.path = internals.path
        self.inspect = TableInspect(internals)
        """What the log says of the table, as Arrow tables: parts, timeline, claims and more."""
        self.maintenance = TableMaintenance(internals)
        """Upkeep at once and in this process: merging, reclustering, cleaning up."""
        self._internals = internals

    def __repr__(self) -> str:
        return f"lakebed.Table({self.path!r}, version={self.version})"

    def _repr_html_(self) -> str:
        return table_as_html(self.path, self._internals.log.refresh())

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The newest version."""
        return self._internals.log.refresh().version

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return self._internals.log.refresh().logical_schema

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties, keys and sort key among them."""
        return dict(self._internals.log.refresh().metadata.configuration)

    def set_properties(self, properties: Mapping[str, PropertyValue]) -> int:
        """Set some properties; returns the version. A number or a truth value is written as the text that it has in the log.

        Raises InvalidInput for one that does not exist, is fixed, or can't have its value.
        """
        return set_properties(self._internals.log, property_texts(properties))

    def alter(
        self,
        *,
        add: Mapping[str, str | pa.DataType] | None = None,
        widen: Mapping[str, str | pa.DataType] | None = None,
        rename: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        relax: Sequence[str] = (),
        comment: Mapping[str, str] | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> AlterResult:
        """Change the columns in one commit. No file is rewritten, and no stream, merge or other writer has to stop or to repeat.

        ``add``: columns with their types (``"long"``, ``"decimal(10,2)"``, ``"array<string>"``, or of pyarrow), null in the rows
        that are there; ``widen``: columns with wider types; ``rename``: new names by old ones; ``drop``: columns that go;
        ``relax``: columns that may be null from now on; ``comment``: texts, "" for none. A field in a struct is ``address.zip``,
        what a list holds ``tags.element``, what a map holds ``prices.value``; a name with a dot is put in backticks.
        ``reason``: for ``inspect.schemas``. ``dry_run``: change nothing, only say in ``notes`` what the change would cost.

        The first rename or drop turns on Delta's column mapping, the first widening its type widening: ``notes`` say which
        readers that costs. Keys and columns of the sort key, ``sequence_by`` and the partitions can't be dropped. What the table
        has already is left out. Raises InvalidSchema, Contention, StoreUnavailable (altering again is safe).
        """
        change = SchemaChange(
            add=_types(add),
            widen=_types(widen),
            relax=column_names(relax, "relax"),
            rename=dict(rename or {}),
            drop=column_names(drop, "drop"),
            comment=dict(comment or {}),
        )
        log = self._internals.log
        if dry_run:
            snapshot = log.refresh()
            return AlterResult(version=snapshot.version, changed=False, notes=evolved_by(snapshot, change).notes)
        return alter(log, change, reason=reason)

    def status(self, deep: bool = False) -> Status:
        """Whether the table is well, in figures and findings, each with a cause and a remedy; ``deep``: the doctor's too."""
        return Observer(self.path).look(deep)

    def doctor(self, deep: bool = False) -> Examination:
        """Check every invariant that can be checked on the log and the files; ``deep``: on every row of the newest version too.

        Nothing is changed. Raises StoreUnavailable, Contention.
        """
        return examine(self.path, deep)

    # -- changing --------------------------------------------------------------------------------------------------

    def apply(
        self,
        changes: Rows | DataFrame,
        apply_as_deletes: str | None = None,
        except_column_list: Sequence[str] = (),
        batch_id: int | str | None = None,
        *,
        evolve: Sequence[Evolution] = (),
        on_mismatch: OnMismatch = "fail",
        columns: Literal["sent"] | Sequence[str] | None = None,
        ignore_null_updates: bool = False,
        renamed_columns: Mapping[str, str] | None = None,
    ) -> int:
        """Commit one batch of changes; returns the version.

        ``changes``: anything with ``__arrow_c_stream__`` (an Arrow table, pandas, polars, a relation of DuckDB), a list of dicts,
        or a DataFrame of Spark. It has the table's columns plus those that ``apply_as_deletes`` (a SQL expression such as
        ``"op = 'd'"``) and ``sequence_by`` refer to. Other columns are left out, counted by name and warned of, unless
        ``except_column_list`` has them. A column comes in the table's type, or in one whose values convert to it in one way
        only (``schema.exact_cast``). Later rows of a key win unless ``sequence_by`` says otherwise.
        ``except_column_list``: columns of the changes that are not taken over (they become null).
        ``batch_id``: a batch with this id is committed once: numbers must increase, over all writers of the table; a text is
        remembered for seven days. A replay writes nothing and returns the newest version.
        ``evolve``: what may be done to the table first, where the changes need it: ``add`` columns, ``widen`` their types,
        ``relax`` NOT NULL. Changes that lack a column of the table are refused. ``on_mismatch``: what becomes of rows that do
        not fit: ``fail`` (InvalidChanges; nothing is committed), ``quarantine`` (they go to the table beside this one) or
        ``rescue`` (what no column takes is kept in the column ``_rescued``, as JSON).
        ``columns``: the columns that the changes fill, besides keys and ``sequence_by``, or ``"sent"`` for those that they have.
        The others keep their values; in a row that is new they are null. Without it a change is a whole row.
        ``ignore_null_updates``: a null keeps the value of its column too.
        ``renamed_columns``: new names of columns of the changes to those that they had before.
        Raises InvalidChanges, StoreUnavailable, Contention.
        """
        internals = self._internals
        how = How(
            apply_as_deletes=apply_as_deletes,
            except_columns=except_column_list,
            policy=EvolvePolicy(allowed=frozenset(evolve), on_mismatch=on_mismatch, renamed=renamed_columns or {}),
            fill=filled(columns, ignore_null_updates),
        )
        evolution = internals.evolution("changes that were applied need it")
        return apply(self.path, internals.log, changes, how, evolution, internals.quarantine_log, batch_id=batch_id)

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
        evolve: Sequence[Evolution] = (),
        on_mismatch: OnMismatch = "quarantine",
        columns: Literal["sent"] | Sequence[str] | None = None,
        ignore_null_updates: bool = False,
        renamed_columns: Mapping[str, str] | None = None,
    ) -> StreamingQuery:
        """Start a streaming query that applies every micro-batch of ``changes`` exactly once; returns it.

        The arguments are those of ``apply``; ``keys`` and ``sequence_by``, if given, must be the table's.
        ``checkpoint`` defaults to a folder of the query's name inside the table; ``quarantine`` is ``table`` (bad rows
        go to a table beside this one) or ``fail``; ``trigger`` as for ``DataStreamWriter.trigger``. The table is changed for
        ``evolve`` and ``on_mismatch: rescue`` before the query starts: a DataFrame keeps its columns.
        """
        internals = self._internals
        require_keys(write_spec_of(internals.log.refresh()).incoming, keys, sequence_by)
        how = How(
            apply_as_deletes=apply_as_deletes,
            except_columns=except_column_list,
            policy=EvolvePolicy(allowed=frozenset(evolve), on_mismatch=on_mismatch, renamed=renamed_columns or {}),
            fill=filled(columns, ignore_null_updates),
        )
        evolution = internals.evolution(f"the DataFrame of the stream {query_name} needs it")
        stream, frame, _ = frame_changes(changes, how, internals.log, evolution, strict=on_mismatch == "fail")
        return internals.start_ingest(
            stream,
            frame,
            checkpoint=checkpoint,
            query_name=query_name,
            quarantine=quarantine,
            trigger=trigger,
        )

    def delete(self, where: str) -> MutationResult:
        """Delete the rows for which ``where`` (one SQL expression in DuckDB's dialect over a row's columns) is true.

        With keys the rows become deletes at the end of the tail: the delete holds for the version that was read, and
        newer changes are kept. Without keys they are marked dead in place. Raises InvalidInput, Contention, StoreUnavailable.
        """
        return self._mutate(Mutation.of(where))

    def update(self, set: Mapping[str, str], where: str) -> MutationResult:
        """Set columns of the rows for which ``where`` is true to SQL expressions over the row as it was.

        Keys and ``sequence_by`` can't be set. Otherwise like ``delete``.
        """
        return self._mutate(Mutation.of(where, dict(set)))

    def purge(
        self, where: str, *, dry_run: bool = False, force: bool = False, quarantine: str | None = None
    ) -> pa.Table:
        """Erase the rows for which ``where`` is true, or was true of a former value, for good: no file keeps a byte of them.

        The parts that hold them are written again, and every version from before ends: it can't be read any more. The quarantine,
        detached partitions, the log, and the copies on local disks of this host are purged too. Records of the quarantine go
        that have a key of the rows; ``quarantine``: a condition over its columns that says which ones go instead. Returns a row a
        file: path, where (table, version, detached, uncommitted, log, quarantine, volatile, key index), bytes, rows, gone_at
        (null: not yet; ``note`` says why). Running ingest goes on. If the process dies, running maintenance or the next
        purge goes on, and reports the files that were left. ``force``: end holds of readers on older versions. A dry run only
        reports. Raises InvalidInput, Contention (readers hold older versions, or such rows keep coming), StoreUnavailable;
        purging again is safe.
        """
        return purge_of(self._internals).run(where, quarantine=quarantine, dry_run=dry_run, force=force)

    def truncate(self) -> int:
        """Take all rows out of the table, the tail included; returns the version. Older versions stay readable."""
        return self._internals.partitions().truncate()

    def detach_partition(self, partition: Mapping[str, Any]) -> str:
        """Take a partition, such as ``{"day": "2026-01-01"}``, out of the table without touching its files.

        Returns the name by which it is attached or dropped. Raises InvalidInput, Contention, StoreUnavailable.
        """
        return self._internals.partitions().detach(partition)

    def attach_partition(self, name: str) -> int:
        """Put a detached partition back; returns the version. Refused if one of its keys is live by now.

        With ``sequence_by``, deletes since the detach still apply: older rows come back dead.
        """
        return self._internals.partitions().attach(name)

    def drop_detached(self, name: str) -> int:
        """Drop a detached partition; returns how many files were deleted.

        While a version from before the detach can still be read, the files are left to the cleanup.
        """
        return self._internals.partitions().drop(name)

    def replace_partition(self, partition: Mapping[str, Any], rows: Rows) -> int:
        """Put ``rows`` (as for ``apply``, but not of Spark) in place of a partition's rows in one commit; returns the version.

        Raises InvalidInput for rows of another partition, or with keys that occur twice, are live elsewhere, or
        were deleted with a newer sequence.
        """
        return self._internals.partitions().replace(partition, rows)

    def restore(
        self, version: int | None = None, timestamp: str | float | None = None, *, positions: bool = False
    ) -> int:
        """Make the table what it was at an earlier version, in one commit; returns the version that this commit makes.

        ``timestamp``: as for ``read``. It has exactly the rows of that version, in the columns of today: a column that was
        dropped since stays dropped. Detached partitions are those of that version, but for those that were dropped since. No file
        is rewritten, and the versions in between stay readable, so a restore can be restored. Properties, positions, files and
        batches that were read stay as they are: ingest goes on where it is, and what it brought in between is not brought again.
        With ``positions`` those of topics go back too, and the pipeline reads again, once, what it has read since. Changes that
        arrive meanwhile come before the restore, which takes them out, or after it, and then they stand.

        Raises VersionNotFound (it has expired, or a file of it is gone), InvalidInput, Unsupported (it is from before the table
        was adopted), Contention; StoreUnavailable, after which the timeline shows whether it was committed.
        """
        if version is None and timestamp is None:
            raise InvalidInput("say what to restore: a version or a timestamp")
        earlier = snapshot_at(self._internals.log, version, timestamp)
        return restore(self._internals.log, self._internals.storage, earlier, positions=positions)

    def settle(self) -> SettleResult:
        """Settle the whole tail, so that every Delta reader sees the changes; returns what it did.

        Raises Contention, StoreUnavailable (settling again is safe).
        """
        return self._internals.settler.settle()

    def maintain(self, spark: SparkSession) -> Maintenance:
        """Start the maintenance; returns a handle to stop it, wait for it and see its state, like a StreamingQuery.

        A thread follows the log, settles the tail and refreshes views; merges run beside it in threads that end with it. If it
        fails for a cause that may pass, it starts again; the log, the metrics and ``status`` report it. Any other error ends it
        (``exception``).
        """
        return self._internals.maintain(spark)

    def set_sort_key(self, columns: Sequence[str]) -> int:
        """Change what parts are sorted by; returns the version. No row is moved: new parts are sorted so from now on, and the
        older ones are sorted step by step by running maintenance, or at once by ``maintenance.recluster(final=True)``. With the
        property ``lakebed.count_reads`` maintenance begins with those that are read most.

        ``columns`` as for ``create``; none: by the keys again. The same sort key again changes nothing. Raises InvalidInput.
        """
        return set_sort_key(self._internals.log, column_names(columns, "sort_key"))

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, spark: SparkSession, version: int | None = None, timestamp: str | float | None = None) -> DataFrame:
        """The table at one version, tail included, as a DataFrame that stays at that version.

        ``timestamp``: epoch seconds, or an ISO text (UTC without an offset); the newest version committed until then.
        Raises Corrupt, naming the file, if one is missing or damaged that the tail needs. Spark reads
        the other files when the query runs. It then raises its own error (FAILED_READ_FILE), which names the file. Its advice
        to refresh does not help; ``to_arrow`` says what to do.
        """
        return self._internals.view.dataframe(spark, snapshot_at(self._internals.log, version, timestamp))

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: str | None = None, version: int | None = None
    ) -> pa.Table:
        """The rows at one version, tail included, without Spark; in no particular order.

        ``where`` is one SQL expression over a row's columns. It has no subquery, aggregate or window function.
        Raises InvalidInput.
        """
        return self._internals.view.arrow(snapshot_at(self._internals.log, version), columns, where)

    def to_pandas(
        self, columns: Sequence[str] | None = None, where: str | None = None, version: int | None = None
    ) -> pd.DataFrame:
        """``to_arrow`` as a DataFrame of pandas, where whole numbers among nulls are floating point.

        A date that Python has no object for, such as one of the year 20222, is a ``numpy.datetime64`` among the objects.
        """
        return pandas_frame(self.to_arrow(columns, where, version))

    def to_polars(
        self, columns: Sequence[str] | None = None, where: str | None = None, version: int | None = None
    ) -> pl.DataFrame:
        """``to_arrow`` as a DataFrame of polars. Raises MissingPrerequisite if polars is not installed."""
        try:
            import polars
        except ImportError:
            raise MissingPrerequisite("to_polars needs polars: pip install polars") from None
        return polars.DataFrame(self.to_arrow(columns, where, version))

    def lookup(
        self, keys: Rows | Sequence[Any], columns: Sequence[str] | None = None, version: int | None = None
    ) -> pa.Table:
        """The rows of some keys at one version, tail included, without Spark; in no particular order.

        ``keys``: values of the one key, or rows (as for ``apply``) with some columns of the table: the rows come back that equal
        one of them in all these columns, whether or not they are the keys. Only parts and row groups that may hold them are
        read. Raises InvalidInput.
        """
        return self._internals.view.lookup(snapshot_at(self._internals.log, version), keys, columns)

    def query(self, sql: str, name: str | None = None, *, allow_files: bool = False) -> pa.Table:
        """The result of a SQL query (DuckDB's dialect) on the newest version; the table's name is its folder's.

        It is one SELECT (also DESCRIBE, SUMMARIZE, EXPLAIN of one) over this table. ``allow_files``: it may be any statements,
        and read and write whatever this process may; the last one's result is returned. Raises InvalidInput.
        """
        known_as = Path(self.path).name if name is None else name
        return self._internals.view.query(self._internals.log.refresh(), sql, known_as, allow_files)

    def create_view(self, spark: SparkSession, name: str) -> None:
        """Create or replace a temporary view of the newest version; running maintenance keeps it fresh."""
        self._internals.view.register(spark, name)
        self._internals.view.refresh(self._internals.log.refresh())

    def changes(self, from_version: int, to_version: int | None = None, spark: SparkSession | None = None) -> DataFrame:
        """The change rows of the versions from ``from_version`` to ``to_version`` (both included; default: the newest).

        Columns: the table's, then ``_change_type`` (``upsert``, ``delete``, or ``truncate`` without values),
        ``_change_sequence`` if what orders the changes is no column of the table, ``_commit_version``, ``_commit_timestamp``.
        A change with unavailable values is listed, complete, in the version that settles it. The columns are those of today; the
        DataFrame keeps them if the table is altered later. Reading it raises InvalidSchema for a value that does not fit then.
        As a stream: ``spark.readStream.format("lakebed_changes").option("path", …)``.
        """
        from lakebed.view.changes import changes_dataframe

        return changes_dataframe(spark, self.path, self._internals.log, from_version, to_version)

    def _mutate(self, mutation: Mutation) -> MutationResult:
        inside = self._internals
        return run_mutation(
            self.path, inside.log, inside.storage, inside.deletion_vectors, inside.view.rows_for_sql, mutation
        )


def _types(columns: Mapping[str, str | pa.DataType] | None) -> dict[str, pa.DataType]:
    """Types as a user gives them. Raises InvalidSchema with the column."""
    return {
        path: parse_type(path, kind) if isinstance(kind, str) else canonical_type(kind, path)
        for path, kind in (columns or {}).items()
    }


def internals_of(table: Table) -> Internals:
    """The log, storage and caches of the table."""
    return table._internals
