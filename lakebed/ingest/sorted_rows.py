"""Writing a user's DataFrame as rows of the base, by tasks: in parts of the table's target size that follow each other in order.

1. Spark distributes the rows by ranges of the sort key, within each partition of the table, as it does before it sorts. A table
   without an order takes the rows where they are.
2. A task checks and converts its rows as ingest does. What fits in memory at once is sorted and written. If more comes, each such
   piece becomes a sorted run on the local disk, and the merge kernel makes parts of the runs.
3. The names of all files begin with an id of this write. A task that fails, or that Spark runs twice, leaves files that no task
   returned: the driver deletes them when the job has ended, and the cleanup those that come even later. The table sees only what
   is committed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
from pyroaring import BitMap64

from lakebed.decode.decoder import Decoded
from lakebed.decode.row_changes import RowChanges
from lakebed.failures import crosses_spark
from lakebed.ingest.batch_writer import Answer, Written, in_tasks, slices
from lakebed.ingest.changes_frame import changes_frame, unknown_columns
from lakebed.log.actions import PartitionKey, partition_key
from lakebed.log.snapshot import Snapshot
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.parts.changes import OP_COLUMN, WriteSpec, stored_rows, write_spec_of
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.parts.write_arrow import delete_left
from lakebed.positions.remarks import report_remarks
from lakebed.quoting import quote_for_spark
from lakebed.remarks import sum_of
from lakebed.sql import Expression, require_true
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect
from lakebed.storage.local_folders import process_folder
from lakebed.storage.part_storage import PartStorage
from lakebed.telemetry import counted, measured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MERGE_MEMORY_BYTES = 512 << 20


def write_sorted(
    rows: DataFrame, snapshot: Snapshot, root: str, where: Expression | None = None
) -> tuple[WrittenPart, ...]:
    """Write a DataFrame with the table's columns as parts that no commit lists yet.

    Raises InvalidChanges, InvalidInput for a row for which ``where`` is not true, StoreUnavailable.
    """
    spec = write_spec_of(snapshot)
    incoming = spec.incoming
    unknown = unknown_columns(rows.columns, incoming, None, ())
    frame = _by_ranges(changes_frame(rows, incoming, None, ()), spec)
    names = f"{uuid.uuid4()}-"
    task = SortedWriteTask(
        spec=spec,
        root=root,
        stream=RowChanges(spec, strict=True, unknown_columns=unknown),
        names=names,
        rows_max=snapshot.settings.target_part_rows,
        bytes_max=snapshot.settings.target_part_bytes,
        where=where,
    )
    returned: set[str] = set()
    try:
        written = in_tasks(frame, task)
        returned = {part.path for part in written.parts}
    finally:
        delete_left(open_part_storage(root), names, returned)
    report_remarks(root, written.remarks)
    return written.parts


def _by_ranges(frame: DataFrame, spec: WriteSpec) -> DataFrame:
    """The rows in as many pieces as Spark shuffles into, each a range of the order of parts."""
    if not spec.terms:
        return frame
    from pyspark.sql.functions import expr

    ordered = dict.fromkeys([*spec.partition_by, *(name for term in spec.terms for name in term.columns)])
    logical = dict(zip(spec.schema.names, spec.incoming.schema.names, strict=True))
    return frame.repartitionByRange(*(expr(f"row.{quote_for_spark(logical[name])}") for name in ordered))


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedWriteTask:
    """The work of each task: it reads rows and writes sorted parts."""

    spec: WriteSpec
    root: str
    stream: RowChanges
    names: str
    """What the names of its files begin with."""
    rows_max: int
    """Of a part; and its bytes, about."""
    bytes_max: int
    where: Expression | None = None
    """What must be true for each row."""

    @crosses_spark
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with counted() as requests, measured(self.root, "write"):
            written = self.write(slices(self.stream(batches)))
        yield Answer.of(written, requests).batch()

    def write(self, pieces: Iterator[Decoded]) -> Written:
        """Write these rows; each piece fits in memory."""
        storage = open_part_storage(self.root)
        first, second = next(pieces, None), next(pieces, None)
        if first is None:
            return Written()
        if second is None:
            return Written(parts=tuple(self._sorted(first, storage, self.names)), remarks=first.remarks)
        with TemporaryDirectory(prefix="sorted-runs-", dir=process_folder()) as folder:
            local = open_part_storage(folder)
            runs: dict[PartitionKey, list[WrittenPart]] = {}
            remarks = []
            for piece in chain([first, second], pieces):
                remarks.append(piece.remarks)
                for run in self._sorted(piece, local):
                    runs.setdefault(partition_key(run.partition_values), []).append(run)
            parts = tuple(part for several in runs.values() for part in self._merged(several, local, storage))
        return Written(parts=parts, remarks=sum_of(remarks))

    def _sorted(self, piece: Decoded, storage: PartStorage, names: str = "") -> Iterator[WrittenPart]:
        rows = piece.changes.drop_columns([OP_COLUMN]) if self.spec.keys else piece.changes  # none is a delete
        if self.where is not None:
            require_true(self.where, rows)
        return write_parts(stored_rows(rows, self.spec), self.spec, storage, names)

    def _merged(self, runs: list[WrittenPart], local: PartStorage, storage: PartStorage) -> Iterator[WrittenPart]:
        """One sequence of parts, of runs of one partition."""
        parts = [run.base_part(has_op_column=False) for run in runs]
        merged = merge_parts(
            [MergeSource(part, BitMap64(), False, local.duckdb_url(part.path)) for part in parts],
            self.spec,
            storage,
            connect(_MERGE_MEMORY_BYTES, threads=1),
            rows_max=self.rows_max,
            bytes_max=self.bytes_max,
            read_from=local,
            names=self.names,
        )
        for run in runs:
            local.delete(run.path)
        return (_as_written(part, runs[0]) for part in merged)


def _as_written(part: MergedPart, run: WrittenPart) -> WrittenPart:
    return WrittenPart(
        path=part.path,
        rows=part.rows,
        bytes=part.bytes,
        deletes=0,
        incomplete=0,
        partition_values=run.partition_values,
        stats=part.stats,
        modified_ms=int(time.time() * 1000),
        sort_key_version=part.sort_key_version,
        checksum=part.checksum,
    )
