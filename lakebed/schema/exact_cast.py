"""Casts a column of changes to the type of the table's column if each value keeps its meaning; otherwise it raises an error.

Cast: whole numbers, decimals and floating point into each other, if the value stays the same (a ``double`` is rounded for a
``float`` column, because that is what such a column holds); bytes that are UTF-8 into a text, and a text into bytes; instants
into another unit or zone; a timestamp without zone at midnight into a date, and back. Structs are matched by the names of
their fields, in any case.

Infinite dates and timestamps become what a table stores for them (``far_times``).

Refused, because the meaning of a value would be a guess: a number as a time, a truth value or a text, and back; a text as
anything that must be parsed; times with a zone as times without, and back; a date as an instant.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import InvalidChanges
from lakebed.far_times import Signs, finite_column, infinities_of, with_ends
from lakebed.schema.column_mapping import in_case_of, retyped
from lakebed.schema.nested import nullable

_WHAT_TO_DO = "convert it before it is applied"


def cast_exactly(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    """The column in a type of a table, but with every field within it nullable: what is NOT NULL is still to be checked.

    Raises InvalidChanges naming the column, both types and what to do.
    """
    column, declared, kind = _decoded(column), kind, nullable(kind)
    if pa.types.is_nested(kind) and (spelled := in_case_of(column.type, kind)) != column.type:
        column = retyped(column, spelled)
    if column.type == kind:
        return finite_column(_utf8(column, kind, name))
    why = _refusal(column.type, kind, "")
    if why is not None:
        raise InvalidChanges(
            f"column {name!r}: {column.type} does not fit the table's {declared}: {why}; {_WHAT_TO_DO}"
        )
    try:
        if pa.types.is_integer(column.type) and pa.types.is_decimal(kind):
            column = column.cast(pa.decimal128(38, kind.scale))  # else Arrow demands room for any integer
        column, infinite = _without_infinities(column)
        out = column.cast(kind)
        if _may_round(column.type, kind) and not out.cast(column.type).equals(column):
            raise pa.ArrowInvalid("some value would be rounded")
        if _is_float(kind) and _is_number(column.type):
            _require_finite(column, out)
        if infinite is not None:
            out = pa.chunked_array([with_ends(out.chunk(0), infinite)])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise InvalidChanges(
            f"column {name!r}: {column.type} does not fit the table's {declared}: {why}; {_WHAT_TO_DO}"
        ) from None
    return finite_column(_utf8(out, kind, name))


def _without_infinities(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, Signs | None]:
    """The column with nulls in place of infinities, which a cast would not keep, and where these are; None if there are none."""
    if all(infinities_of(chunk) is None for chunk in column.chunks):
        return column, None
    values = pa.concat_arrays(column.chunks)
    signs = infinities_of(values)
    return pa.chunked_array([pc.if_else(pa.array(signs != 0), pa.scalar(None, column.type), values)]), signs


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        return column
    kind = column.type.value_type
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind)
    if plain is None:
        return column.cast(kind)
    # Arrow can't decode a dictionary of views, which is how polars passes its categories.
    return pa.chunked_array([chunk.dictionary.cast(plain).take(chunk.indices) for chunk in column.chunks], plain)


def _utf8(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    """The column, whose texts are UTF-8. Arrow takes it on trust, and a part that was written can't be read again."""
    if _holds(pa.types.is_string, kind):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            row = next(row for row in range(len(column)) if not _is_valid(column.slice(row, 1)))
            raise InvalidChanges(f"column {name!r} is not valid in row {row}: {str(error).splitlines()[0]}") from None
    return column


def _is_valid(column: pa.ChunkedArray) -> bool:
    try:
        column.combine_chunks().validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _holds(wanted: Callable[[pa.DataType], bool], kind: pa.DataType) -> bool:
    """Whether the type, or one within it at any depth, is such a type."""
    if pa.types.is_nested(kind):
        return any(_holds(wanted, kind.field(at).type) for at in range(kind.num_fields))
    return bool(wanted(kind))


def _refusal(given: pa.DataType, kind: pa.DataType, place: str) -> str | None:
    """Why values of one type may mean something else in the other; None if they don't. ``place``: below the column."""
    if given == kind or pa.types.is_null(given):
        return None
    if pa.types.is_struct(kind) and pa.types.is_struct(given):
        fields = {child.name: child for child in kind}
        for child in given:
            if child.name not in fields:
                return f"the table has no field {f'{place}{child.name}'!r}"
            if why := _refusal(child.type, fields[child.name].type, f"{place}{child.name}."):
                return why
        missing = [child.name for child in kind if given.get_field_index(child.name) < 0]
        return f"the field {f'{place}{missing[0]}'!r} is missing" if missing else None
    if pa.types.is_map(kind) and pa.types.is_map(given):
        return _refusal(given.key_type, kind.key_type, f"{place}key.") or _refusal(
            given.item_type, kind.item_type, f"{place}value."
        )
    if pa.types.is_list(kind) and _is_list(given):
        return _refusal(given.value_type, kind.value_type, f"{place}element.")
    if not any(is_family(given) and is_family(kind) for is_family in _FAMILIES) or (
        pa.types.is_timestamp(given) and pa.types.is_timestamp(kind) and (given.tz is None) != (kind.tz is None)
    ):
        return f"{f'of {place[:-1]} ' if place else ''}a {given} could mean several things as a {kind}"
    if place and _may_round(given, kind):
        return f"{place[:-1]} might be rounded"
    return None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    t = pa.types
    is_text = t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind)
    return bool(
        is_text
        or t.is_binary(kind)
        or t.is_large_binary(kind)
        or t.is_binary_view(kind)
        or t.is_fixed_size_binary(kind)
    )


def _is_calendar(kind: pa.DataType) -> bool:
    """Dates and times without a zone."""
    return bool(pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_timestamp(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind))


_FAMILIES: tuple[Callable[[pa.DataType], bool], ...] = (_is_number, _is_text_or_bytes, _is_calendar, _is_timestamp)


def _may_round(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Arrow's checked cast may give another value: between decimals and floating point, of a time to its day, and
    of a decimal to so high a scale that the digits leave the type's bits, which Arrow may not see.
    """
    is_decimal, is_float = pa.types.is_decimal, pa.types.is_floating
    if is_decimal(given) and is_decimal(kind) and given.precision + kind.scale - given.scale > 38:
        return True
    if (is_decimal(given) and is_float(kind)) or (is_float(given) and is_decimal(kind)):
        return True
    return bool(pa.types.is_date(kind) and pa.types.is_timestamp(given))


def _require_finite(column: pa.ChunkedArray, out: pa.ChunkedArray) -> None:
    if _is_float(column.type) and column.type.bit_width > out.type.bit_width:
        grew = pc.and_(pc.is_finite(column), pc.invert(pc.is_finite(out)))
        if pc.any(grew).as_py():
            raise pa.ArrowInvalid(
                f"{column[int(np.flatnonzero(pc.fill_null(grew, False))[0])].as_py()} is out of range"
            )
