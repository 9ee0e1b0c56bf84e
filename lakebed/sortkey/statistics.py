"""Delta's statistics of a part, and their bounds in the form in which values of a type are compared.

A bound holds for every row of a part but need not be a value of it: strings are truncated, timestamps are in whole milliseconds.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

_MILLISECOND = datetime.timedelta(milliseconds=1)


@lru_cache(maxsize=1_024)
def parsed_stats(stats: str) -> Mapping[str, Any]:
    """Delta's statistics JSON of a part."""
    value = json.loads(stats, parse_float=decimal.Decimal)  # bounds of decimals must stay exact
    assert isinstance(value, dict)
    return value


def comparable(value: Any, kind: pa.DataType) -> Any:
    """A value in the form in which bounds of its type are compared; None if bounds of the type are not used."""
    if pa.types.is_string(kind):
        return value.encode()
    if pa.types.is_timestamp(kind):
        return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value
    if pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return value
    if pa.types.is_floating(kind):
        return None if value != value else value
    return None


def has_bounds(kind: pa.DataType) -> bool:
    """Whether bounds of the type are used at all."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_date(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_floating(kind)
    )


def lowest(bound: Any, kind: pa.DataType) -> Any:
    """The least value that a part with this ``minValues`` entry may hold."""
    if pa.types.is_string(kind):
        return bound.encode()
    if pa.types.is_timestamp(kind):
        moment = datetime.datetime.fromisoformat(bound.replace("Z", "+00:00"))
        return moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat(bound)
    if pa.types.is_floating(kind):
        return float(bound)
    return bound


def highest(bound: Any, kind: pa.DataType) -> Any:
    """The greatest value that a part with this ``maxValues`` entry may hold.

    Spark cuts a timestamp's maximum to its millisecond, so a value may lie up to one above.
    """
    value = lowest(bound, kind)
    if not pa.types.is_timestamp(kind):
        return value
    latest = datetime.datetime.max.replace(tzinfo=datetime.UTC)
    return min(value, latest - _MILLISECOND) + _MILLISECOND
