"""Parquet files whose early dates and timestamps are in the calendar that Spark 2 and Hive had.

That calendar is Julian before 15 October 1582, so a day before it has another number than in Parquet's own calendar: between two
days less and ten days more. Timestamps before 1900 were also converted with other offsets of time zones than today. Spark
says in the footer of a file how it was written, and converts such values when it reads them; no other reader does. Where a
footer says nothing, all readers take the numbers as they are, and so does lakebed.

The rules are those of Spark 4 (``DataSourceUtils.datetimeRebaseSpec``), with two more marks: that of versions of Spark that did
not write their number yet, and that of Hive.

In files of others that a table takes over, such values would become permanent with the first merge. Files of that calendar whose
dates are all from later on are as good as any. So each column of such a file is looked at (``legacy_column``): its bounds in the
log and in the footer, else its values. Timestamps of twelve bytes (INT96), which Spark 2 wrote, have no bounds in a footer.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.far_times import DAY_MICROS, PER_SECOND, has_times
from lakebed.log.actions import Part
from lakebed.quoting import literal, quote
from lakebed.sortkey.statistics import lowest, parsed_stats
from lakebed.sql import file_literal

_BATCH_ROWS = 65_536
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

_SPARK = "org.apache.spark."
_VERSION, _ZONE, _ROW = f"{_SPARK}version", f"{_SPARK}timeZone", f"{_SPARK}sql.parquet.row.metadata"
_HIVE = "writer.date.proleptic"
_KEYS = (_VERSION, _ZONE, _ROW, _HIVE, f"{_SPARK}legacyDateTime", f"{_SPARK}legacyINT96")
"""The members of a footer's metadata that matter."""
_GREGORIAN_DAY = -141_427  # 15 October 1582
_SAME_OFFSETS = -25_567 * DAY_MICROS  # 1 January 1900
_UTC = frozenset(["UTC", "Etc/UTC", "GMT", "Z"])


@dataclass(frozen=True, slots=True)
class LegacyCalendar:
    """Which values of a file are in the old calendar.

    ``first_micros``: the first timestamp that is the same in both. ``is_marked``: Spark knows it, and converts the values.
    """

    writer: str
    dates: bool
    timestamps: bool
    first_micros: int
    is_marked: bool = True

    def may_have_old(self, kind: pa.DataType) -> bool:
        """Whether a column of this type may have values that the calendars differ about."""
        if pa.types.is_nested(kind):
            return any(self.may_have_old(kind.field(at).type) for at in range(kind.num_fields))
        return bool((self.dates and pa.types.is_date(kind)) or (self.timestamps and pa.types.is_timestamp(kind)))

    def has_old(self, values: pa.Array) -> bool:
        """Whether there is such a value among these, at any depth. Timestamps may have any unit."""
        kind, t = values.type, pa.types
        if not self.may_have_old(kind):
            return False
        if t.is_struct(kind):
            return any(map(self.has_old, values.flatten()))
        if t.is_map(kind):
            begin, end = (values.offsets[at].as_py() for at in (0, -1)) if len(values) else (0, 0)
            return self.has_old(values.keys[begin:end]) or self.has_old(values.items[begin:end])
        if t.is_nested(kind):
            return self.has_old(values.flatten())
        least = pc.min(values.cast(pa.int32() if t.is_date32(kind) else pa.int64())).as_py()
        return least is not None and self.is_old(least, kind)

    def is_old(self, number: int, kind: pa.DataType) -> bool:
        """Whether it is such a date, in days, or timestamp, in ticks of its type."""
        if pa.types.is_date(kind):
            return number < _GREGORIAN_DAY
        return number < self.first_micros * PER_SECOND[kind.unit] // 1_000_000


def legacy_calendar(metadata: Mapping[str, str], has_int96: bool) -> LegacyCalendar | None:
    """What a footer's metadata says; None if all is in Parquet's calendar, or nothing is said.

    ``has_int96``: whether timestamps of the file are stored as INT96, for which Spark has a mark of its own.
    """
    version = metadata.get(_VERSION)
    first = _GREGORIAN_DAY * DAY_MICROS if metadata.get(_ZONE) in _UTC else _SAME_OFFSETS
    if version is not None:
        dates = _is_before(version, 3, 0) or f"{_SPARK}legacyDateTime" in metadata
        timestamps = (_is_before(version, 3, 1) or f"{_SPARK}legacyINT96" in metadata) if has_int96 else dates
        return LegacyCalendar(f"Spark {version}", dates, timestamps, first) if dates or timestamps else None
    writer = "Hive" if metadata.get(_HIVE) == "false" else "an old version of Spark" if _ROW in metadata else None
    return None if writer is None else LegacyCalendar(writer, True, True, first, is_marked=False)


def _is_before(version: str, major: int, minor: int) -> bool:
    numbers = version.split(".")
    try:
        return (int(numbers[0]), int(numbers[1])) < (major, minor)
    except (ValueError, IndexError):  # none of Spark's own
        return version < f"{major}.{minor}"


@dataclass(frozen=True, slots=True)
class _LegacyColumn:
    """A column with such dates; ``remedy``: what to do with the table."""

    what: str
    remedy: str


def legacy_marks(urls: Sequence[str], connection: duckdb.DuckDBPyConnection) -> Mapping[str, Mapping[str, str]]:
    """What footers say of the calendar, by URL; files of which they say nothing are left out. Raises what DuckDB raises."""
    keys = ", ".join(f"{literal(key)}::blob" for key in _KEYS)
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
