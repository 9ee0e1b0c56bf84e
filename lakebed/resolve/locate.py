"""Finds the rows of keys in base parts: by the key index where there is one, else by reading key columns.

Both ways return the same rows, as a table: ``probe`` (the row of the key in the table of keys), ``part`` (its path), ``row`` (its
position). For a table with ``sequence_by`` it also has what decides which change is newer, the sequence and the operation of each
row found, under the names of the hidden columns. Dead rows are among the rows.

*Without an index* (``find_positions``). The key columns of parts are read. That serves single look-ups in parts of other writers,
and large settles, where every task takes a group of parts. Its result is that of ``KeyIndex.lookup`` for the same parts, but for
the order of the rows. SQL's equality holds (NaN = NaN, -0.0 = 0.0).

1. DuckDB joins the scan of the parts with the keys; the keys are the hash table. It derives a filter of their least and
   greatest values, which prunes row groups. (A condition of our own made it no faster.) A column that a file lacks is null, so
   a file without a key column has none of the keys.
2. Only key columns, payload columns and positions are decoded. The memory is that of the keys and of the rows found, bounded
   by the connection's limit: the join spills.

*While an index is built again* (``IndexRebuild``), because the type of a key changed so that its words are others, a thread of
its own builds it.

1. Look-ups meanwhile read the parts. They are as right as ever, and slower.
2. The thread reads the base in pieces of some million rows, and reports each (``events.KeyIndexRebuilt``). Between two pieces the
   index is free, and what it has stays on disk: a process that starts again goes on from there.
3. When it ends, the next look-up adds what joined the base since. A part that is gone by the time it is read ends the thread; the
   next look-up starts it again with the base of that time.

A small base is not worth a thread: its index is built by the look-up that needs it, as for a new table.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import compress
from typing import Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed import events
from lakebed.errors import InvalidInput, LakebedError
from lakebed.failures import Outage
from lakebed.keyindex.key_index import KeyIndex
from lakebed.log.actions import ChangePart, Part
from lakebed.parts.arrow_source import is_local, read_columns
from lakebed.parts.changes import FEW_ROWS_MAX, OP_COLUMN, SEQUENCE_COLUMN, UPSERT, WriteSpec
from lakebed.parts.intact import require_intact, require_intact_keys
from lakebed.parts.part_filter import parts_that_may_overlap
from lakebed.quoting import literal
from lakebed.schema.widening import widest_type
from lakebed.sql import aliases, by_place, parquet_to_join, registered, scan_of, sql_type
from lakebed.storage.engine import connect, cursor_of
from lakebed.storage.part_storage import PartStorage


def find_positions(
    connection: duckdb.DuckDBPyConnection,
    urls: Sequence[str],
    keys: pa.Table,
    key_columns: Sequence[str],
    payload: Mapping[str, tuple[str, pa.DataType]] | None = None,
    *,
    some_may_lack: bool = False,
) -> pa.Table:
    """Every row of each key in `urls`: `probe` int64 (row of `keys`), `file` (dictionary of `urls`), `row` int64, payload.

    `payload`: for each further column of the result its name in the files and its type; one that a file lacks is null.
    `some_may_lack`: a file may lack a key column too; it has no rows of the keys then.
    Keys are read in the types of `keys`. Raises InvalidInput for a null key or a missing column.
    """
    payload = payload or {}
    missing = [name for name in key_columns if keys.schema.get_field_index(name) < 0]
    if missing:
        raise InvalidInput(f"key column {missing[0]!r} is missing from the keys, which have {keys.schema.names}")
    for name in key_columns:
        if keys.column(name).null_count:
            raise InvalidInput(f"key column {name!r} holds {keys.column(name).null_count} nulls; keys must be NOT NULL")
    if not urls or not keys.num_rows:
        return _nothing(payload)
    kinds = {name: keys.schema.field(name).type for name in key_columns} | dict(payload.values())
    alias = aliases(kinds)
    columns = {name: (alias[name], sql_type(kind)) for name, kind in kinds.items()}
    source = parquet_to_join(connection, urls, columns, some_may_lack=some_may_lack or bool(payload))
    probes = by_place(keys, key_columns).append_column("probe", pa.array(np.arange(keys.num_rows)))
    same = " and ".join(f"s.c{at} = p.c{at}" for at in range(len(key_columns)))
    outputs = ["p.probe", "s.file_index::integer as file", "s.file_row_number as row"]
    outputs += [f"s.{alias[stored]} as {name}" for name, (stored, _) in payload.items()]
    query = f"select {', '.join(outputs)} from {source} s join lakebed_probes p on {same}"
    with cursor_of(connection) as cursor, registered(cursor, "lakebed_probes", probes):
        found = cursor.sql(query).to_arrow_table()
    return found.set_column(1, "file", _as_dictionary(found["file"], urls))


def _as_dictionary(files: pa.ChunkedArray, urls: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(files.combine_chunks(), pa.array(urls, pa.string()))


def _nothing(payload: Mapping[str, tuple[str, pa.DataType]]) -> pa.Table:
    columns = [pa.array([], pa.int64()), _as_dictionary(pa.chunked_array([], pa.int32()), []), pa.array([], pa.int64())]
    columns += [pa.nulls(0, kind) for _, kind in payload.values()]
    return pa.table(columns, names=["probe", "file", "row", *payload])


AT_ONCE_ROWS = 500_000
PIECE_ROWS = 4_000_000
_logger = logging.getLogger("lakebed.keyindex")

_ReadKeys = Callable[[Part], Iterator[pa.RecordBatch]]


class IndexRebuild:
    """The building of one index. Safe to use from several threads."""

    def __init__(self, index: KeyIndex, table: str) -> None:
        """``table``: its root, for events."""
        self._index = index
        self._table = table
        self._outage = Outage(f"building the key index of {table}", _logger)
        self._lock = threading.Lock()  # guards _thread
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._done = False

    def covers(self, base: Mapping[str, Part], read_keys: _ReadKeys) -> bool:
        """Whether the index can be asked about ``base`` now. If not, it is being built, and ``read_keys`` reads a part for it."""
        if self._done or self._index.abandoned:
            return True
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return False
            if sum(max(part.rows, 0) for path, part in base.items() if path not in self._index.parts) <= AT_ONCE_ROWS:
                self._done = True
                return True
            self._thread = threading.Thread(
                target=self._build, args=(dict(base), read_keys), name="lakebed-key-index", daemon=True
            )
            self._thread.start()
        return False

    @property
    def is_running(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_alive()

    def stop(self) -> None:
        """End the thread after the batch that it reads, and wait for it."""
        self._stopped = True
        thread = self._thread
        if thread is not None:
            thread.join()

    def _build(self, base: Mapping[str, Part], read_keys: _ReadKeys) -> None:
        started = time.perf_counter()
        self._report(base, started)

        def read(path: str) -> Iterator[pa.RecordBatch]:
            for batch in read_keys(base[path]):
                if self._stopped:
                    raise _Stopped
                yield batch

        try:
            for piece in _pieces([part for path, part in base.items() if path not in self._index.parts]):
                if self._index.sync(self._index.parts | piece, read) is None:
                    return
                self._report(base, started)
            self._done = True
            self._outage.works()
        except _Stopped:
            pass
        except (LakebedError, duckdb.Error) as error:
            self._outage.failed(error)

    def _report(self, base: Mapping[str, Part], started: float) -> None:
        have = self._index.parts
        events.emit(
            events.KeyIndexRebuilt(
                table=self._table,
                parts=len(base),
                parts_left=sum(path not in have for path in base),
                rows=sum(part.rows for part in base.values()),
                rows_left=sum(part.rows for path, part in base.items() if path not in have),
                seconds=time.perf_counter() - started,
            )
        )


class _Stopped(Exception):
    """The process closes the index."""


def _pieces(parts: list[Part]) -> Iterator[frozenset[str]]:
    piece: set[str] = set()
    rows = 0
    for part in parts:
        piece.add(part.path)
        rows += max(part.rows, 0)
        if rows >= PIECE_ROWS:
            yield frozenset(piece)
            piece, rows = set(), 0
    if piece:
        yield frozenset(piece)


_BATCH_ROWS = 262_144


class KeyLocator(Protocol):
    """Finds every physical row of some keys in the base."""

    def lookup(self, base: Mapping[str, Part], keys: pa.Table) -> pa.Table: ...

    def learn(self, path: str, rows: pa.Table) -> None:
        """The keys (and payload) of a part that joined the base, in file order: nothing to read again."""
        ...


class ReadLocator(KeyLocator, Protocol):
    """A locator that can also tell what it knows without reading a part."""

    def known(self, keys: pa.Table) -> tuple[pa.Table, Collection[str]]:
        """The rows of the keys in the parts whose rows it has, and the paths of these parts. Does not wait."""
        ...


def payload_types(spec: WriteSpec) -> dict[str, pa.DataType]:
    """The columns that a lookup returns beside positions; the sequence in a type that it may still be widened to."""
    if spec.sequence_column is None:
        return {}
    hidden = spec.sequence_column == SEQUENCE_COLUMN
    kind = pa.int64() if hidden else widest_type(spec.schema.field(spec.sequence_column).type)
    return {SEQUENCE_COLUMN: kind, OP_COLUMN: pa.string()}


def columns_of_keys(spec: WriteSpec) -> list[str]:
    """The columns of a part's file that a look-up reads."""
    return [*spec.keys, *([] if spec.sequence_column is None else [spec.sequence_column, OP_COLUMN])]


def index_key_types(spec: WriteSpec) -> dict[str, pa.DataType]:
    """The types that a key index has the keys in, so that most widenings of a key change nothing in it."""
    return {name: widest_type(spec.schema.field(name).type) for name in spec.keys}


def lookup_schema(spec: WriteSpec) -> pa.Schema:
    """The columns of a lookup's result."""
    types = {
        "probe": pa.int64(),
        "part": pa.dictionary(pa.int32(), pa.string()),
        "row": pa.int64(),
        **payload_types(spec),
    }
    return pa.schema(list(types.items()))


class IndexLocator:
    """Looks keys up in an index on local disk that follows the base; without one (disk full), reads key columns.

    Settling and views of several versions may share one: each look-up sees the index as it was at its own base. One thread at a
    time brings the index to another base; look-ups at the base that it has do not wait for that.
    """

    def __init__(
        self, index: KeyIndex, spec: WriteSpec, storage: PartStorage, rebuild: IndexRebuild | None = None
    ) -> None:
        """``rebuild``: what builds the index, if it lacks what an earlier one had."""
        self._index = index
        self._spec = spec
        self._storage = storage
        self._rebuild = rebuild
        self._without = ScanLocator(spec, storage)

    def lookup(self, base: Mapping[str, Part], keys: pa.Table) -> pa.Table:
        state = self._index.at(base.keys())
        if state is None and self._rebuild is not None and not self._rebuild.covers(base, self._keys_of):
            return self._without.lookup(base, keys)
        if state is None:
            state = self._index.sync(base.keys(), lambda path: self._keys_of(base[path]))
        if state is None:
            return self._without.lookup(base, keys)
        return self._index.lookup(keys, state)

    def known(self, keys: pa.Table) -> tuple[pa.Table, Collection[str]]:
        state = self._index.state
        return self._index.lookup(keys, state), state.parts.keys()

    def learn(self, path: str, rows: pa.Table) -> None:
        if self._rebuild is not None and self._rebuild.is_running:
            return  # the index is busy; a later look-up reads the part
        if not self._index.abandoned and path not in self._index.parts:
            self._index.add(path, rows)

    def _keys_of(self, part: Part) -> Iterator[pa.RecordBatch]:
        return read_keys(part, self._spec, self._storage)


class ScanLocator:
    """Reads the key columns of the parts that may hold the keys."""

    def __init__(self, spec: WriteSpec, storage: PartStorage, *, verifies_objects: bool = True) -> None:
        """``verifies_objects``: compare the keys of objects of a store, too, with the checksums of their pages."""
        self._spec = spec
        self._storage = storage
        self._verifies_objects = verifies_objects

    def lookup(self, base: Mapping[str, Part], keys: pa.Table) -> pa.Table:
        wanted = keys.select(list(self._spec.keys))
        near = parts_that_may_overlap(connect(), list(base.values()), self._spec.schema, wanted)
        with_keys = [part.is_native or not self._foreign_keys(part) for part in near]
        found = [self._scan(list(compress(near, with_keys)), keys)]
        found += [self._read(part, keys) for part, stored in zip(near, with_keys, strict=True) if not stored]
        schema = lookup_schema(self._spec)
        return pa.concat_tables([table.select(schema.names).cast(schema) for table in found])

    def known(self, keys: pa.Table) -> tuple[pa.Table, Collection[str]]:
        return lookup_schema(self._spec).empty_table(), ()

    def learn(self, path: str, rows: pa.Table) -> None:
        """Does nothing: this locator keeps no keys."""

    def _foreign_keys(self, part: Part) -> bool:
        return any(name in part.partition_values for name in self._spec.keys)

    def _scan(self, parts: Sequence[Part], keys: pa.Table) -> pa.Table:
        connection = connect()
        self._storage.attach(connection)
        if self._verifies_objects:
            require_intact_keys(parts, self._storage, columns_of_keys(self._spec))
        else:
            require_intact(parts, self._storage)
        urls = [self._storage.duckdb_url(part.path) for part in parts]
        stored = {SEQUENCE_COLUMN: str(self._spec.sequence_column), OP_COLUMN: OP_COLUMN}
        payload = {name: (stored[name], kind) for name, kind in payload_types(self._spec).items()}
        rows = find_positions(connection, urls, keys, self._spec.keys, payload)
        files = rows["file"].combine_chunks().indices
        paths = pa.DictionaryArray.from_arrays(files, pa.array([part.path for part in parts], pa.string()))
        columns = {"probe": rows["probe"], "part": paths, "row": rows["row"]}
        for name in payload:
            columns[name] = pc.fill_null(rows[name], UPSERT) if name == OP_COLUMN else rows[name]
        return pa.table(columns)

    def _read(self, part: Part, keys: pa.Table) -> pa.Table:
        """A part of a foreign writer whose file lacks key columns, because the partition values hold them."""
        connection = connect()
        probes = by_place(keys, self._spec.keys).append_column("probe", pa.array(range(len(keys)), pa.int64()))
        read = pa.Table.from_batches(read_keys(part, self._spec, self._storage))
        stored = by_place(read, self._spec.keys).append_column("row", pa.array(range(len(read)), pa.int64()))
        for name in payload_types(self._spec):
            stored = stored.append_column(name, read[name])
        same = " and ".join(f"s.{key} = p.{key}" for key in aliases(self._spec.keys).values())
        payload = "".join(f", s.{name}" for name in payload_types(self._spec))
        with registered(connection, "lakebed_probes", probes), registered(connection, "lakebed_stored", stored):
            return connection.sql(
                f"select p.probe, {literal(part.path)} as part, s.row{payload} "
                f"from lakebed_stored s join lakebed_probes p on {same}"
            ).to_arrow_table()


def read_keys(part: Part | ChangePart, spec: WriteSpec, storage: PartStorage) -> Iterator[pa.RecordBatch]:
    """The keys (and payload) of a part's rows, in file order. Raises Corrupt if they are not what was written."""
    require_intact_keys([part], storage, columns_of_keys(spec))
    few = _read_few_keys(part, spec, storage) if 0 <= part.rows <= FEW_ROWS_MAX else None
    if few is not None:
        yield from few.to_batches()
        return
    connection = connect()
    storage.attach(connection)
    kinds = {name: sql_type(spec.schema.field(name).type) for name in spec.keys}
    payload = payload_types(spec)
    also = []
    if payload:
        sequence = str(spec.sequence_column)
        kinds |= {sequence: sql_type(payload[SEQUENCE_COLUMN]), OP_COLUMN: "VARCHAR"}
        alias = aliases(kinds)
        also = [
            f"{alias[sequence]} as {SEQUENCE_COLUMN}",
            f"coalesce({alias[OP_COLUMN]}, {literal(UPSERT)}) as {OP_COLUMN}",
        ]
    scan = scan_of([storage.duckdb_url(part.path)], kinds, part.partition_values)
    outputs = [*aliases(spec.keys).values(), *also]
    for batch in connection.sql(f"select {', '.join(outputs)} from ({scan})").to_arrow_reader(_BATCH_ROWS):
        yield batch.rename_columns([*spec.keys, *payload])


def _read_few_keys(part: Part | ChangePart, spec: WriteSpec, storage: PartStorage) -> pa.Table | None:
    """What ``read_keys`` yields, by Arrow, which costs less for few rows; None where only DuckDB can read it."""
    url, sequence = storage.duckdb_url(part.path), spec.sequence_column
    if not is_local(url) or part.partition_values:
        return None
    names = list(dict.fromkeys([*spec.keys, *([sequence] if sequence else [])]))
    wanted = [(name, spec.type_of(name)) for name in names]
    read = read_columns(part.path, url, pa.schema([*wanted, (OP_COLUMN, pa.string())]))
    if read is None:
        return None
    keys = read.select(list(spec.keys))
    if sequence is None:
        return keys
    operations = pc.fill_null(read[OP_COLUMN], UPSERT)
    return keys.append_column(SEQUENCE_COLUMN, read[sequence]).append_column(OP_COLUMN, operations)
