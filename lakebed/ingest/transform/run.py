"""Runs the SQL of a pipeline on a batch.

1. Tasks read and decode the records. What they yield is kept (``persist``), so that the SQL may read it more than once.
2. What a task says besides rows comes to the driver: quarantined records, truncates, counts, what was read.
3. The SQL selects from the rows, and tasks write its result as they write rows that a user brings.

Nothing is committed here. If a task is lost, its part is decoded again, to the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.decode.row_changes import RowChanges
from lakebed.error_transport import from_spark
from lakebed.ingest.batch_writer import WriteTask, Written, answered, in_tasks
from lakebed.ingest.transform.decode import DecodeTask
from lakebed.ingest.transform.query import Transform
from lakebed.ingest.transform.rows_of_files import NOTE, RowsOfFiles, WritingBesideNotes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def transformed(
    frame: DataFrame,
    task: WriteTask,
    transform: Transform | RowsOfFiles,
    on_input: Callable[[Task], Task] = lambda task: task,
) -> Written:
    """Like ``in_tasks``, with the SQL between reading and writing. ``on_input``: gives a task what rows of ``frame`` mean."""
    from pyspark import StorageLevel

    with from_spark():
        decoded = frame.mapInArrow(*_decoding(task, transform, on_input)).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            told = answered([bytes(row[0]) for row in decoded.where(f"{NOTE} is not null").select(NOTE).collect()])
            result = transform.over(decoded.where(f"{NOTE} is null").select("row.*"))
            rows, unknown = transform.rows_for(result, task.spec.incoming)
            written = in_tasks(rows, WriteTask(task.spec, task.root, RowChanges(task.spec, unknown_columns=unknown)))
        finally:
            decoded.unpersist()
    return Written.of([told, written])


def passed_through(
    frame: DataFrame, task: WriteTask, rows: RowsOfFiles, on_input: Callable[[Task], Task] = lambda task: task
) -> Written:
    """Like ``transformed``, for rows without SQL: in one pass, with nothing kept."""
    with from_spark():
        decoded = frame.mapInArrow(*_decoding(task, rows, on_input))
        given, unknown = rows.beside_notes(decoded, task.spec)
        write = WriteTask(task.spec, task.root, RowChanges(task.spec, unknown_columns=unknown))
        return in_tasks(given, WritingBesideNotes(write))


def first_bad_line(
    frame: DataFrame, task: WriteTask, rows: RowsOfFiles, on_input: Callable[[Task], Task] = lambda task: task
) -> tuple[int, int, str] | None:
    """Which line of CSV Spark could not parse: the place of its file in the batch, its byte, and the line."""
    rows = replace(rows, with_places=True)
    with from_spark():
        decoded = frame.mapInArrow(*_decoding(task, rows, on_input))
        return rows.first_bad(decoded.where(f"{NOTE} is null").select("row.*"))


def _decoding(
    task: WriteTask, transform: Transform | RowsOfFiles, on_input: Callable[[Task], Task]
) -> tuple[Task, StructType]:
    """What decodes, and the columns of what it yields."""
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = pa.schema([("row", pa.struct(list(transform.view))), (NOTE, pa.binary())])
    return on_input(DecodeTask(task.stream, task.root, transform)), from_arrow_schema(columns)
