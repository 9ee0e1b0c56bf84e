"""Find numbers that are taken for times that few tables have, though no schema says what they count.

Such numbers are read as the settings say, and remarked upon:

- Timestamps in January 1970. A number of seconds that is taken for milliseconds becomes one: 1700000000 is 20 January 1970 then.
  Zero is 1970 whatever it counts.
- Dates beyond the years 1 to 9999. A number for a date counts days, and one of seconds gives such a date: 1700000000 is in
  the year 4656411 then. The numbers that stand for infinity are none of them.
- Timestamps beyond these years. A number of milliseconds that is taken for seconds becomes one: 1700000000000 is in the year
  55840 then. Where the unit is told by the size of the number, only years before 1 can be such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.decode.json.connect_types import Kind, LogicalType
from lakebed.decode.json.values import MICROS_BELOW, MILLIS_BELOW
from lakebed.far_times import Unit, end_of, has_times, infinite_days, infinities
from lakebed.remarks import Remark

_SECONDS = 31 * 86_400
_TICKS_OF_JANUARY: Mapping[Unit, int] = {
    "s": _SECONDS, "ms": _SECONDS * 10**3, "us": _SECONDS * 10**6, "ns": _SECONDS * 10**9,
    "auto": _SECONDS * 10**3,  # such small numbers are taken for milliseconds
}  # fmt: skip
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""Of the years 1 to 9999."""
_TIMES: Mapping[str, tuple[int, int]] = {
    unit: (_FIRST_DAY * 86_400 * ticks, (_LAST_DAY + 1) * 86_400 * ticks - 1)
    for unit, ticks in (("s", 1), ("ms", 10**3), ("us", 10**6))
}
"""The same years, by what a number counts. Of nanoseconds 64 bits hold no other."""
_INFINITE_DAYS = [day for days in infinite_days() for day in days]

_Mask = np.ndarray[Any, Any]
ByColumn = Mapping[tuple[Remark, str], _Mask]
"""Which rows a remark is on, by the remark and the column."""
_KINDS = (Remark.JANUARY_1970, Remark.FAR_TIMESTAMP, Remark.FAR_DATE)


def _is_far(ticks: Any, unit: Unit) -> Any:
    """Whether a number, or each in an array, gives a time beyond the years 1 to 9999."""
    if unit == "auto":  # what is taken for milliseconds or microseconds ends before the year 9999
        millis = (ticks < _TIMES["ms"][0]) & (ticks > -MILLIS_BELOW)
        return millis | (ticks < _TIMES["us"][0]) & (ticks > -MICROS_BELOW)
    first, last = _TIMES.get(unit, (-(2**63), 2**63 - 1))
    return (ticks < first) | (ticks > last)


def unlikely_remarks(value: Any, target: pa.DataType, logical_type: LogicalType, unit: Unit) -> list[Remark]:
    """What is to be said of a JSON value that was read into a column: whether it is such a number, or holds one."""
    if not has_times(target):
        return []
    return [remark for remark in _KINDS if _is_unlikely(remark, value, target, logical_type, unit)]


def unlikely(values: pa.Array, target: pa.DataType, logical_type: LogicalType, unit: Unit) -> dict[Remark, _Mask]:
    """By what is to be said, which values, as they came, are such numbers or hold one; without what is to be said of none."""
    if not has_times(target):
        return {}
    found = {remark: _unlikely(remark, values, target, logical_type, unit) for remark in _KINDS}
    return {remark: mask for remark, mask in found.items() if mask is not None}


def _is_unlikely(remark: Remark, value: Any, target: pa.DataType, logical_type: LogicalType, unit: Unit) -> bool:
    t = pa.types
    if not t.is_nested(target):
        if not isinstance(value, int) or isinstance(value, bool) or logical_type.kind is not Kind.PLAIN:
            return False
        if remark is Remark.JANUARY_1970:
            return bool(t.is_timestamp(target)) and 0 < value < _TICKS_OF_JANUARY[unit]
        if remark is Remark.FAR_TIMESTAMP:
            return bool(t.is_timestamp(target)) and _is_far(value, unit) and end_of(value, unit) is None
        return bool(t.is_date(target)) and not _FIRST_DAY <= value <= _LAST_DAY and value not in _INFINITE_DAYS
    if value is None:
        return False
    if t.is_struct(target):
        return any(_is_unlikely(remark, value.get(f.name), f.type, logical_type.of_field(f.name), unit) for f in target)
    items, kind = (value.values(), target.item_type) if t.is_map(target) else (value, target.value_type)
    return any(_is_unlikely(remark, item, kind, logical_type.of_item(), unit) for item in items)


def _unlikely(
    remark: Remark, values: pa.Array, target: pa.DataType, logical_type: LogicalType, unit: Unit
) -> _Mask | None:
    kind, t = values.type, pa.types
    if not t.is_nested(target):
        is_wanted = t.is_date(target) if remark is Remark.FAR_DATE else t.is_timestamp(target)
        if not is_wanted or not t.is_integer(kind) or logical_type.kind is not Kind.PLAIN:
            return None
        numbers = np.asarray(values.fill_null(0) if values.null_count else values)
        if remark is Remark.JANUARY_1970:
            return _some((numbers > 0) & (numbers < _TICKS_OF_JANUARY[unit]))
        if remark is Remark.FAR_TIMESTAMP:
            beyond = _is_far(numbers, unit)
            signs = infinities(numbers.astype(np.int64), unit) if beyond.any() else None
            return _some(beyond if signs is None else beyond & (signs == 0))
        far = (numbers < _FIRST_DAY) | (numbers > _LAST_DAY)
        return _some(far & ~np.isin(numbers, _INFINITE_DAYS)) if far.any() else None
    if not has_times(target):
        return None
    if t.is_struct(target) and t.is_struct(kind):
        members = dict(zip((f.name for f in kind), values.flatten(), strict=True))
        found = np.zeros(len(values), bool)
        for f in target:
            if f.name in members:
                one = _unlikely(remark, members[f.name], f.type, logical_type.of_field(f.name), unit)
                found |= False if one is None else one
        return _some(found)
    if t.is_list(target) and t.is_list(kind):
        return _of_items(values, _unlikely(remark, values.values, target.value_type, logical_type.of_item(), unit))
    if t.is_map(target) and t.is_map(kind):
        return _of_items(values, _unlikely(remark, values.items, target.item_type, logical_type.of_item(), unit))
    return None


def _of_items(values: pa.Array, found: _Mask | None) -> _Mask | None:
    if found is None:
        return None
    before = np.concatenate([[0], np.cumsum(found)])
    offsets = np.asarray(values.offsets)
    return _some((before[offsets[1:]] > before[offsets[:-1]]) & np.asarray(values.is_valid()))


def _some(found: _Mask) -> _Mask | None:
    return found if found.any() else None
