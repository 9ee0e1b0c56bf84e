"""A table of the lake as one side of a comparison: its newest committed rows, tail included, read by DuckDB.

The rows of the source that are compared one by one are kept in a temporary table, which spills to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from lakebed.errors import Retry
from lakebed.log.snapshot import Snapshot
from lakebed.quoting import literal, quote
from lakebed.sql import Expression, expression
from lakebed.table.internals import Internals
from lakebed.verify.canonical import Shape, put
from lakebed.verify.comparing import Key, Row, Span, Tally
from lakebed.verify.duck import ROWS, DuckRows, TableRelation

_KEPT, _DIFFERING, _BATCH = "lakebed_kept", "lakebed_differing", "lakebed_batch"


class LakeTable:
    """One table. See ``Lake``; close it when done."""

    def __init__(self, internals: Internals, shape: Shape, wait: Callable[[int], Snapshot]) -> None:
        """``wait``: returns a version of the table that has everything of the source up to a position. Raises Retry."""
        self._shape = shape
        self._wait = wait
        self._table = TableRelation(internals)
        self._columns = _columns(internals.log.refresh(), shape)
        self._side = DuckRows(self._table, shape, of_source=False)
        self._connection, self._names = self._side.connection, ", ".join(self._side.names)
        self._order = _ordered(
            [
                put(one.order or "null", quote(key.name))
                for one, key in zip(self._shape.of_keys, self._shape.keys, strict=True)
            ]
        )
        self._is_kept = False
        self._next = 0

    def close(self) -> None:
        """Forget what was kept."""
        self._side.close()

    @property
    def version(self) -> int:
        """The version that was read last; -1 before the first one."""
        return self._table.snapshot.version if self._table.snapshot else -1

    def reach(self, position: int) -> None:
        """See ``Lake``. Raises Retry also if columns that are compared are other ones now."""
        snapshot = self._wait(position)
        if _columns(snapshot, self._shape) != self._columns:
            raise Retry("columns of the table were renamed, dropped or widened while it was compared; compare it again")
        self._table.snapshot = snapshot

    def tallies(self, spans: Sequence[Span]) -> Mapping[Span, Tally]:
        """See ``Lake``."""
        within = self._between(spans[0].after, spans[-1].upto)
        self._side.make(self._prunable(spans[0].after, spans[-1].upto))
        query = f"select {self._order} as at, {self._side.checksum} as h from {ROWS} where {within}"
        found = self._connection.execute(
            f"select coalesce(b.number, 0), count(*), sum(h)::varchar from ({query}) r "
            f"asof left join ({self._begins(spans)}) b on r.at > b.begin group by 1"
        ).fetchall()
        return {spans[number]: Tally(rows=rows, sum=int(total)) for number, rows, total in found}

    def keep(self, rows: pa.Table) -> None:
        """See ``Lake``."""
        begin = f"insert into {_KEPT}" if self._is_kept else f"create or replace temp table {_KEPT} as"
        with self._side.registered(_BATCH, rows):
            self._connection.execute(f"{begin} select {self._names}, h from {_BATCH}")
        self._is_kept = True

    def differing(self, spans: Sequence[Span] | None) -> int:
        """See ``Lake``."""
        where = "true" if spans is None else " or ".join(f"({self._between(one.after, one.upto)})" for one in spans)
        lake = f"select {self._side.named_keys}, {self._side.checksum} as h, -1 as side from {ROWS} where {where}"
        both = f"select {self._names}, h, 1 as side from {_KEPT} union all {lake}" if self._is_kept else lake
        self._side.make(None if spans is None else self._prunable(spans[0].after, spans[-1].upto))
        self._connection.execute(
            f"create or replace temp table {_DIFFERING} as select {self._names} from ({both}) group by all "
            "having sum(side) <> 0 or sum(side * h::hugeint) <> 0"
        )
        self._connection.execute(f"drop table if exists {_KEPT}")
        self._is_kept, self._next = False, 0
        [(count,)] = self._connection.execute(f"select count(*) from {_DIFFERING}").fetchall()
        return int(count)

    def next_keys(self, count: int) -> Sequence[Key]:
        """See ``Lake``."""
        query = f"select {self._names} from {_DIFFERING} limit {count} offset {self._next}"
        found = self._connection.execute(query).fetchall()
        self._next += len(found)
        return [tuple(row) for row in found]

    def states(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[int]]:
        """See ``Lake``."""
        return self._side.checksums_of(keys)

    def rows(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        """See ``Lake``."""
        return self._side.rows(keys)

    # -- SQL -----------------------------------------------------------------------------------------------------------

    def _begins(self, spans: Sequence[Span]) -> str:
        """A query of where each span but the first begins, with its number."""
        rows = [
            f"select {number}::bigint as number, {self._order_of(span.after)} as begin"
            for number, span in enumerate(spans)
            if number and span.after is not None
        ]
        return " union all ".join(rows) or f"select 0::bigint as number, {self._order} as begin from {ROWS} limit 0"

    def _between(self, after: Key | None, upto: Key | None) -> str:
        """A condition that is true for the keys of a span."""
        conditions = [] if (first := self._on_first(after, upto)) is None else [first]
        if after is not None:
            conditions.append(f"{self._order} > {self._order_of(after)}")
        if upto is not None:
            conditions.append(f"{self._order} <= {self._order_of(upto)}")
        return " and ".join(conditions) or "true"

    def _order_of(self, key: Key) -> str:
        values = zip(self._shape.of_keys, key, strict=True)
        return _ordered([put(one.order_of_text, literal(text)) for one, text in values])

    def _on_first(self, after: Key | None, upto: Key | None) -> str | None:
        """What a span says of the first key with constants, so that files and groups of rows can be left out."""
        first, name = self._shape.of_keys[0], quote(self._shape.keys[0].name)
        if not first.is_literal:
            return None
        conditions = [
            f"{name} {sign} {key[0] if first.is_number else literal(key[0])}"
            for sign, key in ((">=", after), ("<=", upto))
            if key is not None
        ]
        return " and ".join(conditions) or None

    def _prunable(self, after: Key | None, upto: Key | None) -> Expression | None:
        condition = self._on_first(after, upto)
        return None if condition is None else expression(condition, "the keys of a span")


def _ordered(values: Sequence[str]) -> str:
    """One value that is ordered as several are, one after the other."""
    return values[0] if len(values) == 1 else f"row({', '.join(values)})"


def _columns(snapshot: Snapshot, shape: Shape) -> dict[str, tuple[str, pa.DataType]]:
    """The stored name and the type of each column that is compared and that the table has."""
    compared = {one.name for one in shape.columns}
    both = zip(snapshot.schema.names, snapshot.logical_schema, strict=True)
    return {field.name: (stored, field.type) for stored, field in both if field.name in compared}
