"""DELETE, UPDATE, MERGE INTO of a table without keys: Spark finds rows by their places, and these are marked dead.

1. Spark computes the changes of a version, of rows that it scans with the path of their part and their number in it.
2. The new rows are written as parts, and the old ones marked in deletion vectors, in one commit.
3. If another commit has marked or replaced one of these parts, all is computed again. So it is if a MERGE inserts, and another
   statement changed or inserted rows, which may be what its condition asks for. An append reads no rows: it counts as one after
   the statement, so a stream of them holds up none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.decode.row_changes import RowChanges
from lakebed.ingest.batch_writer import WriteTask, in_tasks
from lakebed.ingest.changes_frame import changes_frame
from lakebed.log.commit_kind import merged_into
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed
from lakebed.operations.commit_changes import discard
from lakebed.operations.mutate import live, marks
from lakebed.operations.mutation import MutationResult
from lakebed.parts.changes import WriteSpec, prepare, stored_rows, write_spec_of
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.quoting import quote_for_spark
from lakebed.sparks.names import DELETED, INSERTED, OLD, OPERATION, UPDATED, StatementInJvm
from lakebed.storage.engine import connect
from lakebed.table import Table, internals_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PART, _ROW = f"{OLD}0", f"{OLD}1"


@dataclass(frozen=True, slots=True)
class _Changes:
    """What a statement changes at a version."""

    dying: dict[str, BitMap64] = field(default_factory=dict)  # the rows that go, by part
    written: tuple[WrittenPart, ...] = ()  # the rows that come
    counts: dict[str, int] = field(default_factory=dict)  # rows updated, deleted, inserted


def run_by_place(table: Table, statement: StatementInJvm, operation: Operation, few: int) -> MutationResult:
    """Run a statement; up to ``few`` changes are written in this process.

    Raises InvalidChanges, Contention; StoreUnavailable, after which the timeline shows whether it was committed.
    """
    running = _Running(table, statement, few)
    return commit_loop(internals_of(table).log, operation, running.build, discard=running.discard, repeatable=False)


class _Running:
    """A statement under way."""

    def __init__(self, table: Table, statement: StatementInJvm, few: int) -> None:
        self._internals, self._statement, self._few = internals_of(table), statement, few
        self._changes, self._attempts, self._started = _Changes(), 0, time.perf_counter()

    def build(self, snapshot: Snapshot) -> Proposal[MutationResult] | Finished[MutationResult]:
        """Steps 1 to 3."""
        conflicts, self._attempts = self._attempts, self._attempts + 1
        self.discard()
        changes = self._changes = self._computed(snapshot)

        def result(version: int) -> MutationResult:
            return MutationResult(
                version=version,
                rows=sum(changes.counts.values()),
                **changes.counts,
                parts_marked=len(changes.dying),
                parts_added=len(changes.written),
                bytes_written=sum(part.bytes for part in changes.written),
                conflicts=conflicts,
                seconds=time.perf_counter() - self._started,
            )

        def committed(by: Committed) -> MutationResult:
            self._internals.log.checkpoint_if_due(by.snapshot, slack=2)
            return result(by.version)

        if not changes.dying and not changes.written:
            return Finished(result(snapshot.version))
        condition, inserts = self._statement.condition, changes.counts["inserted"] > 0
        actions = marks(snapshot, changes.dying, changes.written, self._internals.deletion_vectors)
        return Proposal(
            actions=[*actions, merged_into(snapshot.version)] if inserts else actions,
            access=ReadWriteSet(
                parts={path: snapshot.parts[path].partition_key for path in changes.dying},
                inserts_missing=inserts,
            ),
            result=committed,
            parameters={"predicate": condition} if condition else {},
            metrics={"rows": sum(changes.counts.values()), "parts": len(changes.dying)} | changes.counts,
        )

    def discard(self) -> None:
        """Delete the files of rows that were not committed."""
        discard(self._changes.written, self._internals.storage)
        self._changes = _Changes()

    @cached_property
    def _source(self) -> DataFrame | None:
        return self._statement.source(self._few)[0] if self._statement.kind == "MERGE" else None

    def _computed(self, snapshot: Snapshot) -> _Changes:
        spec = write_spec_of(snapshot)
        rows = self._internals.view.dataframe_of_parts(
            self._statement.session, snapshot, snapshot.parts.values(), places=True
        )
        changes = self._statement.changes(rows, self._source)
        if _PART not in changes.columns:  # a MERGE that only inserts
            changes = changes.selectExpr("*", f"cast(null as string) as {_PART}", f"cast(null as bigint) as {_ROW}")
        here = changes.limit(self._few + 1).toArrow()
        if len(here) <= self._few:
            return self._of_few(here, snapshot, spec)
        changes = changes.localCheckpoint()
        old = changes.where(f"{OPERATION} <> {INSERTED}").groupBy(_PART).agg({_ROW: "collect_list"}).toDF(_PART, _ROW)
        written: Sequence[WrittenPart] = ()
        if set(spec.incoming.schema.names) <= set(changes.columns):
            columns = map(quote_for_spark, spec.incoming.schema.names)
            frame = changes_frame(
                changes.where(f"{OPERATION} <> {DELETED}").selectExpr(*columns), spec.incoming, None, ()
            )
            written = in_tasks(frame, WriteTask(spec, self._internals.path, RowChanges(spec, strict=True))).parts
        updated = changes.where(f"{OPERATION} = {UPDATED}").count()
        return self._counted(snapshot, old.toArrow(), written, updated)

    def _of_few(self, changes: pa.Table, snapshot: Snapshot, spec: WriteSpec) -> _Changes:
        operation = changes[OPERATION]
        old = changes.filter(pc.not_equal(operation, INSERTED)).select([_PART, _ROW])
        new = changes.filter(pc.not_equal(operation, DELETED))
        written: list[WrittenPart] = []
        if len(new):
            checked = stored_rows(prepare(new.select(spec.incoming.schema.names), spec.incoming, connect()), spec)
            written = list(write_parts(checked, spec, self._internals.storage))
        updated = pc.sum(pc.equal(operation, UPDATED)).as_py() or 0
        return self._counted(snapshot, old.group_by(_PART).aggregate([(_ROW, "list")]), written, updated)

    def _counted(self, snapshot: Snapshot, old: pa.Table, written: Sequence[WrittenPart], updated: int) -> _Changes:
        """``old``: in two columns, parts and lists of their rows."""
        found = {
            part: BitMap64(np.asarray(rows.values, dtype=np.uint64))
            for part, rows in zip(old.column(0).to_pylist(), old.column(1), strict=True)
        }
        dying = live(snapshot.parts, found, self._internals.deletion_vectors)
        gone, came = sum(map(len, dying.values())), sum(part.rows for part in written)
        return _Changes(
            dying, tuple(written), {"updated": updated, "deleted": gone - updated, "inserted": came - updated}
        )
