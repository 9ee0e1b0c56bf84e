"""Leaving parts out by their statistics. Exact in one direction: a part left out has no matching row."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lakebed.manifest.actions import Part

_MILLISECOND = datetime.timedelta(milliseconds=1)


@lru_cache(maxsize=65_536)
def parsed_stats(stats: str) -> Mapping[str, Any]:
    """Delta's statistics JSON of a part."""
    value = json.loads(stats, parse_float=decimal.Decimal)  # bounds of decimals must stay exact
    assert isinstance(value, dict)
    return value


def may_contain(part: Part, bounds: Mapping[str, Mapping[str, Any]], schema: pa.Schema) -> bool:
    """Whether the part may hold rows within all the closed ranges ``{column: {"min": …, "max": …}}``."""
    if part.stats is None or not bounds:
        return True
    stats = parsed_stats(part.stats)
    lows, highs = stats.get("minValues") or {}, stats.get("maxValues") or {}
    for name, wanted in bounds.items():
        low, high = lows.get(name), highs.get(name)
        if low is None or high is None or wanted["min"] is None:
            continue
        kind = schema.field(name).type
        first, last = comparable(wanted["min"], kind), comparable(wanted["max"], kind)
        if first is None or last is None:
            continue
        if last < _bound_value(low, kind) or first > _highest(high, kind):
            return False
    return True


def comparable(value: Any, kind: pa.DataType) -> Any:
    """A value in the form in which bounds of its type are compared; None if bounds of the type are not used."""
    if pa.types.is_string(kind):
        return value.encode()
    if pa.types.is_timestamp(kind):
        return value.replace(tzinfo=datetime.timezone.utc) if value.tzinfo is None else value
    if pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return value
    if pa.types.is_floating(kind):
        return None if value != value else value
    return None


def _highest(bound: Any, kind: pa.DataType) -> Any:
    """Spark cuts a timestamp's maximum to its millisecond, so a value may lie up to one above."""
    value = _bound_value(bound, kind)
    if not pa.types.is_timestamp(kind):
        return value
    latest = datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)
    return min(value, latest - _MILLISECOND) + _MILLISECOND


def _bound_value(bound: Any, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return bound.encode()
    if pa.types.is_timestamp(kind):
        moment = datetime.datetime.fromisoformat(bound.replace("Z", "+00:00"))
        return moment.replace(tzinfo=datetime.timezone.utc) if moment.tzinfo is None else moment
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat(bound)
    if pa.types.is_floating(kind):
        return float(bound)
    return bound
