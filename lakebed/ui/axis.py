"""The values of bounds on a number line, for an axis with true distances. Pure.

1. It takes a first term of the sort key that is a number, a date or a moment, or the date, day or hour of one. A bound has the
   value of this term: the number, or epoch milliseconds. The values of a descending term are negated, so that they grow with the
   order.
2. Bounds that are equal in the first term and differ in others are spread over one unit of whole numbers and dates, evenly by
   rank. Of other types they have the same value.
3. NULL, NaN, the infinities and what is not bounded have no value. They are put just outside, and ``marks`` names them.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any

import pyarrow as pa

from lakebed.sortkey.ranges import Bound, plain_value
from lakebed.sortkey.sort_key import SortTerm
from lakebed.ui.texts import cut
from lakebed.view.clustering import readable

STEPS = 100_000_000
"""Places are whole numbers from 0 to this."""
MARGIN = 0.03
_DAY_MS = 86_400_000.0
_HOUR_MS = 3_600_000.0
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()


def values_of(bounds: Sequence[Bound], terms: tuple[SortTerm, ...]) -> dict[str, Any] | None:
    """The places of sorted bounds between the values ``low`` and ``high``; None if they have no values, or all the same.

    ``unit`` is number or time (epoch milliseconds); ``is_mirrored``: values are negated; ``marks``: places with their texts.
    """
    term = terms[0]
    unit = _unit(term)
    if unit is None:
        return None
    values = _spread_equal(bounds, [_value(bound, term) for bound in bounds], unit)
    known = [value for value in values if math.isfinite(value)]
    if not known or known[0] == known[-1]:
        return None
    margin = (known[-1] - known[0]) * MARGIN
    if not math.isfinite(margin):
        return None
    has_below, has_above = values[0] == -math.inf, values[-1] == math.inf
    low, high = known[0] - margin * has_below, known[-1] + margin * has_above
    scale = STEPS / (high - low)
    marks = []
    if has_below:
        marks.append([0, _mark(bounds[0], terms)])
    if has_above:
        marks.append([STEPS, _mark(bounds[-1], terms)])
    return {
        "unit": "time" if term.function or _is_time(term.type) else "number",
        "low": low,
        "high": high,
        "is_mirrored": term.is_descending,
        "places": [round((min(max(value, low), high) - low) * scale) for value in values],
        "marks": marks,
    }


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _unit(term: SortTerm) -> float | None:
    """The distance to the next value of a term, 0 where there are values in between; None if its values are no distances."""
    if term.function:
        return {"date": _DAY_MS, "day": _DAY_MS, "hour": _HOUR_MS}.get(term.function)
    if pa.types.is_date(term.type):
        return _DAY_MS
    if pa.types.is_integer(term.type):
        return 1.0
    return 0.0 if _is_number(term.type) or _is_time(term.type) else None


def _value(bound: Bound, term: SortTerm) -> float:
    """The first value of a bound; an infinity if it has none, below or above all values by its place in the order."""
    if not bound:
        return -math.inf
    if bound[0] != 1:
        return -math.inf if bound[0] < 1 else math.inf
    number = _plain_number(plain_value(bound[1], term)) * {"day": _DAY_MS, "hour": _HOUR_MS}.get(term.function, 1.0)
    return -number if term.is_descending else number


def _plain_number(value: Any) -> float:
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) / datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.date):
        return (value.toordinal() - _EPOCH_DAY) * _DAY_MS
    assert isinstance(value, int | float | Decimal)
    return float(value)


def _spread_equal(bounds: Sequence[Bound], values: Sequence[float], unit: float) -> list[float]:
    out: list[float] = []
    for _, same in groupby(range(len(bounds)), key=lambda place: values[place]):
        places = list(same)
        out += [values[place] + unit * number / len(places) for number, place in enumerate(places)]
    return out


def _mark(bound: Bound, terms: tuple[SortTerm, ...]) -> str:
    return cut(readable(bound[:2], terms)[1:-1])
