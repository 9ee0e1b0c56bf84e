"""Writing parts: sorted Parquet files with their statistics, by DuckDB.

1. The rows are cut by partition: a part belongs to one.
2. Each piece is sorted by the sort key (else the keys), nulls first, and written under a new uuid name; nothing is ever
   written twice under one name, so a failed attempt leaves an orphan and never a wrong row.
3. Statistics come back from the writer itself: no second pass over the file.
"""

from __future__ import annotations

import datetime
import decimal
import math
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.manifest.actions import ChangePart, Part
from lakebed.parts.changes import DELETE, OP_COLUMN, UNAVAILABLE_COLUMN, TableShape
from lakebed.parts.sql import literal, quote, registered
from lakebed.parts.storage import PartStorage

ROW_GROUP_ROWS = 40_960
PART_ROWS_MAX = 1_000_000
_STRING_BOUND_CHARACTERS = 32
_HIGHEST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A file that no commit names yet."""

    path: str
    rows: int
    bytes: int
    deletes: int
    incomplete: int
    partition_values: Mapping[str, str | None]
    stats: str
    modified_ms: int

    def change_part(self, ordinal: int, sort_key_version: int | None = None) -> ChangePart:
        """The file as a part of the tail; its version is set by the commit."""
        return ChangePart(
            path=self.path, version=-1, ordinal=ordinal, rows=self.rows, bytes=self.bytes, deletes=self.deletes,
            incomplete=self.incomplete, sort_key_version=sort_key_version, partition_values=self.partition_values,
            stats=self.stats, modified_ms=self.modified_ms,
        )  # fmt: skip

    def base_part(self, has_op_column: bool, sort_key_version: int | None = None) -> Part:
        """The file as a level-0 part of the base; its block range is set by the commit."""
        return Part(
            path=self.path, rows=self.rows, bytes=self.bytes, level=0, min_block=-1, max_block=-1,
            sort_key_version=sort_key_version, has_op_column=has_op_column, partition_values=self.partition_values,
            stats=self.stats, modified_ms=self.modified_ms,
        )  # fmt: skip

    def to_json(self) -> str:
        return orjson.dumps({name: getattr(self, name) for name in self.__slots__}).decode()

    @classmethod
    def from_json(cls, text: str) -> WrittenPart:
        return cls(**orjson.loads(text))


def write_parts(
    rows: pa.Table, shape: TableShape, storage: PartStorage, connection: duckdb.DuckDBPyConnection
) -> Iterator[WrittenPart]:
    """Write the rows as parts, one a partition value, none above ``PART_ROWS_MAX`` rows. Empty input: no part."""
    if UNAVAILABLE_COLUMN in rows.column_names and not any(rows[UNAVAILABLE_COLUMN].to_pylist()):
        rows = rows.drop_columns([UNAVAILABLE_COLUMN])
    for values, piece in _by_partition(rows, shape):
        for start in range(0, len(piece), PART_ROWS_MAX):
            yield _write_one(piece.slice(start, PART_ROWS_MAX), values, shape, storage, connection)


def _write_one(
    rows: pa.Table,
    values: Mapping[str, str | None],
    shape: TableShape,
    storage: PartStorage,
    connection: duckdb.DuckDBPyConnection,
) -> WrittenPart:
    order = f"order by {ordering(shape)}" if shape.order_by else ""
    with registered(connection, "lakebed_rows", _without_offsets(rows)):
        path, count, size, stats = _write_query(f"select * from lakebed_rows {order}", shape, storage, connection)
    deletes = pc.sum(pc.equal(rows[OP_COLUMN], DELETE)).as_py() if OP_COLUMN in rows.column_names else 0
    incomplete = 0
    if UNAVAILABLE_COLUMN in rows.column_names:
        incomplete = sum(bool(names) for names in rows[UNAVAILABLE_COLUMN].to_pylist())
    return WrittenPart(path, count, size, deletes or 0, incomplete, dict(values), stats, int(time.time() * 1000))


def ordering(shape: TableShape) -> str:
    """What follows ``order by`` so that rows are in the order of a part."""
    return ", ".join(f"{quote(name)} asc nulls first" for name in shape.order_by)


def _write_query(
    query: str, shape: TableShape, storage: PartStorage, connection: duckdb.DuckDBPyConnection
) -> tuple[str, int, int, str]:
    """Write the rows of a query as one part, in their order. Returns its path, rows, bytes and Delta statistics."""

    def copy(local_path: str) -> Any:
        return connection.execute(
            f"copy ({query}) to {literal(local_path)} "
            f"(format parquet, compression zstd, row_group_size {ROW_GROUP_ROWS}, return_stats)"
        ).fetchall()[0]

    path = f"_lakebed/{uuid.uuid4()}.parquet"
    _, rows, size, _, column_stats, *_ = storage.write_file(path, copy)
    return path, rows, size, delta_stats(rows, column_stats, shape.schema)


def _without_offsets(rows: pa.Table) -> pa.Table:
    """The same rows; those structs within structs that DuckDB refuses to read from a slice are copied."""
    for index, field in enumerate(rows.schema):
        if _has_struct_in_struct(field.type):
            rows = rows.set_column(index, field, rows.column(index).take(pa.array(np.arange(len(rows)))))
    return rows


def _has_struct_in_struct(kind: pa.DataType, within: bool = False) -> bool:
    if pa.types.is_struct(kind):
        return within or any(_has_struct_in_struct(child.type, True) for child in kind)
    if pa.types.is_map(kind):
        return _has_struct_in_struct(kind.key_type, within) or _has_struct_in_struct(kind.item_type, within)
    return pa.types.is_list(kind) and _has_struct_in_struct(kind.value_type, within)


def _by_partition(rows: pa.Table, shape: TableShape) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    if not len(rows):
        return
    if not shape.partition_by:
        yield {}, rows
        return
    names = list(shape.partition_by)
    numbered = rows.select(names).append_column("_lakebed_row", pa.array(np.arange(len(rows))))
    groups = numbered.group_by(names, use_threads=False).aggregate([("_lakebed_row", "list")])
    for group, places in zip(groups.select(names).to_pylist(), groups["_lakebed_row_list"], strict=True):
        yield {name: partition_text(value) for name, value in group.items()}, rows.take(places.values)


def partition_text(value: Any) -> str | None:
    """A partition value as it stands in the log (Delta PROTOCOL.md, "Partition Value Serialization")."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
            return str(value.isoformat(timespec="microseconds")) + "Z"
        return str(value.isoformat(" ", timespec="microseconds"))  # strftime would write the year 1 in one digit
    if isinstance(value, bytes):
        return str(value, "latin-1")
    return str(value)


def delta_stats(rows: int, column_stats: Mapping[str, Mapping[str, str]], schema: pa.Schema) -> str:
    """Delta's statistics JSON from what DuckDB's COPY returns, for the top-level columns."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in schema:
        found = column_stats.get(quote(field.name))
        if found is None or pa.types.is_struct(field.type):  # of a struct, Delta counts the nulls of its leaves
            continue
        if "null_count" in found:
            nulls[field.name] = int(found["null_count"])
        if "min" in found and "max" in found and found.get("has_nan") != "true":
            bounds = _bound(found["min"], field.type, False), _bound(found["max"], field.type, True)
            if bounds[0] is not None and bounds[1] is not None:
                low[field.name], high[field.name] = bounds
    return orjson.dumps({"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": nulls}).decode()


def _bound(text: str, kind: pa.DataType, is_max: bool) -> Any:
    """A bound that holds for every value: strings cut (a maximum raised), timestamps to the millisecond outward."""
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_floating(kind):
        number = float(text)
        return number if math.isfinite(number) else None
    if pa.types.is_decimal(kind):
        return orjson.Fragment(format(decimal.Decimal(text), "f"))
    if pa.types.is_date(kind):
        return text if len(text) == 10 else None
    if pa.types.is_string(kind):
        return _string_bound(text, is_max)
    if pa.types.is_timestamp(kind):
        return _timestamp_bound(text, kind, is_max)
    return None


def _string_bound(text: str, is_max: bool) -> str:
    """A maximum is cut where the character that goes is not the highest one, so that the highest one is above it."""
    cut = _STRING_BOUND_CHARACTERS
    while is_max and text[cut : cut + 1] == _HIGHEST_CHARACTER:
        cut += 1
    if len(text) <= cut:
        return text
    return text[:cut] + _HIGHEST_CHARACTER if is_max else text[:cut]


def _timestamp_bound(text: str, kind: pa.DataType, is_max: bool) -> str | None:
    try:
        moment = datetime.datetime.fromisoformat(text + ":00" if text[-3:-2] in "+-" else text)
    except ValueError:  # beyond the years that Python knows
        return None
    if moment.tzinfo:
        moment = moment.astimezone(datetime.timezone.utc)
    if moment.microsecond % 1000:
        moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
        if is_max:
            try:
                moment += datetime.timedelta(milliseconds=1)
            except OverflowError:  # the last millisecond of the year 9999 has none after it
                return None
    out = moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return out + "Z" if kind.tz else out
