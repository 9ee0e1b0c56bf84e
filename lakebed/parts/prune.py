"""Leaving parts out by their statistics. Exact in one direction: a part left out has no matching row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lakebed.manifest.actions import Part
from lakebed.sortkey.statistics import comparable, highest, lowest, parsed_stats


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
        if last < lowest(low, kind) or first > highest(high, kind):
            return False
    return True
