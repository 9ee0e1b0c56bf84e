"""Writes a part from Arrow tables whose rows are in their final order, by Arrow's own Parquet writer.

1. The tables follow each other in one file with a new uuid name. A row group ends at ``row_group_rows`` or with its table.
2. Columns in ``dictionary`` get dictionaries. For others none is tried, because that is expensive where it does not pay. Other
   whole numbers, dates and times are stored as differences (DELTA_BINARY_PACKED), which are smaller than what zstd alone makes
   of them. Spark, Delta's readers, DuckDB and Arrow read that. Byte stream split is not used, because Spark does not read it.
3. Pages hold at most ``_PAGE_ROWS`` rows and are listed in a page index, so that a selective query skips pages. A page has its
   checksum; the checksum of the whole file is in the log (``parts.intact``).
4. Columns in ``bloom_filters``, which are looked up by single values, get a Bloom filter a row group. Spark and DuckDB check
   it before they read the row group. Only whole numbers and texts have one, because all readers agree on which of their values
   are equal.
5. Statistics come from the footer. For floating point the footer has none: it would not cover NaN, which is above all other
   numbers for Spark, so Spark would skip it. What the log has for such columns is found while the tables are written.

It is faster than DuckDB's COPY, which copies all rows before it encodes them and writes no page index.
"""

from __future__ import annotations

import datetime
import os
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakebed.errors import LakebedError
from lakebed.parts.intact import checksum_of
from lakebed.quoting import quote
from lakebed.schema.column_mapping import StoredPath
from lakebed.sortkey.sort_key import SortTerm
from lakebed.storage.local_folders import trouble
from lakebed.storage.part_storage import PartStorage

PARTS_FOLDER = "_lakebed"
_PAGE_ROWS = 8192
_BUFFER_BYTES = 1 << 18
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_FIELD_ID = "PARQUET:field_id"
_FALSE_POSITIVES = 0.1  # of row groups that lack the value; one in a hundred would take twice the bytes
_INTEGER_DIGITS = 18  # decimals of so many are stored as whole numbers

_ColumnStats = dict[str, dict[str, Any]]
"""By quoted column: ``null_count``, and ``min``, ``max``, ``has_nan`` where they are known, as text."""


def write_tables(
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    dictionary: Sequence[str],
    row_group_rows: int,
    storage: PartStorage,
    *,
    bloom_filters: Mapping[str, int] | None = None,
    order: Sequence[SortTerm] = (),
    field_ids: Mapping[StoredPath, int] | None = None,
    names: str = "",
) -> tuple[str, int, int, int, _ColumnStats]:
    """Write tables of this schema as one part. Returns its path, rows, bytes, checksum and statistics.

    ``dictionary``: columns' paths, dotted. ``bloom_filters``: columns to find single values in, and about how many values a row
    group has; of other types than whole numbers and texts, or with a dictionary, they are ignored. Raises StoreUnavailable for
    a full disk. ``order``: the sort key of the rows; the footer records as much of it as Parquet allows. ``field_ids``: the
    numbers of the table's columns and of fields within them, which the file has too. ``names``: what the file's name begins with.
    """
    floats = {field.name: _FloatStats() for field in schema if pa.types.is_floating(field.type)}
    options = _options(schema, dictionary, bloom_filters or {}, order)
    numbered = pa.schema(_with_ids(schema, field_ids, ())) if field_ids else schema

    def write(local_path: str) -> tuple[int, int, int, _ColumnStats]:
        rows, footers = 0, list[pq.FileMetaData]()
        try:
            with (
                pa.OSFile(local_path, "wb") as file,
                pa.BufferedOutputStream(file, _BUFFER_BYTES) as buffered,  # else each header of a page is a system call
                pq.ParquetWriter(buffered, numbered, metadata_collector=footers, **options) as writer,
            ):
                for table in tables:
                    rows += len(table)
                    for name, found in floats.items():
                        found.see(table[name])
                    writer.write_table(table, row_group_rows)
            checksum = checksum_of(local_path)
        except (OSError, RuntimeError) as error:
            # A writer that could not write a group of rows has another error, without a footer, when it is closed.
            first = error if isinstance(error, OSError) else error.__context__
            if not isinstance(first, OSError):
                raise
            raise trouble(first.errno, f"{local_path!r} could not be written ({first})", local_path) from first
        stats = _column_stats(footers[0], schema)
        stats |= {quote(name): found.stats() for name, found in floats.items()}
        return rows, os.path.getsize(local_path), checksum, stats

    path = f"{PARTS_FOLDER}/{names}{uuid.uuid4()}.parquet"
    return path, *storage.write_file(path, write)


def delete_left(storage: PartStorage, names: str, returned: Collection[str]) -> None:
    """Delete the files whose names begin so that tasks wrote and did not return. What comes even later, the cleanup deletes."""
    with suppress(LakebedError):  # then the cleanup finds them
        for path, _, _ in list(storage.list(f"{PARTS_FOLDER}/{names}")):
            if path not in returned:
                storage.delete(path)


def _options(
    schema: pa.Schema, dictionary: Sequence[str], bloom_filters: Mapping[str, int], order: Sequence[SortTerm]
) -> dict[str, Any]:
    """The options of Arrow's writer."""
    as_differences = {
        field.name: "DELTA_BINARY_PACKED"
        for field in schema
        if _is_whole(field.type) and field.name not in dictionary and "." not in field.name
    }

    filters = {
        name: {"ndv": values, "fpp": _FALSE_POSITIVES}
        for name, values in bloom_filters.items()
        if name not in dictionary
        and "." not in name
        and (pa.types.is_integer(kind := schema.field(name).type) or pa.types.is_string(kind))
    }
    return {
        "compression": "zstd",
        "use_dictionary": list(dictionary),
        "column_encoding": as_differences,
        "max_rows_per_page": _PAGE_ROWS,
        "write_statistics": [path for field in schema for path in _paths_with_statistics(field)],
        "write_page_index": True,
        "write_page_checksum": True,
        "store_decimal_as_integer": True,
        "store_schema": False,
        "bloom_filter_options": filters or None,
        "sorting_columns": _sorting_columns(order, schema),
    }


def _with_ids(fields: Iterable[pa.Field], ids: Mapping[StoredPath, int], path: StoredPath) -> list[pa.Field]:
    """The fields with the numbers of those that have one, at any depth, as Arrow takes them for a file."""
    return [_field_with_id(field, ids, path) for field in fields]


def _field_with_id(field: pa.Field, ids: Mapping[StoredPath, int], path: StoredPath) -> pa.Field:
    here = (*path, field.name)
    number = {_FIELD_ID: str(ids[here])} if here in ids else None
    return pa.field(field.name, _type_with_ids(field.type, ids, here), field.nullable, number)


def _type_with_ids(kind: pa.DataType, ids: Mapping[StoredPath, int], path: StoredPath) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(_with_ids(kind, ids, path))
    if pa.types.is_map(kind):
        key, item = (
            _field_with_id(field.with_name(step), ids, path)
            for field, step in ((kind.key_field, "key"), (kind.item_field, "value"))
        )
        return pa.map_(key, item)
    if pa.types.is_list(kind):
        return pa.list_(_field_with_id(kind.value_field.with_name("element"), ids, path))
    return kind


def _sorting_columns(order: Sequence[SortTerm], schema: pa.Schema) -> list[pq.SortingColumn] | None:
    """The leading terms that are columns; none from the first of floating point on, where readers differ on NaN."""
    out = []
    for term in order:
        if not term.is_plain or pa.types.is_floating(term.type):
            break
        at = schema.get_field_index(term.columns[0])
        leaf = sum(_leaves(field.type) for field in list(schema)[:at])
        out.append(pq.SortingColumn(leaf, term.is_descending, not term.nulls_last))
    return out or None


class _FloatStats:
    """Statistics of a column of floating point, chunk by chunk."""

    def __init__(self) -> None:
        self._nulls = 0
        self._has_nan = False
        self._bounds: list[float] = []

    def see(self, values: pa.ChunkedArray) -> None:
        self._nulls += values.null_count
        self._has_nan = self._has_nan or bool(pc.any(pc.is_nan(values)).as_py())
        if values.null_count < len(values):
            self._bounds = [min([*self._bounds, pc.min(values).as_py()]), max([*self._bounds, pc.max(values).as_py()])]

    def stats(self) -> dict[str, Any]:
        if self._has_nan or not self._bounds:
            return {"null_count": self._nulls, "has_nan": str(self._has_nan).lower()}
        return {"null_count": self._nulls, "min": str(self._bounds[0]), "max": str(self._bounds[1])}


def _paths_with_statistics(field: pa.Field, prefix: str = "") -> list[str]:
    if pa.types.is_struct(field.type):
        return [path for child in field.type for path in _paths_with_statistics(child, f"{prefix}{field.name}.")]
    return [] if pa.types.is_nested(field.type) or pa.types.is_floating(field.type) else [prefix + field.name]


def _is_whole(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _INTEGER_DIGITS)
    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind)) and not pa.types.is_interval(kind)


def _column_stats(footer: pq.FileMetaData, schema: pa.Schema) -> _ColumnStats:
    """A column has bounds if each of its row groups does, or holds nulls only."""
    stats: _ColumnStats = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    leaf = 0
    for field in schema:
        if not pa.types.is_nested(field.type) and not pa.types.is_floating(field.type):
            stats[quote(field.name)] = _stats_of(groups, leaf, field.type)
        leaf += _leaves(field.type)
    return stats


def _stats_of(groups: Sequence[pq.RowGroupMetaData], leaf: int, kind: pa.DataType) -> dict[str, Any]:
    nulls, lows, highs = 0, [], []
    is_bounded = True
    for group in groups:
        chunk = group.column(leaf)
        found = chunk.statistics
        if found is None or not found.has_null_count:
            return {}
        nulls += found.null_count
        if found.has_min_max:
            lows.append(_value(found.min_raw, kind))
            highs.append(_value(found.max_raw, kind))
        elif found.null_count < chunk.num_values:
            is_bounded = False
    if not is_bounded or not lows or None in lows or None in highs:
        return {"null_count": nulls}
    return {"null_count": nulls, "min": _text(min(lows), kind), "max": _text(max(highs), kind)}


def _value(raw: Any, kind: pa.DataType) -> Any:
    """A bound as it is stored, as a value that can be compared; None for a type whose bounds Delta does not keep."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_decimal(kind):
        return raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)
    if pa.types.is_string(kind):
        return raw.decode()
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        return None
    return raw if pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind) else None


def _text(value: Any, kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"{value}E-{kind.scale}"
    if pa.types.is_date32(kind):
        day = _EPOCH + value
        if 1 <= day <= datetime.date.max.toordinal():
            return datetime.date.fromordinal(day).isoformat()
        return str(pa.scalar(value, pa.int32()).cast(kind).cast(pa.string()))  # Python knows no such year
    if pa.types.is_timestamp(kind):
        return str(np.datetime64(value, "us"))
    return str(value)


def _leaves(kind: pa.DataType) -> int:
    """The columns that a field of this type has in a Parquet file."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(place).type) for place in range(kind.num_fields))
