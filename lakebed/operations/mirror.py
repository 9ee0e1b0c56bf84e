"""Remove the rows that the source no longer has, at the end of a resnapshot (``positions.resnapshots``) with ``mirror_from``.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from lakebed.log.actions import Domain
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.operations.mutate import run_mutation
from lakebed.operations.mutation import Mutation
from lakebed.parts.changes import OLDEST_SEQUENCE, SEQUENCE_COLUMN, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.positions.resnapshots import Resnapshot, active, advance
from lakebed.sql.expression import Expression, expression
from lakebed.storage.part_storage import PartStorage

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
