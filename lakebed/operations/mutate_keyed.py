"""DELETE and UPDATE … WHERE on a table with keys: the rows that match become changes at the end of the tail.

It marks and rewrites nothing. So it blocks no settle and no merge, and none of them blocks it.

1. The view at the newest version is read (tail included), except parts whose bounds show that no row matches. Rows that
   match become deletes, or whole new rows. They are written as change parts of about a million rows: memory is bounded by
   that, not by the table.
2. The parts are committed as the newest changes. The mutation is serialised at the version that it read: what came since is
   newer.
3. So if change parts came in between, their keys are left out of ours, and the whole rows that they brought stay. With
   ``sequence_by`` a change that is older than the row it meets is late and does not count.
4. If rows came that lack values, or rows left the table (truncate, detach), the mutation is computed again at the newest
   version.

With ``sequence_by`` each change carries its row's own sequence: it wins by coming later, and any newer event still wins.

A table without keys is mutated by ``mutate_unkeyed``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import duckdb
import orjson
import pyarrow as pa

from lakebed.errors import Retry, VersionNotFound
from lakebed.log.actions import Action, AddChangePart, ChangePart, Domain, Part
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet, takes_rows_away
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed, TableLog
from lakebed.operations.mutation import BATCH_ROWS, Mutation, MutationResult, in_chunks
from lakebed.parts.changes import (
    DELETE,
    HIDDEN_TYPES,
    OLDEST_SEQUENCE,
    OP_COLUMN,
    SEQUENCE_COLUMN,
    UPSERT,
    WriteSpec,
    prepare,
    stored_rows,
    write_spec_of,
)
from lakebed.parts.intact import naming_damaged, require_intact
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.quoting import literal, quote
from lakebed.sql.expression import Expression
from lakebed.sql.pieces import aliases, named, oldest_value, scan_of, sql_type
from lakebed.storage.engine import connect
from lakebed.storage.file_errors import naming_unreadable
from lakebed.storage.part_storage import PartStorage

_MUTATIONS_SCHEMA = pa.schema(
    [
        ("version", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("operation", pa.string()),
        ("where", pa.string()),
        ("rows", pa.int64()),
        ("unsettled_rows", pa.int64()),
        ("unsettled_parts", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class _Pending:
    """What was written of a mutation and is not committed. ``rows_left``: rows that others changed since."""

    parts: tuple[WrittenPart, ...]
    parts_read: int
    rows_left: int = 0

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


class RowsForSql(Protocol):
    """The rows of a snapshot under a name, in SQL: see ``TableView.rows_for_sql``."""

    def __call__(
        self,
        snapshot: Snapshot,
        name: str,
        hidden: Sequence[pa.Field],
        where: Expression,
        run: Callable[[duckdb.DuckDBPyConnection, int], _Pending],
        /,
    ) -> _Pending: ...


Beside: TypeAlias = Callable[[Snapshot, int], Sequence[Domain] | None]
"""The entries that the commit of a mutation of so many rows sets besides; None: it is not wanted any more."""


def mutate(
    log: TableLog,
    storage: PartStorage,
    rows_for_sql: RowsForSql,
    mutation: Mutation,
    *,
    beside: Beside | None = None,
) -> MutationResult:
    """Run a mutation of a table with keys. ``beside``: there is a commit also if no row matches.

    Raises InvalidInput, Contention; StoreUnavailable, after which the timeline shows whether it was committed.
    """
    mutating = _Mutating(
        log=log,
        storage=storage,
        rows_for_sql=rows_for_sql,
        mutation=mutation,
        started=time.perf_counter(),
        beside=beside,
    )
    return commit_loop(log, mutation.operation, mutating.build, discard=mutating.discard, repeatable=False)


@dataclass(slots=True, kw_only=True)
class _Mutating:
    """A mutation under way. ``pending``: what was computed on the snapshot ``read``, while others committed first."""

    log: TableLog
    storage: PartStorage
    rows_for_sql: RowsForSql
    mutation: Mutation
    started: float
    beside: Beside | None = None
    began: Snapshot | None = None
    read: Snapshot | None = None
    pending: _Pending | None = None
    attempts: int = 0

    def build(self, snapshot: Snapshot) -> Proposal[MutationResult] | Finished[MutationResult]:
        """Steps 1, 3 and 4."""
        conflicts, self.attempts = self.attempts, self.attempts + 1
        if self.read is not None and self.pending is not None:
            self.pending = _rebased(self.pending, self.mutation, self.log, self.read, snapshot, self.storage)
        self.read = snapshot
        if self.pending is None:
            self.pending = self._worked_out(snapshot)
        pending, seconds = self.pending, time.perf_counter() - self.started
        entries = self.beside(snapshot, pending.rows) if self.beside is not None else ()
        if entries is None:
            self.discard()
            pending, entries = _Pending((), pending.parts_read), ()
        if not pending.parts and not entries:
            return Finished(
                MutationResult(
                    version=snapshot.version,
                    rows=0,
                    rows_left=pending.rows_left,
                    conflicts=conflicts,
                    seconds=seconds,
                    parts_read=pending.parts_read,
                )
            )
        changes: list[Action] = [
            AddChangePart(part.change_part(ordinal, mutation=True)) for ordinal, part in enumerate(pending.parts)
        ]

        def result(committed: Committed) -> MutationResult:
            self.log.checkpoint_if_due(committed.snapshot, slack=2)
            return MutationResult(
                version=committed.version,
                rows=pending.rows,
                rows_left=pending.rows_left,
                parts_marked=0,
                parts_added=len(changes),
                bytes_written=sum(part.bytes for part in pending.parts),
                conflicts=conflicts,
                seconds=seconds,
                parts_read=pending.parts_read,
            )

        metrics = {"rows": pending.rows, "parts": len(changes)}
        return Proposal(
            actions=[*changes, *entries],
            access=ReadWriteSet(read_changes=True, domains=frozenset(entry.domain for entry in entries)),
            result=result,
            parameters=self.mutation.parameters,
            metrics=metrics,
        )

    def discard(self) -> None:
        """Delete the files of what was not committed."""
        if self.pending is not None:
            discard(self.pending.parts, self.storage)

    def _worked_out(self, snapshot: Snapshot) -> _Pending:
        spec = write_spec_of(snapshot)
        if self.began is None:
            self.began = snapshot
            self.mutation.check(spec.incoming)
        elif not _has_columns_of(self.began, snapshot):
            raise Retry(
                "columns of the table were renamed or dropped, and rows left it, while the mutation ran; run it again, with the "
                "names that the columns have now",
                table=self.log.root,
            )
        parts: list[Part | ChangePart] = [*snapshot.parts.values(), *snapshot.tail.values()]
        with naming_damaged(parts, self.storage), naming_unreadable(part.path for part in parts):
            return _write(self.mutation, snapshot, spec, self.storage, self.rows_for_sql)


def _has_columns_of(began: Snapshot, now: Snapshot) -> bool:
    """Whether each column has the name that it had, so that an expression means the same columns."""
    there = dict(zip(now.schema.names, now.logical_schema.names, strict=True))
    before = zip(began.schema.names, began.logical_schema.names, strict=True)
    return all(there.get(stored) == name for stored, name in before)


def _paths(read: Snapshot) -> list[str]:
    return [*read.parts, *(part.path for part in read.tail.values())]


def unsettled_mutations(log: TableLog) -> pa.Table:
    """A row a mutation with change parts in the tail (MUTATIONS_SCHEMA), oldest first."""
    by_version: dict[int, list[ChangePart]] = {}
    for part in log.refresh().tail_in_order():
        if not part.mutation:
            continue
        by_version.setdefault(part.version, []).append(part)
    rows = []
    for version, parts in by_version.items():
        commit = log.read_commit(version)
        info = commit.info if commit else None
        is_delete = all(part.deletes == part.rows for part in parts)
        rows.append(
            {
                "version": version,
                "timestamp": commit.timestamp_ms if commit else None,
                "operation": (Operation.DELETE if is_delete else Operation.UPDATE).value,
                "where": info.parameters.get("predicate") if info else None,
                "rows": sum(action.part.rows for action in commit.actions if isinstance(action, AddChangePart))
                if commit
                else None,
                "unsettled_rows": sum(part.rows for part in parts),
                "unsettled_parts": len(parts),
            }
        )
    return pa.Table.from_pylist(rows, _MUTATIONS_SCHEMA)


def discard(parts: Sequence[WrittenPart], storage: PartStorage) -> None:
    """Delete files that no commit lists; what can't be deleted now is left to the cleanup."""
    storage.delete_many([part.path for part in parts])


def _write(
    mutation: Mutation, read: Snapshot, spec: WriteSpec, storage: PartStorage, rows_for_sql: RowsForSql
) -> _Pending:
    """Step 1: the changes of the rows that match, as files."""
    writing, incoming = connect(), spec.incoming
    hidden, columns, fill = [], mutation.columns(incoming.schema), mutation.fill(incoming)
    if spec.sequence_column == SEQUENCE_COLUMN:
        hidden.append(pa.field(SEQUENCE_COLUMN, pa.int64()))
        # A row that another writer left before the table was converted has none: it is older than all that have one.
        columns.append(f"coalesce({SEQUENCE_COLUMN}, {OLDEST_SEQUENCE}) as {SEQUENCE_COLUMN}")
    elif any(group.creates for group in spec.groups):  # a row that its owner never brought has none either
        at = incoming.schema.get_field_index(str(incoming.sequence_by))
        oldest = oldest_value(incoming.schema.field(at).type)
        columns[at] = f"coalesce({quote(str(incoming.sequence_by))}, {oldest}) as {quote(str(incoming.sequence_by))}"
    for group in spec.groups:
        if group.field is not None:
            hidden.append(pa.field(group.sequence_by, pa.int64()))
            columns.append(quote(group.sequence_by))
    operation = DELETE if mutation.assignments is None else UPSERT
    query = (
        f"select {', '.join(columns)}, {literal(operation)} as {OP_COLUMN} "
        f"from lakebed_mutated where {mutation.condition()}"
    )

    def run(scanning: duckdb.DuckDBPyConnection, parts_read: int) -> _Pending:
        written: list[WrittenPart] = []
        try:
            with mutation.mistakes(_paths(read)):
                for chunk in in_chunks(scanning.sql(query).to_arrow_reader(BATCH_ROWS)):
                    rows = stored_rows(prepare(chunk, incoming, writing, fill=fill), spec)
                    if spec.keeps_first and operation == UPSERT:  # else the row that is there would stay
                        deletes = pa.repeat(pa.scalar(DELETE), len(rows))
                        gone = rows.drop_columns([OP_COLUMN]).append_column(OP_COLUMN, deletes)
                        written += write_parts(gone, spec, storage)
                    written += write_parts(rows, spec, storage)
        except BaseException:
            discard(written, storage)
            raise
        return _Pending(tuple(written), parts_read)

    return rows_for_sql(read, "lakebed_mutated", hidden, mutation.where, run)


def _concern(came: Sequence[ChangePart], mutation: Mutation, newest: Snapshot) -> list[ChangePart]:
    """The change parts that say something of a group of columns that the mutation reads or sets.

    A part says nothing of a group if what orders the group is null in all its rows.
    """
    if newest.settings.conflict_scope != "column" or not newest.settings.groups:
        return list(came)
    columns, names = newest.logical_schema.names, mutation.names()
    if not names.issubset(map(str.lower, columns)):
        return list(came)
    stored = dict(zip(newest.logical_settings.groups, write_spec_of(newest).groups, strict=True))
    grouped = {group: {name.lower() for name in group.columns} for group in stored}
    orders = [stored[group].sequence_by for group, several in grouped.items() if not names.isdisjoint(several)]
    if mutation.assignments is None or names.difference(*grouped.values()):
        orders.append(str(newest.settings.sequence_by))

    def is_silent(part: ChangePart, order: str) -> bool:
        nulls = (orjson.loads(part.stats) if part.stats else {}).get("nullCount", {})
        return bool(nulls.get(order) == part.rows)

    return [part for part in came if not all(is_silent(part, order) for order in orders)]


def _rebased(
    pending: _Pending, mutation: Mutation, log: TableLog, read: Snapshot, newest: Snapshot, storage: PartStorage
) -> _Pending | None:
    """Steps 3 and 4: what is left of the mutation after the commits since; None if it must be computed again."""
    spec = write_spec_of(newest)  # its types hold the keys of newer changes too
    try:
        commits = list(log.commits(read.version + 1, newest.version))
    except VersionNotFound:
        commits = []
    came = [action.part for commit in commits for action in commit.actions if isinstance(action, AddChangePart)]
    came = _concern(came, mutation, newest)
    if (
        len(commits) < newest.version - read.version
        or not write_spec_of(read).fits(spec)
        or any(part.incomplete for part in came)
        or any(takes_rows_away(commit) for commit in commits)
    ):
        discard(pending.parts, storage)
        return None
    if not came:
        return pending
    kept: list[WrittenPart] = []
    for part in pending.parts:
        kept += _without_newer(part, came, spec, storage)
    left = pending.rows - sum(part.rows for part in kept)
    return _Pending(tuple(kept), pending.parts_read, pending.rows_left + left)


def _without_newer(
    part: WrittenPart, came: Sequence[ChangePart], spec: WriteSpec, storage: PartStorage
) -> list[WrittenPart]:
    """The part without the keys that newer changes brought; as it is if there are none of its keys. Raises Corrupt."""
    require_intact([part, *came], storage, objects=True)
    connection = connect()
    storage.attach(connection)
    columns = list(dict.fromkeys([*spec.keys, *([spec.sequence_column] if spec.sequence_column else [])]))
    alias = aliases(columns)
    columns += [name for name in [*spec.schema.names, OP_COLUMN] if name not in columns]
    kinds = {name: sql_type(HIDDEN_TYPES.get(name) or spec.schema.field(name).type) for name in columns}
    newer = scan_of([storage.duckdb_url(other.path) for other in came], {name: kinds[name] for name in alias}, {})
    same = [f"o.{alias[name]} = n.{alias[name]}" for name in spec.keys]
    if spec.sequence_column:
        same.append(f"n.{alias[spec.sequence_column]} >= o.{alias[spec.sequence_column]}")
    ours = f"from ({scan_of([storage.duckdb_url(part.path)], kinds, {})}) o"
    matched = f"join ({newer}) n on {' and '.join(same)}"
    ((found,),) = connection.execute(f"select count(*) {ours} semi {matched}").fetchall()
    if not found:
        return [part]
    rows = connection.sql(f"select o.* {ours} anti {matched}").to_arrow_table()
    kept = list(write_parts(named(rows, columns), spec, storage))
    discard([part], storage)
    return kept
