"""The rules of two tables, whose types are Arrow's: the same expression on both sides, once both have the wider type. Pure."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from lakebed.quoting import quote
from lakebed.verify.canonical import LeftOut, OfKey, Rule, put
from lakebed.verify.judging import day_of_number, moment_of_number, number_of_bits
from lakebed.verify.sources.types_of_postgres import BITS_OF_DOUBLE

_DAY = "date '1970-01-01'"


def rule_of(source: pa.DataType, lake: pa.DataType) -> Rule | LeftOut:
    """How values of a column are compared."""
    source_text, lake_text = _text(source, lake), _text(lake, source)
    if source_text is None or lake_text is None:
        return LeftOut(reason=f"no rule compares {source} with {lake}")
    shown: Callable[[str], str] = str
    if pa.types.is_floating(lake):
        shown = number_of_bits
    elif pa.types.is_date(lake):
        shown = day_of_number
    elif pa.types.is_timestamp(lake) and "ns" not in (source.unit, lake.unit):
        shown = moment_of_number
    return Rule(source=source_text, lake=lake_text, is_free=_is_free(lake), of_key=_of_key(lake), shown=shown)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_free(kind: pa.DataType) -> bool:
    return _is_text(kind) or bool(pa.types.is_nested(kind))


def _text(kind: pa.DataType, other: pa.DataType) -> str | None:
    """The canonical text of a value of a type, beside one of the other type; None if they can't be compared."""
    types = pa.types
    if types.is_integer(kind) or types.is_decimal(kind):
        if not (types.is_integer(other) or types.is_decimal(other)):
            return None
        scale = max(one.scale if types.is_decimal(one) else 0 for one in (kind, other))
        return f"{{}}::decimal(38, {scale})::varchar" if scale or types.is_decimal(kind) else "{}::varchar"
    if types.is_floating(kind) and types.is_floating(other):
        return f"lpad(lower(to_hex({BITS_OF_DOUBLE}({{}}::double))), 16, '0')"
    if types.is_boolean(kind) and types.is_boolean(other):
        return "{}::int::varchar"
    if types.is_date(kind) and types.is_date(other):
        return f"date_diff('day', {_DAY}, {{}})::varchar"
    if types.is_timestamp(kind) and types.is_timestamp(other):
        return "epoch_ns({})::varchar" if "ns" in (kind.unit, other.unit) else "epoch_us({})::varchar"
    if _is_text(kind) and _is_text(other):
        return "{}::varchar"
    if _is_bytes(kind) and _is_bytes(other):
        return "lower(hex({}))"
    return _nested(kind, other)


def _nested(kind: pa.DataType, other: pa.DataType) -> str | None:
    if pa.types.is_list(kind) and pa.types.is_list(other):
        inner = _text(kind.value_type, other.value_type)
        return (
            None
            if inner is None
            else f"array_to_string(list_transform({{}}, lambda one: {_counted(inner, 'one')}), '')"
        )
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        if sorted(field.name for field in kind) != sorted(field.name for field in other):
            return None
        parts = []
        for field in sorted(kind, key=lambda field: str(field.name)):
            inner = _text(field.type, other.field(field.name).type)
            if inner is None:
                return None
            parts.append(_counted(inner, f"({{}}).{quote(field.name)}"))
        return f"(case when {{}} is null then null else {' || '.join(parts)} end)"
    if pa.types.is_map(kind) and pa.types.is_map(other):
        key, value = _text(kind.key_type, other.key_type), _text(kind.item_type, other.item_type)
        if key is None or value is None:
            return None
        pair = f"{_counted(key, 'one.key')} || {_counted(value, 'one.value')}"
        return f"array_to_string(list_sort(list_transform(map_entries({{}}), lambda one: {pair})), '')"
    return None


def _counted(inner: str, value: str) -> str:
    text = put(inner, value)
    return f"coalesce(strlen({text})::varchar || ':' || {text}, '-')"


def _of_key(kind: pa.DataType) -> OfKey | None:
    """Keys are looked up by their values; the order does not matter, since two tables are read as a whole."""
    types = pa.types
    if types.is_integer(kind) or types.is_decimal(kind) or _is_text(kind) or types.is_boolean(kind):
        name = "varchar" if _is_text(kind) else "boolean" if types.is_boolean(kind) else "decimal(38, 0)"
        if types.is_decimal(kind):
            name = f"decimal({kind.precision}, {kind.scale})"
        elif types.is_integer(kind):
            name = "bigint" if kind.bit_width < 64 or types.is_signed_integer(kind) else "ubigint"
        cast = "{}::int::boolean" if types.is_boolean(kind) else f"{{}}::{name}"
        return OfKey(source=cast, lake=cast)
    if types.is_date(kind):
        day = f"({_DAY} + {{}}::int)"
        return OfKey(source=day, lake=day)
    if types.is_timestamp(kind):
        moment = "make_timestamptz({}::bigint)" if kind.tz else "make_timestamp({}::bigint)"
        return OfKey(source=moment, lake=moment) if kind.unit != "ns" else None
    return None
