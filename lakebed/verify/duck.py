"""Rows that DuckDB reads, as one side of a comparison: of a table of lakebed or of Delta, or of files of Parquet.

A key is never looked up through an index: one that is there twice must show.
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

from lakebed.log.snapshot import Snapshot
from lakebed.parts.intact import require_intact_reads
from lakebed.parts.part_filter import parts_that_may_match
from lakebed.quoting import quote
from lakebed.sql import Expression
from lakebed.storage.engine import connect_alone
from lakebed.storage.file_errors import naming_unreadable
from lakebed.table.internals import Internals
from lakebed.verify.canonical import DUCKDB, Shape, key_texts, put, row_checksum, texts
from lakebed.verify.comparing import Key, Row
from lakebed.verify.source import by_key
from lakebed.verify.types_of_mariadb import TEXT_OF_DOUBLE, text_of_double
from lakebed.verify.types_of_postgres import BITS_OF_BYTES, BITS_OF_DOUBLE, BITS_OF_FLOAT, PAIRS_OF_JSON
from lakebed.view.arrow_scan import register_view

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
