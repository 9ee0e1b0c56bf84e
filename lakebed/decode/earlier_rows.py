"""What an event says of the row that it replaced, and whether that is a certain row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakebed.decode.decoder import DecoderSchema
from lakebed.far_times import python_values
from lakebed.parts.changes import UNAVAILABLE_COLUMN


@dataclass(frozen=True, slots=True)
class EarlierRow:
    """What an event says of the row that it replaced, beside its key.

    ``blank``: columns that have no value there, or what a source fills in where it sends none (0, "").
    """

    values: Mapping[str, Any]
    blank: frozenset[str]


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with numbers in place of dates and times, which Python may lack."""
    if pa.types.is_temporal(column.type):
        return column.combine_chunks().view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return column


def is_same(old: EarlierRow, rows: pa.Table, row: int, schema: DecoderSchema) -> bool | None:
    """Whether an old row is this one; None: it does not say."""
    unsent = rows.column(UNAVAILABLE_COLUMN)[row].as_py() or ()
    says_something = is_doubtful = False
    for column in schema.columns:
        if column.name in schema.keys or column.name in unsent:
            continue
        value = rows.column(column.name).slice(row, 1).combine_chunks()
        if column.name in old.values:
            if not _are_equal(pa.array([old.values[column.name]], column.type), value):
                return False
            says_something = True
        elif column.name in old.blank and not _is_blank(value):
            is_doubtful = True
    return True if says_something and not is_doubtful else None


def _are_equal(one: pa.Array, other: pa.Array) -> bool:
    """Whether values are the same, at any depth; to Arrow one NaN is not another."""
    return bool(one.equals(other)) or repr(python_values(one)) == repr(python_values(other))


def _is_blank(value: pa.Array) -> bool:
    return not value[0].is_valid or not plain(pa.chunked_array([value]))[0].as_py()
