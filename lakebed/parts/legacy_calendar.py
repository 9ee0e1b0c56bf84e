"""Parquet files whose early dates and timestamps are in the calendar that Spark 2 and Hive had.

That calendar is Julian before 15 October 1582, so a day before it has another number than in Parquet's own calendar: between two
days less and ten days more. Timestamps before 1900 were also converted with other offsets of time zones than today. Spark
says in the footer of a file how it was written, and converts such values when it reads them; no other reader does. Where a
footer says nothing, all readers take the numbers as they are, and so does lakebed.

The rules are those of Spark 4 (``DataSourceUtils.datetimeRebaseSpec``), with two more marks: that of versions of Spark that did
not write their number yet, and that of Hive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.far_times import DAY_MICROS, PER_SECOND

_SPARK = "org.apache.spark."
_VERSION, _ZONE, _ROW = f"{_SPARK}version", f"{_SPARK}timeZone", f"{_SPARK}sql.parquet.row.metadata"
_HIVE = "writer.date.proleptic"
KEYS = (_VERSION, _ZONE, _ROW, _HIVE, f"{_SPARK}legacyDateTime", f"{_SPARK}legacyINT96")
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
