"""Which parts have rows whose time to live has ended, by the statistics of the parts. Pure.

A row is old if its column of ``lakebed.ttl`` is before a moment: now, less the time to live. A row without a value never is. A
date counts as the end of its day, a time without a zone is UTC.

1. A part is *old* if all its rows are: its greatest value is before the moment and none is null. It leaves the base as it is.
2. A part is *mixed* if some of its rows may be old: its least value is before the moment, or is not known. Its column is read.
3. Parts whose deletes late changes must still meet are mixed at most: they stay, with all rows dead.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.log.actions import Part
from lakebed.log.snapshot import Snapshot
from lakebed.settings import TimeToLive, suggest
from lakebed.sortkey.statistics import highest, lowest, parsed_stats
from lakebed.sortkey.statistics_cache import StatisticsCache

_SLACK_SECONDS = 86_400
"""How much longer rows of mixed parts may live, but not more than a tenth of their time: so a part is read once for many rows."""

Moment: TypeAlias = datetime.datetime | datetime.date


@dataclass(frozen=True, slots=True)
class OldParts:
    """Parts all of whose rows are old, and parts some of whose rows may be; in the order of the base."""

    old: tuple[Part, ...]
    mixed: tuple[Part, ...]


def check_time_to_live(ttl: TimeToLive | None, schema: pa.Schema) -> None:
    """Raises InvalidInput if the column is none of the table's, or has no moments. ``schema`` has the names that ``ttl`` has."""
    if ttl is None:
        return
    if ttl.column not in schema.names:
        raise InvalidInput(
            f"lakebed.ttl is {str(ttl)!r}, and {ttl.column!r} is no column of the table{suggest(ttl.column, schema.names)}"
        )
    kind = schema.field(ttl.column).type
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise InvalidInput(
            f"lakebed.ttl is {str(ttl)!r}, and the column is {kind}; rows live from a date or a timestamp on"
        )


def moment_before(ttl: TimeToLive, field: pa.Field, now_ms: int) -> Moment:
    """The moment before which a value of the column is old."""
    moment = datetime.datetime.fromtimestamp(now_ms // 1000, datetime.UTC) - datetime.timedelta(seconds=ttl.seconds)
    return moment.date() if pa.types.is_date(field.type) else moment


def old_parts(snapshot: Snapshot, column: str, before: Moment, now_ms: int, statistics: StatisticsCache) -> OldParts:
    """The parts with rows whose column (by its stored name) is before a moment."""
    field, parts = snapshot.schema.field(column), list(snapshot.parts.values())
    lows, highs = _bounds(parts, field, statistics)
    old, mixed = [], []
    for part, low, high in zip(parts, lows, highs, strict=True):
        if part.live_rows == 0 or (low is not None and not low < before):
            continue
        is_old = high is not None and high < before and _has_no_null(part, field.name)
        if is_old and not snapshot.keeps_deletes(part, now_ms):
            old.append(part)
        elif low is not None or not _is_partition_null(part, field.name):
            mixed.append(part)
    return OldParts(tuple(old), tuple(mixed))


def mixed_are_due(snapshot: Snapshot, done_until_ms: int, now_ms: int) -> bool:
    """Whether rows of mixed parts are to be looked for again: in the off-peak hours, if the table has such hours.

    ``done_until_ms``: when they were last looked for.
    """
    settings = snapshot.settings
    assert settings.ttl is not None
    slack_ms = min(_SLACK_SECONDS, settings.ttl.seconds // 10) * 1000
    is_time = settings.off_peak is None or settings.off_peak.contain(now_ms)
    return is_time and now_ms - done_until_ms >= slack_ms


def _bounds(parts: Sequence[Part], field: pa.Field, statistics: StatisticsCache) -> tuple[list[Any], list[Any]]:
    """Least and greatest value of each part, None where it is not known."""
    low, high = (ends.to_pylist() for ends in statistics.bounds([part.stats for part in parts], field))
    for at, part in enumerate(parts):
        if field.name in part.partition_values:
            text = part.partition_values[field.name]
            low[at], high[at] = (lowest(text, field.type), highest(text, field.type)) if text else (None, None)
    return [_aware(value) for value in low], [_aware(value) for value in high]


def _aware(value: Any) -> Any:
    return value.replace(tzinfo=datetime.UTC) if isinstance(value, datetime.datetime) and not value.tzinfo else value


def _has_no_null(part: Part, column: str) -> bool:
    if column in part.partition_values:
        return True
    return bool(part.stats) and parsed_stats(part.stats or "").get("nullCount", {}).get(column) == 0


def _is_partition_null(part: Part, column: str) -> bool:
    return column in part.partition_values and not part.partition_values[column]
