"""Find numbers that are taken for times in January 1970, though no schema says what they count.

Few tables have such times. A number of seconds that is taken for milliseconds becomes one: 1700000000 is 20 January 1970 then. So
it is read as the settings say, and remarked upon. Zero is 1970 whatever it counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.far_times import Unit, has_times
from lakebed.ingest.debezium.connect_types import Kind, LogicalType

_SECONDS = 31 * 86_400
TICKS_OF_JANUARY: Mapping[Unit, int] = {
    "s": _SECONDS, "ms": _SECONDS * 10**3, "us": _SECONDS * 10**6, "ns": _SECONDS * 10**9,
    "auto": _SECONDS * 10**3,  # such small numbers are taken for milliseconds
}  # fmt: skip

Mask = np.ndarray[Any, Any]


def is_early(value: Any, target: pa.DataType, logical_type: LogicalType, unit: Unit) -> bool:
    """Whether a JSON value that was read into a column is such a number, or holds one."""
    t = pa.types
    if t.is_timestamp(target):
        is_number = isinstance(value, int) and not isinstance(value, bool) and logical_type.kind is Kind.PLAIN
        return is_number and 0 < value < TICKS_OF_JANUARY[unit]
    if value is None or not t.is_nested(target) or not has_times(target):
        return False
    if t.is_struct(target):
        return any(is_early(value.get(f.name), f.type, logical_type.of_field(f.name), unit) for f in target)
    items, kind = (value.values(), target.item_type) if t.is_map(target) else (value, target.value_type)
    return any(is_early(item, kind, logical_type.of_item(), unit) for item in items)


def early(values: pa.Array, target: pa.DataType, logical_type: LogicalType, unit: Unit) -> Mask | None:
    """Which values, as they came, are such numbers or hold one; None if none is."""
    kind, t = values.type, pa.types
    if t.is_timestamp(target):
        if not t.is_integer(kind) or logical_type.kind is not Kind.PLAIN:
            return None
        ticks = np.asarray(values.fill_null(0) if values.null_count else values)
        return _some((ticks > 0) & (ticks < TICKS_OF_JANUARY[unit]))
    if not t.is_nested(target) or not has_times(target):
        return None
    if t.is_struct(target) and t.is_struct(kind):
        members = dict(zip((f.name for f in kind), values.flatten(), strict=True))
        found = np.zeros(len(values), bool)
        for f in target:
            if f.name in members:
                one = early(members[f.name], f.type, logical_type.of_field(f.name), unit)
                found |= False if one is None else one
        return _some(found)
    if t.is_list(target) and t.is_list(kind):
        return _of_items(values, values.values, target.value_type, logical_type, unit)
    if t.is_map(target) and t.is_map(kind):
        return _of_items(values, values.items, target.item_type, logical_type, unit)
    return None


def _of_items(
    values: pa.Array, items: pa.Array, target: pa.DataType, logical_type: LogicalType, unit: Unit
) -> Mask | None:
    found = early(items, target, logical_type.of_item(), unit)
    if found is None:
        return None
    before = np.concatenate([[0], np.cumsum(found)])
    offsets = np.asarray(values.offsets)
    return _some((before[offsets[1:]] > before[offsets[:-1]]) & np.asarray(values.is_valid()))


def _some(found: Mask) -> Mask | None:
    return found if found.any() else None
