"""Deletes and updates rows: in a table with keys by changes (``mutate_keyed``), and in one without by marking rows dead here.

Files are written first, then committed: vectors and parts have new names.

1. For each base part whose bounds do not rule it out, the positions of rows that match are found (one scan of the columns
   that ``where`` uses).
2. Those not dead yet are marked in the part's deletion vector; for an update, their new rows are written.
3. One commit: marked parts are removed and added with the new vector, parts without a live row leave, new ones join.
   On a conflict (another commit marked or replaced one of the parts) only parts that were not read yet are read.

The user's expressions mean the columns that the table had when the mutation began, whatever these are called since. What was
found and written is kept when the schema changes, as long as it fits the newer one.

Parts under a claim are marked like others: the merge carries the dead rows over to its output. A part that was appended
meanwhile is no conflict: the mutation is serialised before it.

**Mirror.** A resnapshot (``positions.resnapshots``) with ``mirror_from`` ends by removing the rows that the source no longer has.
``mirror_from`` is the greatest sequence that a row of the table had before the connector was asked. The source's order of commits
is that of the sequences, and each sequence in the table is of a transaction that had been committed by then. So:

1. A row that the source has when the connector reads its key comes again, or a change of it does. Either has a greater sequence.
2. A row that is put in behind the connector's back, at a key that it has passed, comes as a change: its sequence is greater too.
3. So when all that the connector sent is in, a row whose sequence is not greater is one that the source does not have.

These rows become deletes, in one commit that also ends the resnapshot: it is done once, whoever tries it. A delete has the
sequence of its row. So a row or a change that comes later, whatever held it up, wins over the delete.

Before that it is checked what the sequences can't show. At least as many rows came as the connector has read, counting those that
were deleted since; and every record could be used. If not, nothing is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from lakebed import events
from lakebed.coordination.rewriting import alone
from lakebed.errors import InvalidInput
from lakebed.log.actions import Action, AddPart, Domain, Part
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed, TableLog, require_writable
from lakebed.operations.commit_changes import Beside, discard
from lakebed.operations.mutate_keyed import RowsForSql, mutate
from lakebed.operations.mutation import BATCH_ROWS, Mutation, MutationResult, in_chunks
from lakebed.parts.changes import OLDEST_SEQUENCE, SEQUENCE_COLUMN, WriteSpec, prepare, stored_rows, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.part_filter import parts_that_may_match
from lakebed.parts.row_origins import ROW, numbered
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.positions.resnapshots import Resnapshot, active, advance
from lakebed.sortkey.statistics_cache import StatisticsCache
from lakebed.sql import EVALUATED_FIRST, Expression, connection_for, expression, registered
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage


def mutate_unkeyed(
    log: TableLog, storage: PartStorage, deletion_vectors: DeletionVectorCache, mutation: Mutation
) -> MutationResult:
    """Run a mutation of a table without keys.

    Raises InvalidInput, Contention; StoreUnavailable, after which the timeline shows whether it was committed.
    """
    mutating = _Mutating(
        log=log, storage=storage, deletion_vectors=deletion_vectors, mutation=mutation, started=time.perf_counter()
    )
    return commit_loop(log, mutation.operation, mutating.build, discard=mutating.discard, repeatable=False)


@dataclass(slots=True, kw_only=True)
class Matching:
    """Finds the rows for which a condition is true. A file never changes, so each is looked at once.

    ``began``: the version in which the condition's names mean what the user meant.
    """

    storage: PartStorage
    deletion_vectors: DeletionVectorCache
    statistics: StatisticsCache
    mutation: Mutation
    began: Snapshot
    spec: WriteSpec | None = None
    parts_read: int = 0
    _looked_at: dict[str, BitMap64] = field(default_factory=dict)

    def of(self, snapshot: Snapshot) -> dict[str, BitMap64]:
        """The live rows of a version that match, by part. Raises InvalidInput, Corrupt."""
        spec = write_spec_of(snapshot)
        if self.spec is not None and not self.spec.fits(spec):
            self._looked_at = {}
        self.spec = spec
        named = spec.named_as(write_spec_of(self.began))
        new = [part for path, part in snapshot.parts.items() if path not in self._looked_at]
        where, names = self.mutation.where, self.began.columns
        read = parts_that_may_match(connect(), new, spec.schema, where, self.statistics, names)
        self._looked_at |= {part.path: BitMap64() for part in new}
        for part in read:
            rows = numbered(part, spec.schema, self.storage, named.schema)
            self._looked_at[part.path] = _matches(
                part, rows, self.deletion_vectors.of(part), self.mutation, self.storage
            )
        self.parts_read += len(read)
        return live(snapshot.parts, self._looked_at, self.deletion_vectors)


@dataclass(slots=True, kw_only=True)
class _Mutating:
    """A mutation under way.

    ``matching``: since the first attempt; ``written``: the new rows of what was dying when they were written (``written_for``),
    in the shape that ``matching`` saw last.
    """

    log: TableLog
    storage: PartStorage
    deletion_vectors: DeletionVectorCache
    mutation: Mutation
    started: float
    matching: Matching | None = None
    written: list[WrittenPart] = field(default_factory=list)
    written_for: dict[str, BitMap64] = field(default_factory=dict)
    attempts: int = 0

    def build(self, snapshot: Snapshot) -> Proposal[MutationResult] | Finished[MutationResult]:
        """Steps 1 to 3."""
        conflicts, self.attempts = self.attempts, self.attempts + 1
        spec = write_spec_of(snapshot)
        if self.matching is None:
            self.mutation.check(spec.incoming)
            self.matching = Matching(
                storage=self.storage,
                deletion_vectors=self.deletion_vectors,
                statistics=self.log.statistics,
                mutation=self.mutation,
                began=snapshot,
            )
        if self.matching.spec is not None and not self.matching.spec.fits(spec):
            self.written_for = {}
        matching, dying = self.matching, self.matching.of(snapshot)
        if self.mutation.assignments is not None and dying != self.written_for:
            named = spec.named_as(write_spec_of(matching.began))
            self.discard()
            self.written = list(_write(dying, snapshot, self.mutation, spec, named, self.storage))
            self.written_for = dying
        rows = sum(len(dead) for dead in dying.values())
        if not rows:
            seconds = time.perf_counter() - self.started
            return Finished(
                MutationResult(
                    version=snapshot.version, conflicts=conflicts, seconds=seconds, parts_read=matching.parts_read
                )
            )
        access = ReadWriteSet(parts={path: snapshot.parts[path].partition_key for path in dying})
        actions = marks(snapshot, dying, self.written, self.deletion_vectors)

        def result(committed: Committed) -> MutationResult:
            self.log.checkpoint_if_due(committed.snapshot, slack=2)
            return MutationResult(
                version=committed.version,
                rows=rows,
                deleted=rows if self.mutation.assignments is None else 0,
                updated=0 if self.mutation.assignments is None else rows,
                parts_marked=len(dying),
                parts_added=len(self.written),
                bytes_written=sum(part.bytes for part in self.written) + _vector_bytes(actions),
                conflicts=conflicts,
                seconds=time.perf_counter() - self.started,
                parts_read=matching.parts_read,
            )

        return Proposal(
            actions=actions,
            access=access,
            result=result,
            parameters=self.mutation.parameters,
            metrics={"rows": rows, "parts": len(dying)},
        )

    def discard(self) -> None:
        """Delete the files of new rows that were not committed."""
        discard(self.written, self.storage)


def _vector_bytes(actions: list[Action]) -> int:
    vectors = [action.part.deletion_vector for action in actions if isinstance(action, AddPart)]
    return sum(vector.bytes for vector in vectors if vector and vector.storage != "i")


def live(
    parts: Mapping[str, Part], found: Mapping[str, BitMap64], deletion_vectors: DeletionVectorCache
) -> dict[str, BitMap64]:
    """The live rows of those that were found, by part."""
    out = {}
    for path, part in parts.items():
        if found.get(path) and (dying := found[path] - deletion_vectors.of(part)):
            out[path] = dying
    return out


def _matches(part: Part, rows: str, dead: BitMap64, mutation: Mutation, storage: PartStorage) -> BitMap64:
    """The rows that match, perhaps dead ones among them; if the predicate fails on a dead row, without them."""
    try:
        return _positions(part, rows, mutation, storage)
    except InvalidInput:
        if not dead:
            raise
    live = f"select * from ({rows}) where {ROW} not in (select row from lakebed_rows) {EVALUATED_FIRST}"
    return _positions(part, live, mutation, storage, dead)


def _positions(
    part: Part, rows: str, mutation: Mutation, storage: PartStorage, dead: BitMap64 | None = None
) -> BitMap64:
    connection = connection_for(storage, [part.path])
    found = BitMap64()
    with mutation.mistakes([part.path]), _registered(connection, dead or BitMap64()):
        query = f"select {ROW} from ({rows}) where {mutation.condition()}"
        for batch in connection.sql(query).to_arrow_reader(BATCH_ROWS):
            found |= BitMap64(batch.column(0).to_numpy().astype(np.uint64))
    return found


def _registered(connection: duckdb.DuckDBPyConnection, rows: BitMap64) -> AbstractContextManager[str]:
    """The positions as ``row`` of a table ``lakebed_rows``."""
    wanted = pa.table({"row": np.frombuffer(rows.to_array(), dtype=np.uint64).astype(np.int64)})
    return registered(connection, "lakebed_rows", wanted)


def _write(
    dying: Mapping[str, BitMap64],
    snapshot: Snapshot,
    mutation: Mutation,
    spec: WriteSpec,
    named: WriteSpec,
    storage: PartStorage,
) -> Iterator[WrittenPart]:
    """The new rows of an update, in parts that may hold rows of several."""
    connection, incoming = connect(), spec.incoming
    batches = (
        batch
        for path, rows in dying.items()
        for batch in _new_rows(snapshot.parts[path], rows, mutation, spec, named, storage)
    )
    for chunk in in_chunks(batches):
        with mutation.mistakes(()):
            prepared = prepare(chunk.rename_columns(incoming.schema.names), incoming, connection)
        yield from write_parts(stored_rows(prepared, spec), spec, storage)


def _new_rows(
    part: Part, rows: BitMap64, mutation: Mutation, spec: WriteSpec, named: WriteSpec, storage: PartStorage
) -> Iterator[pa.RecordBatch]:
    connection = connection_for(storage, [part.path])
    of_part = numbered(part, spec.schema, storage, named.schema)
    chosen = f"select * from ({of_part}) where {ROW} in (select row from lakebed_rows)"
    with mutation.mistakes([part.path]), _registered(connection, rows):
        yield from connection.sql(
            f"select {', '.join(mutation.columns(named.schema))} from ({chosen} {EVALUATED_FIRST})"
        ).to_arrow_reader(BATCH_ROWS)


def marks(
    snapshot: Snapshot,
    dying: Mapping[str, BitMap64],
    written: Sequence[WrittenPart],
    deletion_vectors: DeletionVectorCache,
) -> list[Action]:
    """What marks live rows dead, writing deletion vectors, and adds parts."""
    return [
        *rows_marked_dead(snapshot, dying, deletion_vectors),
        *(AddPart(part.base_part(has_op_column=False)) for part in written),
    ]


def rows_marked_dead(
    snapshot: Snapshot, dying: Mapping[str, BitMap64], deletion_vectors: DeletionVectorCache
) -> list[Action]:
    """What marks live rows dead, writing deletion vectors. A part without live rows leaves, unless it remembers deletes."""
    now_ms = int(time.time() * 1000)
    dead = {path: deletion_vectors.of(snapshot.parts[path]) | rows for path, rows in dying.items()}
    vectors = deletion_vectors.write(
        {
            path: rows
            for path, rows in dead.items()
            if len(rows) < snapshot.parts[path].rows or snapshot.parts[path].deletes
        }
    )
    actions: list[Action] = []
    for path in dying:
        part = snapshot.parts[path]
        actions.append(part.removed(now_ms))
        if path in vectors:
            actions.append(AddPart(part.marked(vectors[path])))
    return actions


# -- Deletes and updates rows, of a table with keys or without, and emits the events ---------------------------------------


def run_mutation(
    path: str,
    log: TableLog,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    rows_for_sql: RowsForSql,
    mutation: Mutation,
    *,
    beside: Beside | None = None,
) -> MutationResult:
    """Run it. ``beside``: entries that its commit sets too, of a table with keys.

    Raises InvalidInput, Contention; StoreUnavailable, after which the timeline shows whether it was committed.
    """

    def work() -> MutationResult:
        if log.refresh().settings.keys:
            return mutate(log, storage, rows_for_sql, mutation, beside=beside)
        return mutate_unkeyed(log, storage, deletion_vectors, mutation)

    return observed(path, log, mutation.operation, mutation.where.text, work)


def observed(
    path: str, log: TableLog, operation: Operation, where: str, work: Callable[[], MutationResult]
) -> MutationResult:
    """Do the work of a mutation or a statement, alone if the table wants that, and emit its events. Raises what it raises."""
    require_writable(log.refresh().protocol)
    name = operation.lower()
    events.emit(events.MutationBegan(table=path, operation=name, where=where))
    try:
        with alone(log, operation):
            result = work()
    except BaseException as error:
        events.emit(events.MutationFailed(table=path, operation=name, error=str(error)))
        raise
    events.emit(
        events.MutationEnded(
            table=path,
            operation=name,
            version=result.version,
            rows=result.rows,
            parts_read=result.parts_read,
            parts_marked=result.parts_marked,
            parts_added=result.parts_added,
            bytes_written=result.bytes_written,
            conflicts=result.conflicts,
            seconds=result.seconds,
        )
    )
    return result


_COMMIT_ORDERS = ("source.lsn", "source.pos")
"""What ``sequence_by`` must be: positions that are the order of commits, and that grow with each mark which a snapshot sets."""
_HIDDEN = pa.field(SEQUENCE_COLUMN, pa.int64())
_SEQUENCE = f"coalesce({SEQUENCE_COLUMN}, {OLDEST_SEQUENCE})"  # rows of another writer have none


class _RowsForSql(Protocol):
    """The rows of a snapshot under a name, in SQL: see ``TableView.rows_for_sql``."""

    def __call__(
        self,
        snapshot: Snapshot,
        name: str,
        hidden: Sequence[pa.Field],
        where: Expression,
        run: Callable[[duckdb.DuckDBPyConnection, int], Any],
        among: pa.Table | None = None,
        /,
    ) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """What one table needs for it."""

    path: str
    log: TableLog
    storage: PartStorage
    deletion_vectors: DeletionVectorCache
    rows_for_sql: _RowsForSql

    def begin(self, snapshot: Snapshot) -> int:
        """``mirror_from`` of a resnapshot that is to be asked now."""
        [newest] = self._aggregated(snapshot, f"max({_SEQUENCE})")
        return OLDEST_SEQUENCE if newest is None else int(newest)

    def end(self, id: str) -> str | None:
        """Remove the rows that did not come again, if all that was sent is in; returns why that is not done yet, None if it is.

        Raises InvalidInput, Contention; StoreUnavailable: it may be repeated.
        """
        snapshot = self.log.refresh()
        found = active(snapshot, id)
        if found is None or found.mirror_from is None:
            return None
        if found.state != "read" or not found.is_in(snapshot):
            return "the table has not read all that the connector sent"
        if why := why_not(snapshot) or _unusable(found):
            self.fail(id, why)
            return None
        is_new = f"{_SEQUENCE} > {found.mirror_from}"
        new, gone = self._aggregated(snapshot, f"count(*) filter ({is_new})", f"count(*) filter (not {is_new})")
        if gone and new + found.deleted < (found.read or 0):
            return f"the connector has read {found.read:,} rows, and {new + found.deleted:,} came"
        mutation = Mutation(expression(f"{_SEQUENCE} <= {found.mirror_from}", "where"), sees_sequence=True)
        run_mutation(
            self.path,
            self.log,
            self.storage,
            self.deletion_vectors,
            self.rows_for_sql,
            mutation,
            beside=self._ended(id),
        )
        return None

    def fail(self, id: str, why: str) -> None:
        """End it with nothing removed. Raises Contention, StoreUnavailable."""
        now_ms = self.log.now_ms()
        text = f"{why}; no row was removed. When the cause is mended, ask for the rows again"
        advance(self.log, id, lambda found: replace(found, state="failed", error=text, ended_ms=now_ms, at=""))

    def _ended(self, id: str) -> Callable[[Snapshot, int], Sequence[Domain] | None]:
        """What the commit that removes so many rows says besides; None if another process was faster."""

        def entries(snapshot: Snapshot, rows: int) -> Sequence[Domain] | None:
            found = active(snapshot, id)
            if found is None or found.unusable:
                return None
            ended = replace(found, state="ended", removed=rows, ended_ms=self.log.now_ms(), at="")
            return [ended.to_action(), *ended.at_the_end(snapshot)]

        return entries

    def _aggregated(self, snapshot: Snapshot, *aggregates: str) -> tuple[Any, ...]:
        query = f"select {', '.join(aggregates)} from lakebed_mirrored"

        def run(connection: duckdb.DuckDBPyConnection, parts: int) -> tuple[Any, ...]:
            return tuple(connection.execute(query).fetchall()[0])

        found: tuple[Any, ...] = self.rows_for_sql(
            snapshot, "lakebed_mirrored", [_HIDDEN], expression("true", "where"), run
        )
        return found


def why_not(snapshot: Snapshot) -> str | None:
    """Why the rows of a table that the source no longer has can't be told from others; None if they can."""
    settings = snapshot.logical_settings
    if not settings.keys:
        return "the table has no keys"
    if settings.sequence_by not in _COMMIT_ORDERS or write_spec_of(snapshot).sequence_column != SEQUENCE_COLUMN:
        order = f"ordered by {settings.sequence_by}" if settings.sequence_by else "in the order of arrival"
        return (
            f"its changes are {order}; only {' and '.join(_COMMIT_ORDERS)} of PostgreSQL, MariaDB and MySQL are known to show "
            "which rows did not come again"
        )
    return None


def _unusable(found: Resnapshot) -> str | None:
    if not found.unusable:
        return None
    return f"{found.unusable:,} records that came meanwhile could not be used, so what the source has is not known"
