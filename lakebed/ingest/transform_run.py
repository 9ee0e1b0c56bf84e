"""Runs the SQL of a pipeline on a batch.

1. Tasks read and decode the records. What they yield is kept (``persist``), so that the SQL may read it more than once.
2. What a task says besides rows comes to the driver: quarantined records, truncates, counts, what was read.
3. The SQL selects from the rows, and tasks write its result as they write rows that a user brings.

Nothing is committed here. If a task is lost, its part is decoded again, to the same rows.

**The rows** are those of the view ``changes``, which the SQL selects from. The view has the columns of the source, then
``_change_type`` (``upsert`` or ``delete``) and ``_change_sequence``: what orders the changes, where that is metadata of the
records.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.decoder import Decoded, Decoder, DecoderSchema, together
from lakebed.decode.row_changes import RowChanges, row_as_json
from lakebed.failures import crosses_spark, spark_job
from lakebed.ingest.batch_writer import (
    Answer,
    ChangeStream,
    WriteTask,
    Written,
    answered,
    in_tasks,
    slices,
    told_by,
    write_aside,
)
from lakebed.ingest.transform_files import NOTE, RowsOfFiles, WritingBesideNotes
from lakebed.ingest.transform_query import Transform
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, UNAVAILABLE_COLUMN
from lakebed.parts.key_moves import uncounted
from lakebed.parts.quarantine import QUARANTINE_SCHEMA
from lakebed.positions.truncates import NO_CUTOFF, Cutoff
from lakebed.remarks import Remark, remarks_on, sum_of
from lakebed.schema.change import SchemaChange
from lakebed.schema.nested import nullable
from lakebed.telemetry import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


BATCH_ROWS = 16_384
"""What goes to Java at once: it has room for each batch outside of its heap."""


@dataclass(frozen=True, slots=True)
class SourceRows:
    """A decoder whose rows are those of the source, not of the table: ``transform`` makes these of them.

    ``inner`` decodes to what Spark gets. What the table becomes does not concern it.
    """

    inner: Decoder
    decoder_schema: DecoderSchema
    transform: Transform | RowsOfFiles

    def bound_to(self, decoder_schema: DecoderSchema) -> SourceRows:
        return replace(self, decoder_schema=decoder_schema)

    def schema_needed(self, records: pa.Table) -> SchemaChange | None:
        return None

    def decode(self, records: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
        decoded = self.inner.decode(records, cutoff)
        moved = uncounted(decoded.changes, self.inner.decoder_schema.keys)
        names = {", ".join(sorted(set(records["topic"].to_pylist()))): moved} if moved else {}
        return replace(
            decoded, met={}, remarks=sum_of([decoded.remarks, remarks_on(Remark.KEY_MOVE_TRANSFORMED, names)])
        )


@dataclass(frozen=True, slots=True)
class _DecodeTask:
    """Yields what a task decodes: rows of the view, and, as a note, what a write task says besides (``Answer``)."""

    stream: ChangeStream
    root: str
    transform: Transform | RowsOfFiles

    @crosses_spark
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = []
        with counted() as requests:
            for decoded in slices(self.stream(batches)):
                if decoded.schema_needed is not None:
                    done.append(Written(schema_needed=decoded.schema_needed))  # the batch runs again
                    continue
                rows, unsent = _of_view(decoded.changes, self.transform)
                aside = pa.concat_tables([decoded.quarantined, unsent], promote_options="default")
                done.append(Written(**together([decoded]), quarantined=tuple(write_aside(aside, self.root))))
                for first in range(0, len(rows), BATCH_ROWS):
                    yield _as_batch(rows.slice(first, BATCH_ROWS))
        yield _note(Answer.of(told_by(self.stream, done), requests), self.transform.view)


def _of_view(changes: pa.Table, transform: Transform | RowsOfFiles) -> tuple[pa.Table, pa.Table]:
    """Decoded changes as rows of the view; and those of which values are not known, as records of the quarantine."""
    unsent = QUARANTINE_SCHEMA.empty_table()
    if UNAVAILABLE_COLUMN in changes.column_names:
        lacks = pc.greater(pc.fill_null(pc.list_value_length(changes[UNAVAILABLE_COLUMN]), 0), 0)
        unsent = _unsent(changes.filter(lacks))
        changes = changes.filter(pc.invert(lacks))
    count = len(changes)
    if isinstance(transform, RowsOfFiles):
        columns = [changes[field.name].cast(field.type) for field in transform.view]
        return pa.table(columns, schema=transform.view), unsent
    names = transform.names
    kinds = (
        pc.if_else(pc.equal(changes[OP_COLUMN], DELETE), "delete", "upsert")
        if OP_COLUMN in changes.column_names
        else None
    )
    extra = {
        names.type: pa.repeat(pa.scalar("upsert"), count) if kinds is None else kinds,
        names.sequence: changes[SEQUENCE_COLUMN] if SEQUENCE_COLUMN in changes.column_names else None,
    }
    columns = list[pa.ChunkedArray]()
    for field in transform.view:
        column = extra[field.name] if field.name in extra else changes[field.name]
        columns.append(pa.nulls(count, field.type) if column is None else column.cast(nullable(field.type)))
    return pa.table(columns, schema=transform.view), unsent


def _unsent(changes: pa.Table) -> pa.Table:
    now = datetime.datetime.now(datetime.UTC)
    records = []
    values = changes.drop_columns([OP_COLUMN, UNAVAILABLE_COLUMN])
    for row, names in enumerate(changes[UNAVAILABLE_COLUMN].to_pylist()):
        reason = (
            f"the source did not send {', '.join(map(repr, names))}, so the SQL of the pipeline can't be applied: let the "
            "source send whole rows (PostgreSQL: REPLICA IDENTITY FULL), or bring the records into a table first and read "
            "that table with the source lakebed"
        )
        records.append({"value": row_as_json(values.slice(row, 1)), "reason": reason, "time": now})
    return pa.Table.from_pylist(records, QUARANTINE_SCHEMA)


def _note(answer: Answer, view: pa.Schema) -> pa.RecordBatch:
    row = pa.nulls(1, pa.struct(list(view)))
    return pa.RecordBatch.from_arrays([row, *answer.batch().columns], names=["row", NOTE])


def _as_batch(rows: pa.Table) -> pa.RecordBatch:
    struct = pa.StructArray.from_arrays([column.combine_chunks() for column in rows.columns], fields=list(rows.schema))
    return pa.RecordBatch.from_arrays([struct, pa.nulls(len(rows), pa.binary())], names=["row", NOTE])


Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def transformed(
    frame: DataFrame,
    task: WriteTask,
    transform: Transform | RowsOfFiles,
    on_input: Callable[[Task], Task] = lambda task: task,
) -> Written:
    """Like ``in_tasks``, with the SQL between reading and writing. ``on_input``: gives a task what rows of ``frame`` mean."""
    from pyspark import StorageLevel

    with spark_job():
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
    with spark_job():
        decoded = frame.mapInArrow(*_decoding(task, rows, on_input))
        given, unknown = rows.beside_notes(decoded, task.spec)
        write = WriteTask(task.spec, task.root, RowChanges(task.spec, unknown_columns=unknown))
        return in_tasks(given, WritingBesideNotes(write))


def first_bad_line(
    frame: DataFrame, task: WriteTask, rows: RowsOfFiles, on_input: Callable[[Task], Task] = lambda task: task
) -> tuple[int, int, str] | None:
    """Which line of CSV Spark could not parse: the place of its file in the batch, its byte, and the line."""
    rows = replace(rows, with_places=True)
    with spark_job():
        decoded = frame.mapInArrow(*_decoding(task, rows, on_input))
        return rows.first_bad(decoded.where(f"{NOTE} is null").select("row.*"))


def _decoding(
    task: WriteTask, transform: Transform | RowsOfFiles, on_input: Callable[[Task], Task]
) -> tuple[Task, StructType]:
    """What decodes, and the columns of what it yields."""
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = pa.schema([("row", pa.struct(list(transform.view))), (NOTE, pa.binary())])
    return on_input(_DecodeTask(task.stream, task.root, transform)), from_arrow_schema(columns)
