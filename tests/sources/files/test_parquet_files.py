"""Rows of Parquet files: what the types of a file mean in the columns of a table, and which can't be read."""

from __future__ import annotations

import datetime
import decimal
import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.errors import InvalidChanges
from lakebed.sources.files import parquet_rows, reader
from tests.sources.files.folders import NOW, Process, in_groups, remarks

NS = 1_704_110_400_123_456_789
UTC = datetime.UTC
AT = datetime.datetime(2024, 1, 1, 12, 0, 0, 123456)
BEFORE = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)


def write(path: Path, columns: dict[str, Any], time: float = NOW, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    os.utime(path, (time, time))


def read(folder: Path, kind: pa.DataType, column: pa.Array, **options: Any) -> list[Any]:
    """The values of a column of a table into which a file was read."""
    table = lakebed.create(folder / "t", pa.schema([pa.field("n", pa.int64()), pa.field("v", kind)]))
    write(folder / "in" / "a.parquet", {"n": pa.array(range(len(column)), pa.int64()), "v": column}, **options)
    Process(table.path, folder / "in", "parquet").follow()
    return [row["v"] for row in sorted(table.to_arrow().to_pylist(), key=lambda row: row["n"])]


def quarantined(table: lakebed.Table) -> list[tuple[int, str]]:
    rows = lakebed.open(f"{table.path}_quarantine").to_arrow().to_pylist()
    return sorted((row["offset"], row["reason"]) for row in rows)


READABLE: list[tuple[pa.DataType, pa.Array, list[Any]]] = [
    (
        pa.timestamp("us", "UTC"), pa.array([NS, -1, None], pa.timestamp("ns", "UTC")),
        [AT.replace(tzinfo=UTC), BEFORE.replace(tzinfo=UTC), None],
    ),
    (pa.timestamp("us", "UTC"), pa.array([NS], pa.timestamp("ns", "Asia/Tokyo")), [AT.replace(tzinfo=UTC)]),
    (pa.timestamp("us", "UTC"), pa.array([NS, None], pa.timestamp("ns")), [AT.replace(tzinfo=UTC), None]),
    (pa.timestamp("us"), pa.array([NS, -1], pa.timestamp("ns")), [AT, BEFORE]),
    (pa.timestamp("us", "UTC"), pa.array([5], pa.timestamp("s")), [datetime.datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)]),
    (pa.int64(), pa.array([1, None], pa.uint64()), [1, None]),
    (pa.decimal128(20, 0), pa.array([2**64 - 1], pa.uint64()), [decimal.Decimal(2**64 - 1)]),
    (pa.int64(), pa.array([1], pa.uint32()), [1]),
    (pa.int32(), pa.array([7, -(2**31)], pa.int64()), [7, -(2**31)]),
    (pa.int8(), pa.array([7], pa.int64()), [7]),
    (pa.float64(), pa.array([1.5, None], pa.float16()), [1.5, None]),
    (pa.float32(), pa.array([1.5], pa.float16()), [1.5]),
    (pa.float64(), pa.array([3], pa.int32()), [3.0]),
    (pa.string(), pa.array([45_000_000_001, None], pa.time64("us")), ["12:30:00.000001", None]),
    (pa.string(), pa.array([45_000], pa.time32("ms")), ["00:00:45.000"]),
    (pa.string(), pa.array([uuid.UUID(int=1).bytes, None], pa.uuid()), [str(uuid.UUID(int=1)), None]),
    (pa.string(), pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    (pa.string(), pa.array(["ä"], pa.large_string()), ["ä"]),
    (pa.binary(), pa.array([b"12"], pa.binary(2)), [b"12"]),
    (pa.date32(), pa.array([0], pa.date32()), [datetime.date(1970, 1, 1)]),
    (pa.decimal128(10, 2), pa.array([decimal.Decimal("1.5")], pa.decimal128(5, 1)), [decimal.Decimal("1.50")]),
    (pa.int64(), pa.nulls(2), [None, None]),
    (
        pa.struct([("A", pa.int64()), ("at", pa.timestamp("us", "UTC"))]),
        pa.array([{"at": NS, "a": 1, "b": "x"}, None, {"at": None, "a": None, "b": None}],
                 pa.struct([("at", pa.timestamp("ns")), ("a", pa.int64()), ("b", pa.string())])),
        [{"A": 1, "at": AT.replace(tzinfo=UTC)}, None, {"A": None, "at": None}],
    ),
    (
        pa.list_(pa.struct([("t", pa.string())])),
        pa.array([[{"t": 1}, None], None, []], pa.large_list(pa.struct([("t", pa.time64("us"))]))),
        [[{"t": "00:00:00.000001"}, None], None, []],
    ),
    (
        pa.map_(pa.string(), pa.timestamp("us", "UTC")),
        pa.array([[("k", NS), ("l", None)], None, []], pa.map_(pa.string(), pa.timestamp("ns"))),
        [[("k", AT.replace(tzinfo=UTC)), ("l", None)], None, []],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "column", "expected"), READABLE, ids=lambda each: str(getattr(each, "type", each))[:40]
)
def test_values_keep_their_meaning_whatever_type_the_file_has(
    kind: pa.DataType, column: pa.Array, expected: list[Any], tmp_path: Path
) -> None:
    assert read(tmp_path, kind, column) == expected


def test_int96_is_read_beyond_what_nanoseconds_hold(tmp_path: Path) -> None:
    far = datetime.datetime(9999, 1, 2, tzinfo=UTC)
    given = pa.array([far.replace(tzinfo=None)], pa.timestamp("us"))
    assert read(tmp_path, pa.timestamp("us", "UTC"), given, use_deprecated_int96_timestamps=True) == [far]


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.int64(), pa.array(["1"])),
        (pa.string(), pa.array([1])),
        (pa.timestamp("us", "UTC"), pa.array([1], pa.int64())),
        (pa.timestamp("us"), pa.array([1], pa.timestamp("us", "UTC"))),
        (pa.timestamp("us", "UTC"), pa.array([1], pa.time64("us"))),
        (pa.int64(), pa.array([1], pa.time64("ns"))),
        (pa.date32(), pa.array(["2024-01-01"])),
        (pa.bool_(), pa.array([1], pa.int8())),
        (pa.string(), pa.array([1], pa.duration("s"))),
        (pa.binary(), pa.array([uuid.UUID(int=1).bytes], pa.uuid())),
        (pa.struct([("a", pa.int64())]), pa.array([{"a": "1"}])),
        (pa.struct([("a", pa.int64()), ("b", pa.int64())]), pa.array([{"a": 1, "c": 2}])),
        (pa.int64(), pa.array([[1]])),
    ],
    ids=str,
)
def test_a_type_that_means_something_else_ends_the_run_with_file_column_and_remedy(
    kind: pa.DataType, column: pa.Array, tmp_path: Path
) -> None:
    file = tmp_path / "in" / "a.parquet"
    why = rf"the file {file} can't be read: its column 'v' is .*, which can't be read as .*: give the column of the table another"
    with pytest.raises(InvalidChanges, match=why):
        read(tmp_path, kind, column)
    assert lakebed.open(tmp_path / "t").version == 0


@pytest.mark.parametrize(
    ("kind", "column", "why"),
    [
        (pa.int64(), pa.array([1, 2**63], pa.uint64()), "not in range"),
        (pa.int32(), pa.array([1, 2**40], pa.int64()), "not in range"),
        (pa.float32(), pa.array([1.0, 1e300]), "out of range"),
        (pa.decimal128(3, 0), pa.array([1, 1000], pa.int64()), "v"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_sends_its_row_to_the_quarantine_with_its_place(
    kind: pa.DataType, column: pa.Array, why: str, tmp_path: Path
) -> None:
    assert read(tmp_path, kind, column) == [1]
    [(offset, reason)] = quarantined(lakebed.open(tmp_path / "t"))
    assert offset == 1 and why in reason


def test_columns_go_by_name_whatever_case_and_others_are_told(tmp_path: Path) -> None:
    table = lakebed.create(
        tmp_path / "t",
        pa.schema([("Id", pa.int64()), ("a.b", pa.string()), ("s", pa.list_(pa.struct([("x", pa.int64())])))]),
    )
    write(
        tmp_path / "in" / "1.parquet",
        {"more": ["m"], "a.b": ["x"], "ID": [1], "a": [{"b": 5}], "S": [[{"X": 1, "y": 2}]]},
    )
    Process(table.path, tmp_path / "in", "parquet").follow()
    assert table.to_arrow().to_pylist() == [{"Id": 1, "a.b": "x", "s": [{"x": 1}]}]
    assert remarks(table) == {"unknown_field": ["a", "more", "s.element.y"]}
    write(tmp_path / "in" / "2.parquet", {"iD": [2], "ID": [3], "a.b": ["x"], "s": [None]})
    with pytest.raises(
        InvalidChanges, match=r"2.parquet can't be read: it has several columns that are 'Id' if case does not"
    ):
        Process(table.path, tmp_path / "in", "parquet").follow()


def test_a_file_that_lacks_a_column_is_refused_since_a_null_would_erase_a_value(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.string())]))
    write(tmp_path / "in" / "1.parquet", {"id": [1], "nam": ["x"]})
    with pytest.raises(
        InvalidChanges, match=r"1.parquet can't be read: it lacks the columns name, v; did you mean 'nam'\?; nulls"
    ):
        Process(table.path, tmp_path / "in", "parquet").follow()
    allowed = Process(table.path, tmp_path / "in", "parquet")
    allowed.reader.left_out = ("name", "v", "nam")
    allowed.follow()
    assert table.to_arrow().to_pylist() == [{"id": 1, "name": None, "v": None}] and remarks(table) == {}


def test_rows_keep_their_order_over_row_groups_batches_and_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SPLIT_BYTES", 300)
    monkeypatch.setattr(parquet_rows, "BATCH_ROWS", 7)
    table = lakebed.create(
        tmp_path / "t", pa.schema([pa.field("id", pa.int64(), False), ("v", pa.int64())]), keys=["id"]
    )
    write(tmp_path / "in" / "b.parquet", {"id": [0, 5], "v": [-1, -1]}, NOW - 1)
    write(tmp_path / "in" / "a.parquet", {"id": [n % 5 for n in range(100)], "v": range(100)}, row_group_size=11)
    process = Process(table.path, tmp_path / "in", "parquet", run=in_groups(1))
    document = process.plan()
    assert document is not None and len(process.reader.ranges({}, document)) > 3
    process.bring(document)
    assert process.rows() == {0: 95, 1: 96, 2: 97, 3: 98, 4: 99, 5: -1}
    for range_ in process.reader.ranges({}, document):
        for rows in process.reader.read(range_):
            assert rows["offset"].to_pylist() == [
                row["v"] if row["v"] >= 0 else n for n, row in enumerate(rows["row"].to_pylist())
            ]


def test_folders_give_values_and_their_column_may_be_missing_in_the_file(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))])
    table = lakebed.create(tmp_path / "t", schema)
    write(tmp_path / "in" / "day=2026-01-31" / "a.parquet", {"id": [1], "day": ["ignored"], "at": [None]})
    write(tmp_path / "in" / "day=__HIVE_DEFAULT_PARTITION__" / "b.parquet", {"id": [2], "at": pa.nulls(1)})
    write(tmp_path / "in" / "DAY=2026-02-01" / "at=2026-01-31 12%3A00%3A00" / "other=1" / "c.parquet", {"id": [3]})
    Process(table.path, tmp_path / "in", "parquet").follow()
    noon = datetime.datetime(2026, 1, 31, 12, tzinfo=UTC)
    expected = [(1, datetime.date(2026, 1, 31), None), (2, None, None), (3, datetime.date(2026, 2, 1), noon)]
    assert sorted(tuple(row.values()) for row in table.to_arrow().to_pylist()) == expected
    write(tmp_path / "in" / "day=soon" / "d.parquet", {"id": [4], "at": [None]})
    with pytest.raises(InvalidChanges, match="its folder day=soon has no value for the column 'day'"):
        Process(table.path, tmp_path / "in", "parquet").follow()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", pa.string())]))
    file = tmp_path / "in" / "a.parquet"
    write(
        file, {"id": range(1000), "v": ["x"] * 1000}, compression="none", write_page_checksum=True, use_dictionary=False
    )
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[500] ^= 4
    for data in (whole[:-10], b"no parquet", b"PAR1", bytes(flipped)):
        file.write_bytes(data)
        with pytest.raises(InvalidChanges, match=f"the file {file} can't be read: "):
            Process(table.path, tmp_path / "in", "parquet").follow()
    assert table.version == 0


@pytest.mark.parametrize(
    "more", [{"org.apache.spark.legacyDateTime": ""}, {"org.apache.spark.version": "2.4.8"}], ids=str
)
def test_times_of_the_old_calendar_are_refused_and_later_ones_read(more: dict[str, str], tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", pa.schema([("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))]))
    marks = {"org.apache.spark.version": "3.5.0", **more}

    def file(name: str, day: datetime.date, at: datetime.datetime) -> None:
        columns = pa.table({"day": [day], "at": pa.array([at], pa.timestamp("us", "UTC"))}).replace_schema_metadata(
            marks
        )
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(columns, tmp_path / "in" / name)

    file("1.parquet", datetime.date(1582, 10, 15), datetime.datetime(1900, 1, 1, tzinfo=UTC))
    Process(table.path, tmp_path / "in", "parquet").follow()
    file("2.parquet", datetime.date(1582, 10, 14), datetime.datetime(1900, 1, 1, tzinfo=UTC))
    with pytest.raises(
        InvalidChanges, match=r"2.parquet can't be read: its column 'day' has early dates .* old calendar of Spark"
    ):
        Process(table.path, tmp_path / "in", "parquet").follow()
    file("2.parquet", datetime.date(2000, 1, 1), datetime.datetime(1899, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidChanges, match="its column 'at' has early dates or timestamps"):
        Process(table.path, tmp_path / "in", "parquet").follow()
    assert len(table.to_arrow()) == 1
