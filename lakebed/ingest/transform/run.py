"""Runs the SQL of a pipeline on a batch.

1. Tasks read and decode the records. What they yield is kept (``persist``), so that the SQL may read it more than once.
2. What a task says besides rows comes to the driver: quarantined records, truncates, counts, what was read.
3. The SQL selects from the rows, and tasks write its result as they write rows that a user brings.

Nothing is committed here. If a task is lost, its part is decoded again, to the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.error_transport import from_spark
from lakebed.ingest.batch_writer import TaskRow, WriteTask, in_tasks
from lakebed.ingest.changes_frame import FILE_COLUMN
from lakebed.ingest.row_changes import RowChanges
from lakebed.ingest.transform.decode import DecodeTask
from lakebed.ingest.transform.query import Transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def transformed(
    frame: DataFrame, task: WriteTask, transform: Transform, on_input: Callable[[Task], Task] = lambda task: task
) -> list[TaskRow]:
    """Like ``in_tasks``, with the SQL between reading and writing. ``on_input``: gives a task what rows of ``frame`` mean."""
    from pyspark import StorageLevel
    from pyspark.sql.pandas.types import from_arrow_schema

    decode = DecodeTask(task.stream, task.root, transform)
    kinds = pa.schema(
        [("kind", pa.string()), ("task", pa.int32()), ("body", pa.string()), ("row", pa.struct(list(transform.view)))]
    )
    with from_spark():
        decoded = frame.mapInArrow(on_input(decode), from_arrow_schema(kinds)).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            notes = decoded.where("kind <> 'row'").select("kind", "task", "body").collect()
            result = transform.over(decoded.where("kind = 'row'").select("row.*"))
            rows, unknown = transform.rows_for(result, task.spec.incoming)
            written = in_tasks(rows, WriteTask(task.spec, task.root, RowChanges(task.spec, unknown_columns=unknown)))
        finally:
            decoded.unpersist()
    return [*sorted((tuple(note) for note in notes), key=lambda note: int(note[1])), *written]


@dataclass(frozen=True, slots=True)
class TransformedRows:
    """Rows of files that go through SQL. ``left_out``: files that the table has read."""

    transform: Transform
    apply_as_deletes: str | None = None
    except_columns: tuple[str, ...] = ()
    left_out: frozenset[str] = frozenset()

    def write(self, frame: DataFrame, task: WriteTask) -> list[TaskRow]:
        """Write the result of the SQL for the rows of a batch."""
        from pyspark.sql import functions as F

        if self.left_out:
            frame = frame.where(~F.col(FILE_COLUMN).isin(sorted(self.left_out)))
        given = self.transform.changes_in_rows(frame.drop(FILE_COLUMN), self.apply_as_deletes, self.except_columns)
        rows, unknown = self.transform.rows_for(self.transform.over(given), task.spec.incoming)
        return in_tasks(rows, WriteTask(task.spec, task.root, RowChanges(task.spec, unknown_columns=unknown)))
