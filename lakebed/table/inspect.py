"""``table.inspect``: a table's metadata, each as an Arrow table, and as a notebook shows it. Nothing is changed."""

from __future__ import annotations

import os

import pyarrow as pa

from lakebed.compaction.volatile import volatile_choice
from lakebed.log.snapshot import Snapshot
from lakebed.notebook import html_record, html_table
from lakebed.operations.detached import detached_table
from lakebed.operations.mutate_keyed import unsettled_mutations
from lakebed.parts.changes import write_spec_of
from lakebed.resolve.waiting import waiting
from lakebed.storage.local_folders import volatile_folder
from lakebed.table.internals import Internals
from lakebed.view import clustering, metadata_tables


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
