"""Which parts have old rows, by their statistics alone, and when rows of mixed parts are looked for."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from lakebed.errors import InvalidInput
from lakebed.log.actions import Part
from lakebed.log.deletion_vector import inline
from lakebed.log.snapshot import Snapshot
from lakebed.planning.time_to_live import check_time_to_live, mixed_are_due, moment_before, old_parts
from lakebed.schema.conversion import schema_to_json
from lakebed.schema.metadata import Metadata, Protocol
from lakebed.settings import TimeToLive, parse_settings, parse_time_to_live
from lakebed.sortkey.statistics_cache import StatisticsCache

AT, DAY = pa.timestamp("us", "UTC"), 86_400_000
SCHEMA = pa.schema([("id", pa.int64()), ("at", AT), ("day", pa.date32()), ("local", pa.timestamp("us"))])
NOW_MS = int(datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC).timestamp() * 1000)


def snapshot(parts: Mapping[str, Part], properties: Mapping[str, str] | None = None) -> Snapshot:
    configuration = {"lakebed.ttl": "at: 10 days", **(properties or {})}
    metadata = Metadata(id="t", schema_string=schema_to_json(SCHEMA), partition_columns=(), configuration=configuration)
    return Snapshot(version=1, timestamp_ms=0, protocol=Protocol(3, 7), metadata=metadata, parts=parts)


def part(path: str, low: str | None, high: str | None, nulls: int | None = 0, column: str = "at", **more: Any) -> Part:
    stats: dict[str, Any] = {"numRecords": 10}
    for member, value in (("minValues", low), ("maxValues", high), ("nullCount", nulls)):
        if value is not None:
            stats[member] = {column: value}
    return Part(path=path, rows=10, bytes=100, stats=orjson.dumps(stats).decode(), **more)


def found(parts: list[Part], column: str = "at", **properties: str) -> tuple[list[str], list[str]]:
    table = snapshot({each.path: each for each in parts}, properties)
    before = moment_before(TimeToLive(column, 10 * 86_400), SCHEMA.field(column), NOW_MS)
    planned = old_parts(table, column, before, NOW_MS, StatisticsCache())
    return [each.path for each in planned.old], [each.path for each in planned.mixed]


def test_a_part_is_old_if_all_its_rows_are_and_mixed_if_some_may_be() -> None:
    parts = [
        part("old", "2026-05-01T00:00:00Z", "2026-05-22T11:59:58Z"),
        part("at the moment", "2026-05-01T00:00:00Z", "2026-05-22T12:00:00Z"),
        part("within the millisecond that Spark cuts off", "2026-05-01T00:00:00Z", "2026-05-22T11:59:59.999Z"),
        part("mixed", "2026-05-01T00:00:00Z", "2026-05-30T00:00:00Z"),
        part("young", "2026-05-22T12:00:00Z", "2026-05-30T00:00:00Z"),
        part("old, with a null", "2026-05-01T00:00:00Z", "2026-05-02T00:00:00Z", nulls=1),
        part("nulls are not counted", "2026-05-01T00:00:00Z", "2026-05-02T00:00:00Z", nulls=None),
        part("nothing is known", None, None, None),
        Part(path="without statistics", rows=10, bytes=100),
    ]
    old, mixed = found(parts)
    assert old == ["old"]
    assert mixed == [each.path for each in parts if each.path not in ("old", "young")]


def test_a_date_is_old_when_its_day_is_and_a_time_without_a_zone_is_utc() -> None:
    days = [part(day, day, day, column="day") for day in ("2026-05-21", "2026-05-22")]
    assert found(days, "day") == (["2026-05-21"], [])
    times = [part(time, time, time, column="local") for time in ("2026-05-22T11:00:00", "2026-05-22T13:00:00")]
    assert found(times, "local") == (["2026-05-22T11:00:00"], [])


def test_the_value_of_a_partition_says_it_for_all_rows() -> None:
    values = {"old": "2026-05-21", "young": "2026-05-22", "null": None}
    parts = [Part(path=path, rows=1, bytes=1, partition_values={"day": value}) for path, value in values.items()]
    assert found(parts, "day") == (["old"], [])


def test_a_part_with_deletes_that_late_changes_must_meet_stays() -> None:
    bounds = "2026-05-01T00:00:00Z", "2026-05-02T00:00:00Z"
    deletes = {"deletes": 1, "deletion_vector": inline(BitMap64([1])), "has_op_column": True}
    parts = [part("kept", *bounds, modified_ms=NOW_MS, **deletes), part("gone", *bounds, modified_ms=0, **deletes)]
    keyed = {"lakebed.keys": '["id"]', "lakebed.sequence_by": "id"}
    assert found(parts, **keyed) == (["gone"], ["kept"])
    assert found(parts, **{"lakebed.keys": '["id"]'}) == (["kept", "gone"], [])


def test_a_part_without_a_live_row_is_left_to_others() -> None:
    dead = part("dead", "2026-05-01T00:00:00Z", "2026-05-02T00:00:00Z", deletion_vector=inline(BitMap64(range(10))))
    assert found([dead]) == ([], [])


@pytest.mark.parametrize(
    ("properties", "since_ms", "is_due"),
    [
        ({}, DAY, True),
        ({}, DAY - 1, False),
        ({"lakebed.ttl": "at: 100 minutes"}, 600_000, True),
        ({"lakebed.ttl": "at: 100 minutes"}, 599_999, False),
        ({"lakebed.off_peak": "11:00-13:00"}, DAY, True),
        ({"lakebed.off_peak": "22:00-06:00"}, 30 * DAY, False),
    ],
)
def test_mixed_parts_are_read_once_a_day_and_off_peak(properties: dict[str, str], since_ms: int, is_due: bool) -> None:
    assert mixed_are_due(snapshot({}, properties), NOW_MS - since_ms, NOW_MS) is is_due


@pytest.mark.parametrize("text", ["90 days", "at:", "at: 0 days", "at: soon", ": 3 days", "at 90 days", "at: -1 days"])
def test_a_time_to_live_is_a_column_and_an_interval(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"lakebed.ttl is .* it must be a column and how long rows live"):
        parse_settings({"lakebed.ttl": text})


@pytest.mark.parametrize(
    ("text", "again"), [("at: 90 days", "at: 90 days"), ("a:b :1 week 1 second", "a:b: 604801 seconds")]
)
def test_a_time_to_live_is_written_as_it_is_read(text: str, again: str) -> None:
    ttl = parse_time_to_live(text)
    assert str(ttl) == again and parse_time_to_live(str(ttl)) == ttl
    assert parse_settings({"lakebed.ttl": ""}).ttl is None


def test_the_column_is_one_of_the_table_and_has_moments() -> None:
    check_time_to_live(TimeToLive("day", 1), SCHEMA)
    with pytest.raises(InvalidInput, match="'dya' is no column of the table; did you mean 'day'"):
        check_time_to_live(TimeToLive("dya", 1), SCHEMA)
    with pytest.raises(InvalidInput, match="the column is int64; rows live from a date or a timestamp on"):
        check_time_to_live(TimeToLive("id", 1), SCHEMA)
