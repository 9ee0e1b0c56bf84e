"""What a reader elsewhere has to read of a table at one version: files, their dead rows, and rows that are in no file.

1. *Settled*: the base, with the deletion vectors of the log; what every Delta reader reads. Nothing is read for it.
2. *Fresh*: the tail too. It is resolved against the base as for every read of ours (``merge_on_read``). Dead rows that are not
   committed yet come as inline deletion vectors, so a reader needs to know nothing of tails. Materialized parts are left out:
   they are on the disk of one host.
3. Files that can hold no row for which ``where`` is true are left out, by their statistics and partition values. No row is
   read and no SQL of a user is run for that, nor bound: DuckDB evaluates what is constant when it binds.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyroaring import BitMap64

from lakebed.log.actions import Part
from lakebed.log.deletion_vector import DeletionVector, inline
from lakebed.log.snapshot import Snapshot
from lakebed.parts.part_filter import parts_that_may_match
from lakebed.sortkey.statistics_cache import StatisticsCache
from lakebed.sql.expression import check_columns_of, expression
from lakebed.storage.engine import connect
from lakebed.view.arrow_scan import ScanFile
from lakebed.view.merge_on_read import TableView


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScanPlan:
    """``files`` may hold rows of the condition, others do not; ``files_of_version``: how many there are without it.

    ``completed``: rows, by stored names, that are in no file, because values that their source did not send were filled in.
    """

    files: tuple[ScanFile, ...]
    files_of_version: int
    completed: pa.Table | None


def plan_scan(
    view: TableView, snapshot: Snapshot, where: str | None, *, settled: bool, statistics: StatisticsCache
) -> _ScanPlan:
    """What to read of a version.

    Raises InvalidInput for a ``where`` that is not one expression over the columns of a row, Corrupt with the path of a file that
    is missing or damaged.
    """
    condition = None if where is None else expression(where, "where")
    if condition is not None:
        check_columns_of(condition, snapshot.logical_schema.names)
    mapping = snapshot.columns
    with connect() as connection:
        if settled:
            live = [part for part in snapshot.parts.values() if not part.dead_rows or part.dead_rows != part.rows]
            parts = parts_that_may_match(connection, live, mapping.stored, condition, statistics, mapping)
            return _ScanPlan(files=tuple(map(_file_of, parts)), files_of_version=len(live), completed=None)
        pinned = view.pin(snapshot, on_this_host=False)
        kept = parts_that_may_match(connection, pinned.files, mapping.stored, condition, statistics, mapping)
    return _ScanPlan(files=tuple(kept), files_of_version=len(pinned.files), completed=pinned.completed)


def _file_of(part: Part) -> ScanFile:
    return ScanFile(
        path=part.path,
        bytes=part.bytes,
        rows=part.rows,
        partition_values=part.partition_values,
        deletion_vector=part.deletion_vector,
        stats=part.stats,
    )


def vector_of(file: ScanFile) -> DeletionVector | None:
    """The file's dead rows as a deletion vector: the committed one, or an inline one; None if no row is dead."""
    if file.deletion_vector is not None:
        return file.deletion_vector
    return inline(BitMap64(file.dead)) if file.dead else None  # a copy: encoding it optimizes it in place
