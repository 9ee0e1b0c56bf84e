"""How well a table is clustered, as an Arrow table and as a picture; ``sortkey.ranges`` explains the figures."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.far_times import iso_text, year_text
from lakebed.log.snapshot import Snapshot, parts_to_resort
from lakebed.notebook import new_figure, save
from lakebed.sortkey.ranges import NAN, NAN_MIRRORED, TOP, Bound, Clustering, DeepRange, Placed, clustering, plain_value
from lakebed.sortkey.sort_key import SortTerm
from lakebed.sortkey.statistics_cache import StatisticsCache

_CLUSTERING_SCHEMA = pa.schema(
    [
        ("level", pa.int32()),
        ("cluster_by", pa.string()),
        ("total_part_count", pa.int64()),
        ("constant_part_count", pa.int64()),
        ("unsorted_part_count", pa.int64()),
        ("waiting_part_count", pa.int64()),
        ("waiting_part_reads", pa.int64()),
        ("average_overlaps", pa.float64()),
        ("average_depth", pa.float64()),
        ("max_depth", pa.int64()),
        ("part_depth_histogram", pa.map_(pa.int64(), pa.int64())),
        ("deepest", pa.list_(pa.struct([("depth", pa.int64()), ("from", pa.string()), ("to", pa.string())]))),
    ]
)
_PARTS_DRAWN_MAX = 5_000


def clustering_information(
    snapshot: Snapshot, reads: Mapping[str, int], statistics: StatisticsCache | None = None
) -> pa.Table:
    """One row per level (CLUSTERING_SCHEMA); the first row is of all levels together, and its level is null.

    Parts that an earlier sort key sorted are waiting to be sorted again. ``reads``: by path, how often parts were read in
    the last hour. ``statistics``: a cache of the parts' statistics.
    """
    order, terms = _order(snapshot), _terms(snapshot)
    parts = placed(snapshot, statistics)
    levels = sorted({part.level for part in parts})
    found: list[tuple[int | None, Clustering]] = [(None, clustering(parts))]
    found += [(level, clustering([part for part in parts if part.level == level])) for level in levels]
    rows = [_row(level, order, terms, of_level) for level, of_level in found]
    waiting = parts_to_resort(snapshot)
    for row in rows:
        here = [part for part in waiting if row["level"] in (None, part.level)]
        row["waiting_part_count"] = len(here)
        row["waiting_part_reads"] = sum(reads.get(part.path, 0) for part in here)
    return pa.Table.from_pylist(rows, _CLUSTERING_SCHEMA)


def placed(snapshot: Snapshot, statistics: StatisticsCache | None = None) -> list[Placed]:
    """The parts of the base with their ranges from the statistics. Raises InvalidInput for a table without an order."""
    statistics = StatisticsCache() if statistics is None else statistics
    parts = list(snapshot.parts.values())
    ranges = statistics.ranges([part.stats for part in parts], _terms(snapshot)).ranges
    return [
        Placed(
            level=part.level,
            partition=part.partition_key,
            range=reach,
            sorted=part.sort_key_version == snapshot.settings.sort_key_version,
        )
        for part, reach in zip(parts, ranges, strict=True)
    ]


def draw(snapshot: Snapshot, file: str, statistics: StatisticsCache | None = None) -> None:
    """Draw a PNG: each part is a bar over the sort key, level by level; below is the number of parts at each point.

    The sort key is drawn by rank: neighbouring ends of parts are one step apart. Raises InvalidInput, MissingPrerequisite.
    """
    parts = placed(snapshot, statistics)
    if len(parts) > _PARTS_DRAWN_MAX:
        raise InvalidInput(f"{len(parts):,} parts are more than a picture shows ({_PARTS_DRAWN_MAX:,})")
    figure = new_figure(11, 7)
    bars, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    ends = sorted(
        {(part.partition, end) for part in parts for end in (part.range.lower, part.range.upper)}, key=_in_order
    )
    at = {end: place for place, end in enumerate(ends)}
    cover = [0] * (len(ends) + 1)
    height = 0
    for level in sorted({part.level for part in parts}, reverse=True):
        rows: list[int] = []  # for each row of bars, where its last bar ends
        of_level = [part for part in parts if part.level == level]
        for part in sorted(of_level, key=lambda part: at[part.partition, part.range.lower]):
            first, last = at[part.partition, part.range.lower], at[part.partition, part.range.upper]
            row = next((number for number, end in enumerate(rows) if end < first), len(rows))
            rows[row : row + 1] = [last]
            bars.barh(height + row, last - first + 0.8, left=first - 0.4, height=0.8, color=f"C{level % 10}")
            cover[first] += 1
            cover[last + 1] -= 1
        bars.text(-0.5, height + len(rows) / 2 - 0.5, f"level {level} ", ha="right", va="center")
        height += len(rows) + 1
    bars.set_yticks([])
    depth, running = [], 0
    for change in cover[:-1]:
        running += change
        depth.append(running)
    below.step(range(len(depth)), depth, where="mid")
    below.set_ylabel("depth")
    below.set_ylim(bottom=0)
    below.set_xlabel(f"{', '.join(_order(snapshot))}, in order")
    figure.suptitle(f"{len(parts):,} parts at version {snapshot.version}")
    save(figure, file)


def _order(snapshot: Snapshot) -> tuple[str, ...]:
    order = snapshot.logical_settings.order_by
    if not order:
        raise InvalidInput("the table has neither a sort key nor keys, so its parts lie in no order")
    return order


def _terms(snapshot: Snapshot) -> tuple[SortTerm, ...]:
    _order(snapshot)
    return snapshot.order_terms


def _row(level: int | None, order: tuple[str, ...], terms: tuple[SortTerm, ...], found: Clustering) -> dict[str, Any]:
    return {
        "level": level,
        "cluster_by": f"({', '.join(order)})",
        "total_part_count": found.parts,
        "constant_part_count": found.constant,
        "unsorted_part_count": found.unsorted,
        "average_overlaps": found.average_overlaps,
        "average_depth": found.average_depth,
        "max_depth": found.max_depth,
        "part_depth_histogram": list((found.histogram or {}).items()),
        "deepest": [_deep(deep, terms) for deep in found.deepest],
    }


def _deep(found: DeepRange, terms: tuple[SortTerm, ...]) -> dict[str, Any]:
    return {"depth": found.depth, "from": readable(found.range.lower, terms), "to": readable(found.range.upper, terms)}


def readable(bound: Bound, terms: tuple[SortTerm, ...]) -> str:
    """A bound of these terms as text: ``(north, 2026-01-31)``; null is NULL, and a term without a known bound is …."""
    texts = []
    for place, term in zip(range(0, len(bound), 2), terms, strict=False):
        if bound[place : place + 2] == TOP:
            texts.append("…")
        elif bound[place : place + 2] in (NAN, NAN_MIRRORED):
            texts.append("NaN")
        elif bound[place + 1] is None:
            texts.append("NULL")
        else:
            texts.append(_text(plain_value(bound[place + 1], term), term))
    return f"({', '.join(texts)})" if texts else "(…)"


def _text(value: Any, term: SortTerm) -> str:
    match term.function:
        case "year":
            return year_text(1970 + value)
        case "month":
            return f"{year_text(1970 + value // 12)}-{value % 12 + 1:02}"
        case "day":
            return iso_text(value, pa.date32())
        case "hour":
            return f"{iso_text(value // 24, pa.date32())} {value % 24:02}:00"
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def _in_order(end: tuple[object, Bound]) -> tuple[str, Bound]:
    return str(end[0]), end[1]
