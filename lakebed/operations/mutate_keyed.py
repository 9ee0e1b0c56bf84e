"""DELETE and UPDATE … WHERE on a table with keys: the rows that match become changes at the end of the tail.

1. The view at a version is read (tail included), except parts whose bounds show that no row matches. Rows that match become
   deletes, or whole new rows. They are written as change parts of about a million rows: memory is bounded by that, not by the
   table.
2. The parts are committed as the newest changes (``commit_changes``). Rows that others changed meanwhile are looked at again: of
   these alone the view of the newest version is read.

With ``sequence_by`` each change carries its row's own sequence: it wins by coming later, and any newer event still wins.

A table without keys is mutated by ``mutate_unkeyed``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import duckdb
import orjson
import pyarrow as pa

from lakebed.errors import Retry
from lakebed.log.actions import AddChangePart, ChangePart, Part
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.operations.commit_changes import Beside, Kind, Pending, PendingPart, commit_changes, discard
from lakebed.operations.mutation import BATCH_ROWS, Mutation, MutationResult, in_chunks
from lakebed.parts.changes import (
    DELETE,
    OLDEST_SEQUENCE,
    OP_COLUMN,
    SEQUENCE_COLUMN,
    UPSERT,
    WriteSpec,
    prepare,
    stored_rows,
    write_spec_of,
)
from lakebed.parts.intact import naming_damaged
from lakebed.parts.write import write_parts
from lakebed.quoting import literal, quote
from lakebed.sql import Expression, oldest_value
from lakebed.storage.engine import connect, naming_unreadable
from lakebed.storage.part_storage import PartStorage

KEYS_AT_ONCE = 100_000
"""Of so many keys at most, whole rows are in memory when they are looked at again."""

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


class RowsForSql(Protocol):
    """The rows of a snapshot under a name, in SQL: see ``TableView.rows_for_sql``."""

    def __call__(
        self,
        snapshot: Snapshot,
        name: str,
        hidden: Sequence[pa.Field],
        where: Expression,
        run: Callable[[duckdb.DuckDBPyConnection, int], Pending],
        among: pa.Table | None,
        /,
    ) -> Pending: ...


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
    return commit_changes(
        log,
        storage,
        mutation.operation,
        _Mutating(root=log.root, storage=storage, rows_for_sql=rows_for_sql, mutation=mutation),
        mutation.parameters,
        concern=lambda came, newest: _concern(came, mutation, newest),
        beside=beside,
    )


@dataclass(slots=True, kw_only=True)
class _Mutating:
    """A mutation as changes. ``began``: the first version at which it was computed."""

    root: str
    storage: PartStorage
    rows_for_sql: RowsForSql
    mutation: Mutation
    began: Snapshot | None = None

    def __call__(self, snapshot: Snapshot, among: pa.Table | None) -> Pending:
        """Step 1. Raises InvalidInput, Corrupt; Retry if the columns have other names by now."""
        spec = write_spec_of(snapshot)
        if self.began is None:
            self.began = snapshot
            self.mutation.check(spec.incoming)
        elif not _has_columns_of(self.began, snapshot):
            raise Retry(
                "columns of the table were renamed or dropped, and rows that match were changed or left it, while the mutation "
                "ran; run it again, with the names that the columns have now",
                table=self.root,
            )
        parts: list[Part | ChangePart] = [*snapshot.parts.values(), *snapshot.tail.values()]
        with naming_damaged(parts, self.storage), naming_unreadable(part.path for part in parts):
            return _write(self.mutation, snapshot, spec, self.storage, self.rows_for_sql, among)


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
        rows.append(
            {
                "version": version,
                "timestamp": commit.timestamp_ms if commit else None,
                "operation": info.operation if info else None,
                "where": info.parameters.get("predicate") if info else None,
                "rows": sum(action.part.rows for action in commit.actions if isinstance(action, AddChangePart))
                if commit
                else None,
                "unsettled_rows": sum(part.rows for part in parts),
                "unsettled_parts": len(parts),
            }
        )
    return pa.Table.from_pylist(rows, _MUTATIONS_SCHEMA)


def _write(
    mutation: Mutation,
    read: Snapshot,
    spec: WriteSpec,
    storage: PartStorage,
    rows_for_sql: RowsForSql,
    among: pa.Table | None,
) -> Pending:
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
    kind: Kind = "deleted" if operation == DELETE else "updated"
    query = (
        f"select {', '.join(columns)}, {literal(operation)} as {OP_COLUMN} "
        f"from lakebed_mutated where {mutation.condition()}"
    )

    def run(scanning: duckdb.DuckDBPyConnection, parts_read: int) -> Pending:
        written: list[PendingPart] = []
        try:
            with mutation.mistakes(_paths(read)):
                for chunk in in_chunks(scanning.sql(query).to_arrow_reader(BATCH_ROWS)):
                    rows = stored_rows(prepare(chunk, incoming, writing, fill=fill), spec)
                    if spec.keeps_first and operation == UPSERT:  # else the row that is there would stay
                        deletes = pa.repeat(pa.scalar(DELETE), len(rows))
                        gone = rows.drop_columns([OP_COLUMN]).append_column(OP_COLUMN, deletes)
                        written += [PendingPart(part, None) for part in write_parts(gone, spec, storage)]
                    written += [PendingPart(part, kind) for part in write_parts(rows, spec, storage)]
        except BaseException:
            discard([each.part for each in written], storage)
            raise
        return Pending(tuple(written), parts_read)

    pieces = [None] if among is None else [among.slice(at, KEYS_AT_ONCE) for at in range(0, len(among), KEYS_AT_ONCE)]
    out = Pending()
    try:
        for piece in pieces:
            out += rows_for_sql(read, "lakebed_mutated", hidden, mutation.where, run, piece)
    except BaseException:
        discard(out.written, storage)
        raise
    return out


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
