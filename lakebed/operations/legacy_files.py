"""Finds files of others with early dates in the calendar of Spark 2 and Hive (``parts.legacy_calendar``).

Only Spark converts them. All other readers show wrong days, and the first merge makes these permanent. Files of that
calendar whose dates are all from later on are as good as any. So each column of such a file is looked at: its bounds in the
log and in the footer, else its values. Timestamps of twelve bytes (INT96), which Spark 2 wrote, have no bounds in a footer.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from lakebed.far_times import DAY_MICROS, has_times
from lakebed.log.actions import Part
from lakebed.parts.legacy_calendar import KEYS, LegacyCalendar, legacy_calendar
from lakebed.quoting import literal, quote
from lakebed.sortkey.statistics import lowest, parsed_stats
from lakebed.sql.pieces import file_literal

_BATCH_ROWS = 65_536
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class _LegacyColumn:
    """A column with such dates; ``remedy``: what to do with the table."""

    what: str
    remedy: str


def legacy_marks(urls: Sequence[str], connection: duckdb.DuckDBPyConnection) -> Mapping[str, Mapping[str, str]]:
    """What footers say of the calendar, by URL; files of which they say nothing are left out. Raises what DuckDB raises."""
    keys = ", ".join(f"{literal(key)}::blob" for key in KEYS)
    found = f"select file_name, key, value from parquet_kv_metadata({_files(urls)}) where key in ({keys})"
    marks: dict[str, dict[str, str]] = {}
    for url, key, value in connection.execute(found).fetchall():
        marks.setdefault(url, {})[key.decode()] = value.decode("utf-8", "replace")
    return marks


def legacy_column(
    url: str,
    part: Part,
    columns: pa.Schema,
    marks: Mapping[str, Mapping[str, str]],
    connection: duckdb.DuckDBPyConnection,
) -> _LegacyColumn | None:
    """The first of the columns, which have their stored names, with an early date in the old calendar; None if there is none.

    Raises what DuckDB raises.
    """
    timed = [field for field in columns if has_times(field.type)]
    if not timed or url not in marks:
        return None
    kinds = connection.execute(f"select distinct type from parquet_schema({_files([url])})").fetchall()
    calendar = legacy_calendar(marks[url], has_int96=("INT96",) in kinds)
    if calendar is None:
        return None
    for field in timed:
        if not calendar.may_have_old(field.type) or _are_late(part, field, calendar):
            continue
        if _has_old(url, field, calendar, connection):
            where = f"the column {field.name!r} of {part.path}"
            what = f"{where} has early dates in the old calendar of {calendar.writer}, which only Spark reads"
            return _LegacyColumn(what, _remedy(calendar))
    return None


def _files(urls: Sequence[str]) -> str:
    return f"[{', '.join(map(file_literal, urls))}]"


def _are_late(part: Part, field: pa.Field, calendar: LegacyCalendar) -> bool:
    """Whether the log says that no value is old."""
    stats = parsed_stats(part.stats) if part.stats else {}
    bound = (stats.get("minValues") or {}).get(field.name)
    if bound is None or pa.types.is_nested(field.type):
        return False
    try:
        return not calendar.is_old(_number(lowest(bound, field.type)), field.type)
    except (ValueError, TypeError, AttributeError):  # another writer's way to write it, or a year that Python lacks
        return False


def _number(value: Any) -> int:
    """Days or microseconds since 1970."""
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // datetime.timedelta(microseconds=1)
    return int((value - _EPOCH.date()).days)


def _has_old(url: str, field: pa.Field, calendar: LegacyCalendar, connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether a value of the column is old. A file that lacks the column has none."""
    bounds = (
        "select try_cast(stats_min_value as timestamp), num_values - stats_null_count from "
        f"parquet_metadata({_files([url])}) where lower(path_in_schema) = {literal(field.name.lower())}"
    )
    if not pa.types.is_nested(field.type):
        ends = connection.execute(f"select epoch_us(low), filled from ({bounds}) as bounds(low, filled)").fetchall()
        if all(filled == 0 or low is not None for low, filled in ends):
            day = DAY_MICROS if pa.types.is_date(field.type) else 1
            return any(low is not None and calendar.is_old(low // day, field.type) for low, _ in ends)
    return has_old_value(url, field, calendar, connection)


def has_old_value(url: str, field: pa.Field, calendar: LegacyCalendar, connection: duckdb.DuckDBPyConnection) -> bool:
    """``legacy_column`` of one column, by a look at all its values."""
    columns = connection.execute(f"select * from read_parquet({_files([url])}) limit 0").description or ()
    stored = next((column for column, *_ in columns if column.lower() == field.name.lower()), None)
    if stored is None:
        return False
    values = connection.sql(f"select {quote(stored)} from read_parquet({_files([url])})").to_arrow_reader(_BATCH_ROWS)
    return any(calendar.has_old(batch.column(0)) for batch in values)


def _remedy(calendar: LegacyCalendar) -> str:
    modes = ("spark.sql.parquet.datetimeRebaseMode", "spark.sql.parquet.int96RebaseMode")
    settings = " and ".join(f"{mode}InWrite=CORRECTED" for mode in modes)
    if not calendar.is_marked:
        settings += ", " + " and ".join(f"{mode}InRead=LEGACY" for mode in modes)
    return (
        "write the table again with Spark (spark.read.format('delta').load(path).write.format('delta').mode('overwrite')"
        f".save(path) with {settings}), and then convert it"
    )
