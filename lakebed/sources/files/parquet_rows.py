"""Rows of Parquet files, in the columns that are asked for, by their names.

1. A column of the file is taken if its name is asked for, whatever its case, and so are fields within structs. A file that lacks
   one is refused, because a null in its place would erase what the table has.
2. Its type must be one whose values mean the same in the column, else no row of the file is read (``require_readable``).
   Nanoseconds are cut to microseconds, times without a zone are in UTC for columns that have one, and times of day and UUIDs
   become texts. Whether a value fits is seen later, row by row.
3. A range has the row groups that begin in it, so ranges that follow each other have each row once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.errors import InvalidChanges
from lakebed.parts.legacy_calendar import LegacyCalendar, legacy_calendar
from lakebed.schema.exact_cast import cast_exactly
from lakebed.schema.nested import nullable
from lakebed.settings import suggest
from lakebed.sources.files.lines import Damaged

BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a file. ``first``: the number of the first one in the file."""

    table: pa.Table
    first: int
    unknown: tuple[str, ...]


def open_parquet(file: Any) -> pq.ParquetFile:
    """Raises Damaged for a file that is not whole, or no Parquet file."""
    try:
        return pq.ParquetFile(file, coerce_int96_timestamp_unit="us", page_checksum_verification=True, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(error) from error


def rows_of(
    parquet: pq.ParquetFile, start: int, end: int, columns: pa.Schema, may_lack: Sequence[str] = ()
) -> Iterator[Rows]:
    """The rows of the groups that begin in a range of bytes. ``may_lack``: columns that are null if the file lacks them.

    Raises Damaged, InvalidChanges without the file's name.
    """
    given = parquet.schema_arrow
    names = matched(given.names, columns.names)
    unknown = [name for name in given.names if name not in names.values()]
    lacking = [name for name in columns.names if name not in names and name not in may_lack]
    if lacking:
        raise InvalidChanges(
            f"it lacks the columns {', '.join(lacking)}{suggest(lacking[0], unknown)}; nulls in their place would erase what the "
            "table has. If that is wanted, name the columns in except_columns"
        )
    for field in columns:
        if field.name in names:
            require_readable(given.field(names[field.name]).type, field)
            unknown += _unknown_fields(given.field(names[field.name]).type, field.type, f"{field.name}.")
    calendar = _calendar(parquet)
    first = 0
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        if start <= _start(group) < end:
            at = first
            for batch in _batches(parquet, number, list(names.values())):
                yield Rows(_in_columns(batch, names, columns, calendar), at, tuple(unknown))
                at += batch.num_rows
        first += group.num_rows


def matched(given: Sequence[str], wanted: Sequence[str]) -> Mapping[str, str]:
    """The column of a file for each that is wanted, if it has one. Raises InvalidChanges if it has several."""
    by_small: dict[str, list[str]] = {}
    for name in given:
        by_small.setdefault(name.lower(), []).append(name)
    found = {}
    for name in wanted:
        several = by_small.get(name.lower(), [])
        exact = [one for one in several if one == name] or several
        if len(exact) > 1:
            raise InvalidChanges(f"it has several columns that are {name!r} if case does not count; rename one of them")
        if exact:
            found[name] = exact[0]
    return found


def require_readable(given: pa.DataType, field: pa.Field) -> None:
    """Raises InvalidChanges, with both types and what to do, if values of this type have no meaning in the column."""
    converted = _converted(pa.array([], given), field.type)
    try:
        cast_exactly(pa.chunked_array([converted]), field.type, field.name)
    except InvalidChanges:
        raise InvalidChanges(
            f"its column {field.name!r} is {given}, which can't be read as {field.type}: give the column of the table another "
            "type, or write the files with one that fits"
        ) from None


def _unknown_fields(given: pa.DataType, kind: pa.DataType, place: str) -> Iterator[str]:
    """The paths of fields within structs that no field of the column takes."""
    t = pa.types
    if t.is_struct(given) and t.is_struct(kind):
        names = {file: own for own, file in matched(_names(given), _names(kind)).items()}
        for field in given:
            if field.name not in names:
                yield f"{place}{field.name}"
            else:
                yield from _unknown_fields(field.type, kind.field(names[field.name]).type, f"{place}{field.name}.")
    elif t.is_map(given) and t.is_map(kind):
        yield from _unknown_fields(given.item_type, kind.item_type, f"{place}value.")
    elif t.is_list(kind) and (t.is_list(given) or t.is_large_list(given) or t.is_fixed_size_list(given)):
        yield from _unknown_fields(given.value_type, kind.value_type, f"{place}element.")


def _names(kind: pa.StructType) -> list[str]:
    return [field.name for field in kind]


def _start(group: pq.RowGroupMetaData) -> int:
    """Where a row group begins in the file."""
    starts = []
    for number in range(group.num_columns):
        column = group.column(number)
        pages = column.dictionary_page_offset, column.data_page_offset
        starts.append(min(page for page in pages if page is not None))
    return min(starts, default=0)


def _batches(parquet: pq.ParquetFile, group: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    batches = parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=names)
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(error) from error
        if batch is None:
            return
        yield batch


def _in_columns(
    batch: pa.RecordBatch, names: Mapping[str, str], columns: pa.Schema, calendar: LegacyCalendar | None
) -> pa.Table:
    out = []
    for field in columns:
        name = names.get(field.name)
        if name is None:
            out.append(pa.nulls(batch.num_rows, nullable(field.type)))
            continue
        column = batch.column(batch.schema.get_field_index(name))
        _require_calendar(column, field.name, calendar)
        out.append(_converted(column, field.type))
    return pa.Table.from_arrays(out, names=columns.names)


def _calendar(parquet: pq.ParquetFile) -> LegacyCalendar | None:
    """What the file says of early dates and times (``parts.legacy_calendar``)."""
    marks = {
        key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in _metadata(parquet).items()
    }
    kinds = (parquet.schema.column(number).physical_type for number in range(len(parquet.schema)))
    return legacy_calendar(marks, has_int96="INT96" in kinds)


def _metadata(parquet: pq.ParquetFile) -> Mapping[bytes, bytes]:
    return parquet.metadata.metadata or {}


def _require_calendar(column: pa.Array, name: str, calendar: LegacyCalendar | None) -> None:
    if calendar is not None and calendar.has_old(column):
        raise InvalidChanges(
            f"its column {name!r} has early dates or timestamps in the old calendar of {calendar.writer}, which only Spark "
            "reads: let Spark write the file again, with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED"
        )


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in a type that ``cast_exactly`` takes for the column, if there is one; else as they are."""
    given, t = values.type, pa.types
    if given == kind:
        return values
    if t.is_dictionary(given):
        return _converted(values.dictionary_decode(), kind)
    if isinstance(given, pa.UuidType) and t.is_string(kind):
        return pa.array([None if value is None else str(value) for value in values.to_pylist()], pa.string())
    if isinstance(given, pa.BaseExtensionType):
        return values
    if t.is_time(given) and t.is_string(kind):
        return values.cast(pa.string())
    if t.is_timestamp(given) and t.is_timestamp(kind):
        values = _in_micros(values)
        return values.cast(kind) if given.tz is None or kind.tz is not None else values
    if t.is_struct(given) and t.is_struct(kind):
        return _struct(values, kind)
    if (t.is_list(given) or t.is_large_list(given) or t.is_fixed_size_list(given)) and t.is_list(kind):
        return _list(values, kind)
    if t.is_map(given) and t.is_map(kind):
        return _map(values, kind)
    return values


def _in_micros(values: pa.Array) -> pa.Array:
    """Times in microseconds; what is finer is cut off."""
    if values.type.unit != "ns":
        return values.cast(pa.timestamp("us", values.type.tz))
    numbers = np.asarray(values.view(pa.int64()).fill_null(0)) // 1000
    return pa.array(numbers, mask=np.asarray(values.is_null())).view(pa.timestamp("us", values.type.tz))


def _struct(values: pa.StructArray, kind: pa.StructType) -> pa.Array:
    names = matched(_names(values.type), _names(kind))
    children = dict(zip(_names(values.type), values.flatten(), strict=True))
    there = [field for field in kind if field.name in names]
    out = [_converted(children[names[field.name]], field.type) for field in there]
    fields = [pa.field(field.name, one.type) for field, one in zip(there, out, strict=True)]
    return pa.StructArray.from_arrays(out, fields=fields, mask=values.is_null()) if there else values


def _list(values: pa.Array, kind: pa.ListType) -> pa.Array:
    plain = pa.concat_arrays([values.cast(pa.list_(values.type.value_type))])
    inside = _converted(plain.values, kind.value_type)
    return pa.Array.from_buffers(
        pa.list_(pa.field("element", inside.type)), len(plain), plain.buffers()[:2], plain.null_count, 0, [inside]
    )


def _map(values: pa.MapArray, kind: pa.MapType) -> pa.Array:
    plain = pa.concat_arrays([values])
    sides = _converted(plain.keys, kind.key_type), _converted(plain.items, kind.item_type)
    made = pa.map_(sides[0].type, pa.field("value", sides[1].type))
    entries = pa.StructArray.from_arrays(list(sides), fields=[made.key_field, made.item_field])
    return pa.Array.from_buffers(made, len(plain), plain.buffers()[:2], plain.null_count, 0, [entries])


def _damaged(error: Exception) -> Exception:
    # Arrow passes errors of the file itself on, with their number.
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return Damaged(str(error).splitlines()[0])
