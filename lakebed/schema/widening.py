"""Which types a column may change to without touching its files: Delta's type widening. Pure.

Every value of the narrower type is a value of the wider one, and values keep their order.
"""

from __future__ import annotations

import pyarrow as pa

from lakebed.schema.conversion import type_to_json

_CANDIDATES = (
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float64(),
    pa.decimal128(10, 0),
    pa.decimal128(20, 0),
    pa.timestamp("us"),
)

TYPE_WIDENING = "typeWidening"
"""The table feature."""
ENABLED = "delta.enableTypeWidening"
TYPE_CHANGES = "delta.typeChanges"
_PRECISION_MAX = 38
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_DIGITS = {pa.int8(): 10, pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}
"""Digits before the point that Delta asks a decimal to have for integers of each type."""


def widening(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether a column may be widened from one type to the other, by Delta's protocol. False for equal and for nested types.

    byte → short → int → long; byte, short, int → double; float → double; date → timestamp without zone; integers → decimals
    with 10 digits before the point, long with 20; decimals → decimals with no fewer digits before and after the point.
    """
    if narrow.equals(wide):
        return False
    if narrow in _INTEGERS:
        if wide in _INTEGERS:
            return bool(_INTEGERS.index(wide) > _INTEGERS.index(narrow))
        if pa.types.is_decimal(wide):
            return bool(wide.precision - wide.scale >= _DIGITS[narrow])
        return bool(pa.types.is_float64(wide) and narrow != pa.int64())
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(wide.scale >= narrow.scale and wide.precision - wide.scale >= narrow.precision - narrow.scale)
    if pa.types.is_float32(narrow):
        return bool(pa.types.is_float64(wide))
    return bool(pa.types.is_date(narrow) and wide.equals(pa.timestamp("us")))


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds the values of both: one of them, or one that both widen to. None if there is none."""
    if one.equals(other) or widening(other, one):
        return one
    if widening(one, other):
        return other
    for kind in (pa.float64(), _common_decimal(one, other)):
        if kind is not None and widening(one, kind) and widening(other, kind):
            return kind
    return None


def _common_decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if not any(map(pa.types.is_decimal, (one, other))):
        return None
    before = max(
        (_DIGITS.get(kind) or kind.precision - kind.scale for kind in (one, other) if _is_exact(kind)), default=0
    )
    after = max((kind.scale for kind in (one, other) if pa.types.is_decimal(kind)), default=0)
    return pa.decimal128(before + after, after) if before + after <= _PRECISION_MAX else None


def _is_exact(kind: pa.DataType) -> bool:
    return kind in _DIGITS or bool(pa.types.is_decimal(kind))


def widest_type(kind: pa.DataType) -> pa.DataType:
    """The type of a table of wide types: integers become long, floats double, decimals have 38 digits; at any depth."""
    if kind in _INTEGERS:
        return pa.int64()
    if pa.types.is_float32(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(_PRECISION_MAX, kind.scale)
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(widest_type(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(widest_type(kind.key_type)), kind.item_field.with_type(widest_type(kind.item_type))
        )
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(widest_type(kind.value_type)))
    return kind


def spelled(kind: pa.DataType) -> str:
    named_type = type_to_json(kind)
    return named_type if isinstance(named_type, str) else str(named_type["type"])


def wider_than(kind: pa.DataType) -> str:
    """What a type can be widened to, as a clause."""
    if pa.types.is_decimal(kind):
        return "a wider decimal has no fewer digits before and after the point"
    wider = [spelled(each) for each in _CANDIDATES if widening(kind, each)]
    return f"wider are {', '.join(wider)}" if wider else "no type is wider"
