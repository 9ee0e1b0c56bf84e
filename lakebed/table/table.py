"""A table: what users change and settle, and, in ``reading``, read. It joins the rooms below and holds no logic of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from lakebed.compaction.settle import SettleResult
from lakebed.errors import InvalidInput
from lakebed.health.examination import Examination, examine
from lakebed.health.status import Observer, Status
from lakebed.ingest.apply import How, apply, filled, frame_changes
from lakebed.ingest.stream import require_keys
from lakebed.operations.alter import AlterResult, alter, cost_of, set_properties, set_sort_key
from lakebed.operations.drop import drop_table
from lakebed.operations.mutation import Mutation, MutationResult
from lakebed.operations.restore import restore
from lakebed.parts.arrow_rows import Rows
from lakebed.parts.changes import write_spec_of
from lakebed.schema.change import SchemaChange, column_names
from lakebed.schema.fitting import Evolution, EvolvePolicy, OnMismatch
from lakebed.settings import PropertyValue, property_texts
from lakebed.table.inspect import TableInspect, table_as_html
from lakebed.table.internals import Internals, purge_of
from lakebed.table.maintenance import TableMaintenance
from lakebed.table.reading import TableReads
from lakebed.view.arrow_scan import snapshot_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lakebed.compaction.maintenance import Maintenance


class Table(TableReads):
    """One table. Cheap to keep open; safe to use from several threads. Made by ``create``, ``open`` and ``convert``."""

    def __init__(self, internals: Internals) -> None:
        super().__init__(internals)
        self.inspect = TableInspect(internals)
        """What the log says of the table, as Arrow tables: parts, timeline, claims and more."""
        self.maintenance = TableMaintenance(internals)
        """Upkeep at once and in this process: merging, reclustering, cleaning up."""

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
        """Set some properties; returns the version.

        Args:
            properties: Values by name. A number or a truth value is written as the text that it has in the log.

        Raises:
            InvalidInput: A property does not exist, is fixed, or can't have its value.
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

        The first rename or drop turns on Delta's column mapping, the first widening its type widening: ``notes`` say which
        readers that costs. Keys and columns of the sort key, ``sequence_by`` and the partitions can't be dropped. What the table
        already has is left out.

        A field of a struct is named ``address.zip``, the element of a list ``tags.element``, the value of a map ``prices.value``.
        A name with a dot is put in backticks. Raises InvalidSchema, Contention, StoreUnavailable (altering again is safe).

        Args:
            add: New columns with their types (``"long"``, ``"decimal(10,2)"``, ``"array<string>"``, or types of pyarrow). They
                are null in the existing rows.
            widen: Columns with wider types.
            rename: New names by old ones.
            drop: Columns to remove.
            relax: Columns that may be null from now on.
            comment: A comment by column; "" removes it.
            reason: A text for ``inspect.schemas``.
            dry_run: Change nothing; only say in ``notes`` what the change would cost.
        """
        change = SchemaChange.of(add=add, widen=widen, rename=rename, drop=drop, relax=relax, comment=comment)
        return cost_of(self._internals.log, change) if dry_run else alter(self._internals.log, change, reason=reason)

    def status(self, deep: bool = False) -> Status:
        """Whether the table is healthy, as figures and findings. Each finding has a cause and a remedy.

        Args:
            deep: Add the findings of a deep ``doctor``.
        """
        return Observer(self.path).look(deep)

    def doctor(self, deep: bool = False) -> Examination:
        """Check every invariant that can be checked on the log and the files. Nothing is changed.

        Raises StoreUnavailable, Contention.

        Args:
            deep: Check every row of the newest version too.
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

        The changes have the table's columns, and those that ``apply_as_deletes`` and ``sequence_by`` refer to. Other columns are
        left out, counted by name, and named in a warning. A column comes in the table's type, or in one whose values convert to
        it in one way only (``schema.exact_cast``). Changes that lack a column of the table are refused, unless ``columns`` says
        which ones they fill. Later rows of a key win unless ``sequence_by`` says otherwise. Raises InvalidChanges,
        StoreUnavailable, Contention.

        Args:
            changes: Anything with ``__arrow_c_stream__`` (an Arrow table, pandas, polars, a relation of DuckDB), a list of dicts,
                or a DataFrame of Spark.
            apply_as_deletes: A SQL expression that is true of the changes that are deletes, such as ``"op = 'd'"``.
            except_column_list: Columns of the changes that are not taken over, without a warning: they become null, or with
                ``columns`` keep their values.
            batch_id: A batch with this id is committed once. Numbers must increase, over all writers of the table; a text is
                remembered for seven days. When the batch comes again, nothing is written, and the newest version is returned.
            evolve: What may be done to the table first, if the changes need it: ``add`` columns, ``widen`` their types, ``relax``
                NOT NULL.
            on_mismatch: What becomes of rows that do not fit. ``fail``: InvalidChanges, and nothing is committed. ``quarantine``:
                they go to the table beside this one. ``rescue``: what no column takes is kept in the column ``_rescued``, as
                JSON.
            columns: The columns that the changes fill, besides keys and ``sequence_by``, or ``"sent"`` for those that they have.
                The others keep their values; in a new row they are null. By default a change is a whole row.
            ignore_null_updates: A null keeps the value of its column too.
            renamed_columns: The names that columns of the changes had before, by their new names.
        """
        internals = self._internals
        how = How(
            apply_as_deletes=apply_as_deletes,
            except_columns=except_column_list,
            policy=EvolvePolicy(allowed=frozenset(evolve), on_mismatch=on_mismatch, renamed=renamed_columns or {}),
            fill=filled(columns, ignore_null_updates, rescues=on_mismatch == "rescue"),
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

        The table is changed for ``evolve`` and ``on_mismatch="rescue"`` before the query starts, because a DataFrame keeps its
        columns.

        Args:
            changes: A streaming DataFrame, with columns as for ``apply``.
            apply_as_deletes: As for ``apply``.
            except_column_list: As for ``apply``.
            keys: If given, they must be the table's.
            sequence_by: If given, it must be the table's.
            checkpoint: The folder of Spark's checkpoint. By default one with the query's name inside the table.
            query_name: The name of the streaming query.
            quarantine: ``table``: bad rows go to a table beside this one. ``fail``: they end the query.
            trigger: As for ``DataStreamWriter.trigger``.
            evolve: As for ``apply``.
            on_mismatch: As for ``apply``.
            columns: As for ``apply``.
            ignore_null_updates: As for ``apply``.
            renamed_columns: As for ``apply``.
        """
        internals = self._internals
        require_keys(write_spec_of(internals.log.refresh()).incoming, keys, sequence_by)
        how = How(
            apply_as_deletes=apply_as_deletes,
            except_columns=except_column_list,
            policy=EvolvePolicy(allowed=frozenset(evolve), on_mismatch=on_mismatch, renamed=renamed_columns or {}),
            fill=filled(columns, ignore_null_updates, rescues=on_mismatch == "rescue"),
        )
        evolution = internals.evolution(f"the DataFrame of the stream {query_name} needs it")
        stream, frame, _ = frame_changes(changes, how, internals.log, evolution, strict=on_mismatch == "fail")
        return internals.start_ingest(
            stream, frame, checkpoint=checkpoint, query_name=query_name, quarantine=quarantine, trigger=trigger
        )

    def delete(self, where: str) -> MutationResult:
        """Delete the rows for which a condition is true.

        With keys the rows become deletes at the end of the tail. Rows that others change meanwhile are looked at again, as they
        are then: those that still match are deleted. Without keys rows are marked dead in place. Raises InvalidInput, Contention,
        StoreUnavailable.

        Args:
            where: One SQL expression in DuckDB's dialect over a row's columns.
        """
        return self._internals.mutate(Mutation.of(where))

    def update(self, set: Mapping[str, str], where: str) -> MutationResult:
        """Set columns of the rows for which a condition is true. Otherwise like ``delete``.

        No update is lost: a row that others change meanwhile gets its values from what it is then, so any number of writers may
        count with ``n + 1``. Keys and ``sequence_by`` can't be set.

        Args:
            set: SQL expressions over the row as it was, by column.
            where: The condition, as for ``delete``.
        """
        return self._internals.mutate(Mutation.of(where, dict(set)))

    def purge(
        self, where: str, *, dry_run: bool = False, force: bool = False, quarantine: str | None = None
    ) -> pa.Table:
        """Erase the rows for which a condition is true, or was true of a former value, for good: no file keeps a byte of them.

        The parts that hold them are written again, and every earlier version ends: it can't be read any more. The quarantine,
        detached partitions, the log, and the copies on local disks of this host are purged too. Running ingest continues. If the
        process dies, running maintenance or the next purge continues, and reports the files that were left.

        Args:
            where: The condition, as for ``delete``.
            dry_run: Only report what would be erased.
            force: End the holds of readers on older versions.
            quarantine: A condition over the columns of the quarantine that says which of its records are erased. By default those
                that have a key of the rows.

        Returns:
            A row for each file: path, where (table, version, detached, uncommitted, log, iceberg, quarantine, volatile, key
            index), bytes, rows, and gone_at, which is null if the file is still there; ``note`` says why.

        Raises:
            InvalidInput: The condition can't be used.
            Contention: Readers hold older versions, or such rows keep coming.
            StoreUnavailable: Purging again is safe.
        """
        return purge_of(self._internals).run(where, quarantine=quarantine, dry_run=dry_run, force=force)

    def truncate(self) -> int:
        """Remove all rows from the table, the tail included; returns the version. Older versions stay readable."""
        return self._internals.partitions().truncate()

    def drop(self, *, purge: bool = False) -> int:
        """Drop the table; returns how many files were deleted: none without ``purge``.

        From now on whoever opens, reads, writes or maintains it gets TableDropped, and lists of tables lack it.
        ``lakebed.undrop(path)`` brings it back, as it was. Its files stay for ``delta.deletedFileRetentionDuration`` (7 days);
        then ``lakebed clean`` on the folder that it is in deletes them. Readers that know nothing of lakebed read the table as
        long as its files are there. Its quarantine is a table of its own, and stays.

        Args:
            purge: Delete the files at once. It can't come back then. If the process dies, ``lakebed clean`` continues.

        Raises:
            TableDropped: It is dropped already.
            Contention, StoreUnavailable: Dropping again is safe.
        """
        return drop_table(self._internals.log, self._internals.storage, purge=purge)

    def detach_partition(self, partition: Mapping[str, Any]) -> str:
        """Take a partition out of the table without touching its files; returns the name by which it is attached or dropped.

        Raises InvalidInput, Contention, StoreUnavailable.

        Args:
            partition: The values of the partition columns, such as ``{"day": "2026-01-01"}``.
        """
        return self._internals.partitions().detach(partition)

    def attach_partition(self, name: str) -> int:
        """Put a detached partition back; returns the version. It is refused if one of its keys is live by now.

        With ``sequence_by``, deletes since the detach still apply: older rows come back dead.

        Args:
            name: What ``detach_partition`` returned.
        """
        return self._internals.partitions().attach(name)

    def drop_detached(self, name: str) -> int:
        """Drop a detached partition; returns how many files were deleted: none while a version that has them can be read.

        Args:
            name: What ``detach_partition`` returned.
        """
        return self._internals.partitions().drop(name)

    def replace_partition(self, partition: Mapping[str, Any], rows: Rows | DataFrame) -> int:
        """``overwrite`` one partition, given by the values of its columns; returns the version."""
        return self._internals.overwrite(rows, None, partition)

    def overwrite(self, rows: Rows | DataFrame, where: str | None = None) -> int:
        """Put rows in place of the table's rows, or of those for which a condition is true, in one commit; returns the version.

        Tasks write a DataFrame of Spark, and what is committed meanwhile counts after it. Other rows are written at once. Raises
        InvalidInput (a key is twice there, or live elsewhere), InvalidChanges, Contention, StoreUnavailable.

        Args:
            rows: As for ``apply``, with all columns of the table; no deletes.
            where: A condition in DuckDB's SQL, as Delta's ``replaceWhere``, which is true for ``rows`` too. On partition columns
                alone it replaces whole partitions, on others it marks rows dead where they are. By default the whole table.
        """
        return self._internals.overwrite(rows, where)

    def restore(
        self, version: int | None = None, timestamp: str | float | None = None, *, positions: bool = False
    ) -> int:
        """Make the table what it was at an earlier version, in one commit; returns the version that this commit makes.

        The table then has exactly the rows of that version, in the columns of today: a column that was dropped since stays
        dropped. Detached partitions are those of that version, but for those that were dropped since. No file is rewritten, and
        the versions in between stay readable, so a restore can be restored. Properties, positions, and the files and batches that
        were read stay as they are: ingest continues where it is, and what it brought in between is not brought again. Changes
        that arrive meanwhile are committed before the restore, which removes them, or after it, and then they stay.

        Args:
            version: The version to restore.
            timestamp: As for ``read``; in place of a version.
            positions: Restore the positions of topics too, so that the pipeline reads again, once, what it has read since.

        Raises:
            VersionNotFound: The version has expired, or a file of it is gone.
            InvalidInput: Neither a version nor a timestamp is given.
            Unsupported: The version is from before the table was adopted.
            Contention: Other writers keep committing.
            StoreUnavailable: The timeline shows whether the restore was committed.
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

    def maintain(
        self,
        spark: SparkSession,
        as_query: bool | None = None,
        *,
        trigger_seconds: float = 1.0,
        checkpoint: str | None = None,
    ) -> Maintenance:
        """Start the maintenance; returns a handle to stop it, wait for it and see its state, like a StreamingQuery.

        A thread, or a streaming query, follows the log, settles the tail and refreshes views; merges run beside it in threads
        that end with it. If it fails for a cause that may pass, it starts again; the log, the metrics and ``status`` report it.
        Any other error ends it (``exception``).

        Args:
            spark: The session that merges may use; the maintenance ends when it stops.
            as_query: Whether it is a streaming query (``query`` of the handle). By default it is one if Spark's master is not
                local. A query is in Spark's UI and its listeners; a thread costs less.
            trigger_seconds: The seconds between two batches of the query.
            checkpoint: The folder of the query's checkpoint, one for each process; by default a temporary one. The next start
                needs none. With a lasting one the query keeps its id, and its metrics miss no commit.
        """
        return self._internals.maintain(spark, as_query, trigger_seconds, checkpoint)

    def set_sort_key(self, columns: Sequence[str]) -> int:
        """Change what parts are sorted by; returns the version.

        No row is moved: new parts are sorted by the new key from now on. Running maintenance sorts the older ones step by step,
        or ``maintenance.recluster(final=True)`` all at once. With the property ``lakebed.count_reads`` maintenance starts with
        those that are read most. Setting the same sort key again changes nothing. Raises InvalidInput.

        Args:
            columns: As for ``create``. None: the keys.
        """
        return set_sort_key(self._internals.log, column_names(columns, "sort_key"))
