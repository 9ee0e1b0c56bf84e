"""A table of the lake as one side of a comparison: its newest committed rows, tail included, read by DuckDB.

The rows of the source that are compared one by one are kept in a temporary table, which spills to disk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.func import PythonUDFType

from lakebed.errors import Retry
from lakebed.log.snapshot import Snapshot
from lakebed.parts.intact import require_intact_reads
from lakebed.parts.part_filter import parts_that_may_match
from lakebed.quoting import literal, quote
from lakebed.sql import Expression, expression
from lakebed.storage.engine import connect_alone, naming_unreadable
from lakebed.table.internals import Internals
from lakebed.verify.canonical import DUCKDB, Shape, key_texts, put, row_checksum, texts
from lakebed.verify.comparing import Key, Row, Span, Tally
from lakebed.verify.source import by_key
from lakebed.verify.types_of_mariadb import TEXT_OF_DOUBLE, text_of_double
from lakebed.verify.types_of_postgres import BITS_OF_BYTES, BITS_OF_DOUBLE, BITS_OF_FLOAT, PAIRS_OF_JSON
from lakebed.view.arrow_scan import register_view

# -- Rows that DuckDB reads: of a table of lakebed or of Delta, or of files of Parquet -------------------------------------
#
# A key is never looked up through an index: one that is there twice must show.


ROWS = "lakebed_rows"
"""What the rows are called in queries."""
_WANTED, _GIVEN = "lakebed_wanted", "lakebed_given"


class Relation(Protocol):
    """Rows under a name."""

    def make(self, connection: duckdb.DuckDBPyConnection, where: Expression | None, is_joined: bool) -> None:
        """Make ``ROWS`` a view of the rows, without those of files in which ``where`` is true for none.

        ``is_joined``: they will be joined with few others.
        """
        ...


class TableRelation:
    """The committed rows of one version of a table, tail included. ``snapshot``: the version, once it is known."""

    def __init__(self, internals: Internals, snapshot: Snapshot | None = None) -> None:
        self._internals = internals
        self.snapshot = snapshot

    def make(self, connection: duckdb.DuckDBPyConnection, where: Expression | None, is_joined: bool) -> None:
        """See ``Relation``. Raises Corrupt."""
        snapshot = self.snapshot
        assert snapshot is not None, "no version was reached"
        storage, mapping = self._internals.storage, snapshot.columns
        storage.attach(connection)
        pinned = self._internals.view.pin(snapshot, on_this_host=False)
        files = parts_that_may_match(connection, pinned.files, mapping.stored, where, None, mapping)
        with naming_unreadable([each.path for each in files]):
            require_intact_reads(files, storage, snapshot.settings.verify_reads)
            register_view(
                connection,
                ROWS,
                storage,
                files,
                mapping.stored,
                completed=pinned.completed,
                is_joined=is_joined,
                mapping=mapping,
            )


class DuckRows:
    """One side of a comparison. Close it when done."""

    def __init__(self, relation: Relation, shape: Shape, *, of_source: bool) -> None:
        """``of_source``: whether the rows are those of the source, and columns have its names and expressions."""
        self._relation = relation
        self._shape = shape
        self._of_source = of_source
        self.connection = connect_alone()
        _add_functions(self.connection)
        self.keys = key_texts(shape, DUCKDB, of_source=of_source)
        self.checksum = row_checksum(shape, DUCKDB, texts(shape, DUCKDB, of_source=of_source))
        self.names = [f"k{at}" for at in range(len(shape.keys))]
        self.named_keys = ", ".join(f"{text} as {name}" for text, name in zip(self.keys, self.names, strict=True))

    def close(self) -> None:
        """Let go of DuckDB, and of what was kept in it."""
        self.connection.close()

    def make(self, where: Expression | None = None, *, is_joined: bool = False) -> None:
        """See ``Relation``."""
        self._relation.make(self.connection, where, is_joined)

    def checksums_of(self, keys: Sequence[Key]) -> dict[Key, list[int]]:
        """The checksums of the rows of some keys."""
        found = by_key(self._wanted(keys, [self.checksum]), len(self.names))
        return {key: [checksum for [checksum] in rows] for key, rows in found.items()}

    def rows(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        """The values' texts of the rows of some keys."""
        return by_key(self._wanted(keys, texts(self._shape, DUCKDB, of_source=self._of_source)), len(self.names))

    def _wanted(self, keys: Sequence[Key], outputs: Sequence[str]) -> list[tuple[Any, ...]]:
        """The canonical keys and these outputs of the rows of some keys."""
        given = {name: pa.array(column) for name, column in zip(self.names, zip(*keys, strict=True), strict=True)}
        columns = [quote(key.source_name if self._of_source else key.name) for key in self._shape.keys]
        values = ", ".join(
            f"{put(one.lake, text)} as {column}"
            for one, text, column in zip(self._shape.of_keys, self.names, columns, strict=True)
        )
        with self.registered(_GIVEN, pa.table(given)):
            self.connection.execute(f"create or replace temp table {_WANTED} as select distinct {values} from {_GIVEN}")
        self.make(is_joined=True)
        selected = ", ".join([*self.keys, *outputs])
        query = f"select {selected} from {ROWS} semi join {_WANTED} using ({', '.join(columns)})"
        return self.connection.execute(query).fetchall()

    @contextmanager
    def registered(self, name: str, rows: pa.Table) -> Iterator[None]:
        """In the block queries find the rows by the name."""
        self.connection.register(name, rows)
        try:
            yield
        finally:
            self.connection.unregister(name)


# -- Functions for types of which DuckDB has no texts ------------------------------------------------------------------------


def _add_functions(connection: duckdb.DuckDBPyConnection) -> None:
    """Add the functions that rules use."""
    for name, function, given, gives in (
        (BITS_OF_DOUBLE, _bits(pa.int64()), "double", "bigint"),
        (BITS_OF_FLOAT, _bits(pa.int32()), "float", "integer"),
        (BITS_OF_BYTES, _each(bits_of_bytes), "blob", "varchar"),
        (TEXT_OF_DOUBLE, _each(text_of_double), "double", "varchar"),
        (PAIRS_OF_JSON, _each(pairs_of_json), "varchar", "varchar"),
    ):
        connection.create_function(name, function, [given], gives, type=PythonUDFType.ARROW)


def _bits(kind: pa.DataType) -> Callable[[pa.ChunkedArray], pa.ChunkedArray]:
    """Every NaN is the same one. DuckDB's ``isnan`` is not asked: it believes statistics of files, which leave NaN out."""

    def bits(chunk: pa.Array) -> pa.Array:
        return pc.if_else(pc.is_nan(chunk), pa.scalar(math.nan, chunk.type), chunk).view(kind)

    return lambda values: pa.chunked_array([bits(chunk) for chunk in _chunks(values)], kind)


def _each(function: Callable[[object], str]) -> Callable[[pa.ChunkedArray], pa.ChunkedArray]:
    def of(values: pa.ChunkedArray) -> pa.ChunkedArray:
        found = [
            pa.array([None if one is None else function(one) for one in chunk.to_pylist()], pa.string())
            for chunk in _chunks(values)
        ]
        return pa.chunked_array(found, pa.string())

    return of


def _chunks(values: pa.ChunkedArray | pa.Array) -> list[pa.Array]:
    return values.chunks if isinstance(values, pa.ChunkedArray) else [values]


def bits_of_bytes(value: object) -> str:
    """The digits of a bit string without leading zeros; Debezium sends its bytes, the lowest first."""
    number = int.from_bytes(bytes(value), "little")  # type: ignore[call-overload]
    return f"{number:b}" if number else ""


def pairs_of_json(value: object) -> str:
    """The pairs of an object of texts, each with its lengths in bytes, in the order of the names' bytes."""
    try:
        members = json.loads(str(value))
        pairs = sorted(members.items(), key=lambda pair: pair[0].encode())
        return "".join(f"{_counted(name)}{'-' if one is None else _counted(str(one))}" for name, one in pairs)
    except (ValueError, AttributeError):
        return f"no object: {value}"


def _counted(text: str) -> str:
    return f"{len(text.encode())}:{text}"


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
