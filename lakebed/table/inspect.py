"""``table.inspect``: a table's metadata, each as an Arrow table, and as a notebook shows it. Nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.compaction.volatile import volatile_choice
from lakebed.log.actions import ChangePart, Part
from lakebed.log.snapshot import Snapshot
from lakebed.notebook import html_record, html_table
from lakebed.operations.mutate_keyed import unsettled_mutations
from lakebed.operations.region import detached_table
from lakebed.parts.changes import DELETE, OP_COLUMN, WriteSpec, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.quoting import literal
from lakebed.resolve.groups import States, newest_of_groups, numbered_keys
from lakebed.resolve.locate import KeyLocator
from lakebed.resolve.unavailable_values import NOWHERE
from lakebed.resolve.whole_rows import as_rows, row_schema, rows_of_tail
from lakebed.sql import aliases, named, scan_of, sql_type
from lakebed.storage.engine import connect
from lakebed.storage.local_folders import volatile_folder
from lakebed.storage.part_storage import PartStorage
from lakebed.table.internals import Internals
from lakebed.view import clustering, metadata_tables

# -- Values that wait for the row of their owner -----------------------------------------------------------------------


def waiting(
    base: Mapping[str, Part],
    change_parts: Sequence[ChangePart],
    spec: WriteSpec,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
) -> pa.Table:
    """A row for each key and group that waits, in base or tail: the key, ``group``, and the ``version`` that brought it.

    ``version`` is that of the newest change where a settle has put the values of several groups into one row.
    """
    listed = [*(spec.schema.field(name) for name in spec.keys), ("group", pa.string()), ("version", pa.int64())]
    if not spec.groups:
        return pa.schema(listed).empty_table()
    schema = row_schema(spec)
    tail, of_part = schema.empty_table(), np.zeros(0, dtype=np.int64)
    if change_parts:
        tail, of_part, _ = rows_of_tail(change_parts, schema, spec, storage)
    probes = pa.concat_tables([tail.select(list(spec.keys)), *_keys_of_states(base, spec, storage)])
    key, first = numbered_keys(probes, spec)
    keys = probes.take(pa.array(first))
    found = States.of_base(keys, base, spec, storage, deletion_vectors, locator)
    rows = pa.concat_tables([found.rows, as_rows(tail, schema)])
    newest = newest_of_groups(
        rows,
        np.concatenate([found.key, key[: len(tail)]]),
        spec,
        is_live=np.concatenate([found.is_live, np.zeros(len(tail), dtype=bool)]),
        known=len(found.rows),
    )
    versions = np.concatenate([found.versions, np.array([part.version for part in change_parts])[of_part]])
    pieces = []
    for group, of_key in zip(spec.groups, newest.rows[1:], strict=False):
        says = np.asarray(rows[group.sequence_by].is_valid())  # a row that was there may have nothing of the group
        waits = np.flatnonzero((of_key != NOWHERE) & says[of_key] & ~newest.exists)
        names = pa.repeat(pa.scalar(group.name), len(waits))
        piece = keys.take(pa.array(waits)).append_column("group", names)
        pieces.append(piece.append_column("version", pa.array(versions[of_key[waits]], pa.int64())))
    return pa.concat_tables(pieces).cast(pa.schema(listed))


def _keys_of_states(base: Mapping[str, Part], spec: WriteSpec, storage: PartStorage) -> list[pa.Table]:
    """The keys of which the base has values of groups without a row, perhaps of before the row came."""
    connection = connect()
    storage.attach(connection)
    orders = [group.sequence_by for group in spec.groups]
    kinds = {name: sql_type(spec.schema.field(name).type) for name in spec.keys}
    kinds |= {name: sql_type(spec.hidden_orders.get(name) or spec.type_of(name)) for name in (*orders, OP_COLUMN)}
    alias, out = aliases(kinds), []
    has_values = " or ".join(f"{alias[name]} is not null" for name in orders)
    for part in (part for part in base.values() if part.deletes):
        scan = scan_of([storage.duckdb_url(part.path)], kinds, part.partition_values)
        condition = f"{alias[OP_COLUMN]} = {literal(DELETE)} and ({has_values})"
        rows = connection.sql(f"select {', '.join(aliases(spec.keys).values())} from ({scan}) where {condition}")
        found = named(rows.to_arrow_table(), list(spec.keys))
        out.append(pa.table({name: pc.cast(found[name], spec.schema.field(name).type) for name in spec.keys}))
    return out


# -- The metadata of a table -------------------------------------------------------------------------------------------


class TableInspect:
    """Tables about one table. In Spark: ``spark.createDataFrame(table.inspect.parts())``."""

    def __init__(self, internals: Internals) -> None:
        self._internals = internals
        self._log = internals.log
        self._path = internals.path
        self._reads = internals.reads

    def detail(self) -> pa.Table:
        """What the table is at its newest version.

        Returns:
            One row: the path, keys, counts of parts, rows and bytes, and ``volatile``: whether merges of a process on this host
                stay on its local disk for now, and why.
        """
        snapshot = self._log.refresh()
        choice = volatile_choice(snapshot.settings, self._path, volatile_folder() / snapshot.metadata.id)
        return metadata_tables.detail(self._path, snapshot, str(choice))

    def parts(self, version: int | None = None) -> pa.Table:
        """The parts at a version, a row for each; the state is ``base`` or ``tail``. Raises VersionNotFound.

        Args:
            version: By default the newest.
        """
        snapshot = self._log.refresh() if version is None else self._log.at_version(version)
        return metadata_tables.parts(snapshot)

    def timeline(self, last: int = 1000) -> pa.Table:
        """The newest commits that the log still has, newest first: version, time, operation, metrics.

        Args:
            last: How many commits.

        Raises:
            InvalidInput: ``last`` is not above 0.
        """
        return metadata_tables.timeline(metadata_tables.newest_commits(self._log, last))

    def schemas(self) -> pa.Table:
        """The schemas that the table has had, oldest first.

        The first row is the oldest version that the log has, unless older changes are known.

        Returns:
            A row for each: the version that brought it, when, by which operation and why, ``change`` (what was changed, in JSON)
                and ``schema`` (the columns and their types, in JSON as Delta has it; null where the log no longer has that
                version).
        """
        return metadata_tables.schemas(self._log)

    def positions(self) -> pa.Table:
        """How far the table has read its source, a row for each partition: topic, partition, the next offset, the topic's id."""
        return metadata_tables.positions(self._log.refresh())

    def compactions(self, last: int = 1000) -> pa.Table:
        """The merges among the newest commits that the log still has, newest first: the cost, and what the plan predicted.

        Args:
            last: How many commits are searched.

        Raises:
            InvalidInput: ``last`` is not above 0.
        """
        return metadata_tables.compactions(metadata_tables.newest_commits(self._log, last))

    def claims(self) -> pa.Table:
        """Who merges which parts until when, oldest first.

        Returns:
            A row for each claim: ``state`` is ``live``, or ``expired`` if its lease has ended. Counts are of the sources that are
                still in the base, ``left`` is the number of those that are not.
        """
        return metadata_tables.claims(self._log.refresh(), self._log.now_ms())

    def mutations(self) -> pa.Table:
        """Deletes and updates whose changes are still in the tail, oldest first; settling completes them."""
        return unsettled_mutations(self._log)

    def waiting(self) -> pa.Table:
        """Values of groups of columns (``lakebed.groups``) for which there is no row, because its owner has not brought it.

        Returns:
            A row for each key and group: the columns of the key, ``group``, and ``version``, which brought the newest change.
        """
        snapshot, inside = self._log.refresh(), self._internals
        spec = write_spec_of(snapshot)
        locator = inside.locators.for_reading(spec)
        change_parts = snapshot.tail_in_order()
        found = waiting(snapshot.parts, change_parts, spec, inside.storage, inside.deletion_vectors, locator)
        return snapshot.columns.to_logical(found)

    def detached(self) -> pa.Table:
        """The detached partitions, oldest first: name, partition, when, counts of parts, rows and bytes."""
        return detached_table(self._log.refresh())

    def clustering(self) -> pa.Table:
        """How well the base is clustered by its sort key (or keys): a row for each level, after one for all levels together.

        Columns: counts of parts (total, constant, unsorted, those that wait to be sorted by a new sort key and how often these
        were read in the last hour), average overlaps and depth, greatest depth, histogram of depths, the deepest ranges.

        Raises:
            InvalidInput: The table has no order.
        """
        snapshot = self._log.refresh()
        return clustering.clustering_information(snapshot, self._reads.of(snapshot), self._log.statistics)

    def draw_clustering(self, file: str | os.PathLike[str]) -> None:
        """Draw the parts as bars over the sort key, level by level, with the depth below, as a PNG.

        Args:
            file: The path of the PNG.

        Raises:
            InvalidInput: The table has no order.
            MissingPrerequisite: matplotlib is not installed (``lakebed[plots]``).
        """
        clustering.draw(self._log.refresh(), os.fspath(file), self._log.statistics)


def table_as_html(path: str, snapshot: Snapshot) -> str:
    """The table at one version, as HTML; taken from the log alone."""
    settings = snapshot.logical_settings
    facts = {
        "version": snapshot.version,
        "settled rows": sum(part.live_rows for part in snapshot.parts.values()),
        "parts": len(snapshot.parts),
        "changes in the tail": sum(part.rows for part in snapshot.tail.values()),
        "keys": ", ".join(settings.keys) or "none: append only",
        "sort key": ", ".join(settings.order_by),
        "sequence by": settings.sequence_by,
        "partitions": ", ".join(snapshot.metadata.partition_columns),
    }
    columns = [(field.name, field.type, "" if field.nullable else "not null") for field in snapshot.logical_schema]
    return html_record(path, facts) + html_table(("column", "type", ""), columns)
