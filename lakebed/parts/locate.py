"""Finding the rows of keys in base parts: by the key index where there is one, else by reading key columns.

Both ways give the same rows: a table of ``probe`` (row of the keys asked for), ``part`` (its path), ``row`` (position),
and for a table with ``sequence_by`` the sequence and the operation of what was found. Dead rows are among them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.manifest.actions import Part
from lakebed.parts.changes import OP_COLUMN, SEQUENCE_COLUMN, UPSERT, TableShape, literal, quote
from lakebed.parts.engine import connect
from lakebed.parts.key_index import KeyIndex
from lakebed.parts.positions import find_positions
from lakebed.parts.prune import may_contain
from lakebed.parts.storage import PartStorage


class KeyLocator(Protocol):
    """Finds every physical row of some keys in the base."""

    def lookup(self, base: Mapping[str, Part], keys: pa.Table) -> pa.Table: ...

    def learn(self, path: str, rows: pa.Table) -> None:
        """The keys (and payload) of a part that joined the base, in file order: nothing to read again."""
        ...


def payload_columns(shape: TableShape) -> tuple[str, ...]:
    """What a lookup returns beside positions: what decides who is newer."""
    sequence = shape.sequence_column
    return () if sequence is None else (sequence, OP_COLUMN)


class IndexLocator:
    """Looks keys up in an index on local disk that follows the base."""

    def __init__(self, index: KeyIndex, shape: TableShape, storage: PartStorage) -> None:
        self._index = index
        self._shape = shape
        self._storage = storage
        self._base: Mapping[str, Part] = {}

    def lookup(self, base: Mapping[str, Part], keys: pa.Table) -> pa.Table:
        if self._index.parts != base.keys():
            self._index.sync(base.keys(), lambda path: read_keys(base[path], self._shape, self._storage))
        return self._index.lookup(keys)

    def learn(self, path: str, rows: pa.Table) -> None:
        if path not in self._index.parts:
            self._index.add(path, rows)

    def close(self) -> None:
        self._index.close()


class ScanLocator:
    """Reads the key columns of the parts that may hold the keys."""

    def __init__(self, shape: TableShape, storage: PartStorage) -> None:
        self._shape = shape
        self._storage = storage

    def lookup(self, base: Mapping[str, Part], keys: pa.Table) -> pa.Table:
        bounds = {name: pc.min_max(keys[name]).as_py() for name in self._shape.keys} if len(keys) else {}
        near = [part for part in base.values() if may_contain(part, bounds, self._shape.schema)]
        payload = payload_columns(self._shape)
        found: list[pa.Table] = []
        connection = connect()
        self._storage.attach(connection)
        for has_op, has_sequence, parts in _alike(near, self._shape):
            urls = {self._storage.duckdb_url(part.path): part.path for part in parts}
            stored = [name for name in payload if (name == OP_COLUMN and has_op) or (name != OP_COLUMN and has_sequence)]
            rows = find_positions(connection, list(urls), keys, self._shape.keys, stored)
            paths = pa.array([urls[url] for url in rows["file"].to_pylist()], pa.string())
            columns = {"probe": rows["probe"], "part": paths, "row": rows["row"]}
            for name in payload:
                columns[name] = rows[name] if name in stored else _absent(name, len(rows))
            found.append(pa.table(columns))
        if not found:
            return pa.table({"probe": pa.array([], pa.int64()), "part": pa.array([], pa.string()), "row": pa.array([], pa.int64())})
        return pa.concat_tables(found, promote_options="permissive")

    def learn(self, path: str, rows: pa.Table) -> None:
        """Nothing is kept, so there is nothing to learn."""


def read_keys(part: Part, shape: TableShape, storage: PartStorage) -> Iterator[pa.RecordBatch]:
    """The keys (and payload) of a part's rows, in file order."""
    connection = connect()
    storage.attach(connection)
    has_sequence = _has_sequence(part, shape)
    names = [quote(name) for name in shape.keys]
    for name in payload_columns(shape):
        stored = (name == OP_COLUMN and part.has_op_column) or (name != OP_COLUMN and has_sequence)
        default = literal(UPSERT) if name == OP_COLUMN else "null::bigint"
        names.append(quote(name) if stored else f"{default} as {quote(name)}")
    url = literal(storage.duckdb_url(part.path))
    partition = [name for name in shape.keys if name in part.partition_values and not part.path.startswith("_lakebed/")]
    if partition:  # foreign files leave partition columns out
        names = [_constant(n, part, shape) if n in partition else quote(n) for n in shape.keys] + names[len(shape.keys) :]
    yield from connection.sql(f"select {', '.join(names)} from read_parquet({url})").to_arrow_reader(262_144)


def _constant(name: str, part: Part, shape: TableShape) -> str:
    value = part.partition_values[name]
    text = "null" if value is None else literal(value)
    return f"cast({text} as {_sql_type(shape.schema.field(name).type)}) as {quote(name)}"


def _sql_type(kind: pa.DataType) -> str:
    empty = pa.table({"a": pa.nulls(0, kind)})
    return str(duckdb.from_arrow(empty).types[0])


def _alike(parts: Sequence[Part], shape: TableShape) -> Iterator[tuple[bool, bool, list[Part]]]:
    """The parts by which hidden columns their files have."""
    groups: dict[tuple[bool, bool], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.has_op_column, _has_sequence(part, shape)), []).append(part)
    for (has_op, has_sequence), members in groups.items():
        yield has_op, has_sequence, members


def _has_sequence(part: Part, shape: TableShape) -> bool:
    # A hidden sequence is in every part that lakebed wrote; a table's own column is in every part.
    return shape.sequence_column != SEQUENCE_COLUMN or part.has_op_column or part.path.startswith("_lakebed/")


def _absent(name: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(UPSERT), count) if name == OP_COLUMN else pa.nulls(count)


def index_parts(base: Collection[Part]) -> int:
    """Rows that an index of these parts would hold."""
    return sum(part.rows for part in base)
