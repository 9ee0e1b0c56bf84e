"""Leaving parts out by a predicate: never one with a matching row, and those that plainly have none."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lakebed
from lakebed.parts.part_filter import parts_that_may_match
from lakebed.parts.write import delta_stats
from lakebed.sortkey.statistics_cache import StatisticsCache
from lakebed.sql import expression
from lakebed.storage.engine import connect
from lakebed.view.arrow_scan import ScanFile
from tests.worlds import examples

SCHEMA = pa.schema(
    [
        ("i", pa.int64()), ("small", pa.int16()), ("s", pa.string()), ("f", pa.float64()), ("r", pa.float32()),
        ("d", pa.date32()), ("ts", pa.timestamp("us", "UTC")), ("ntz", pa.timestamp("us")),
        ("n", pa.decimal128(12, 2)), ("flag", pa.bool_()),
    ]
)  # fmt: skip
UTC = datetime.UTC
MOMENTS = [
    datetime.datetime(2024, 1, 1, 0, 0, 0, 1), datetime.datetime(2024, 1, 1, 0, 0, 0, 999),
    datetime.datetime(2024, 1, 1), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime.datetime(9999, 12, 31),
]  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "i": [0, 5, 9, 10, -3, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)],
    "small": [0, 9, 10, -32768, 32767],
    "s": ["", "9", "10", "a", "A", "ü", "z" * 40, "\U0010ffff" * 3, "it's"],
    "f": [0.0, -0.0, 0.1, 1.5, 9007199254740992.0, math.inf, -math.inf, math.nan, 1e-300],
    "r": [0.0, -0.0, 0.1, 16777216.0, math.nan],
    "d": [datetime.date(2024, 1, 1), datetime.date(1969, 12, 31), datetime.date(9999, 12, 31)],
    "ts": [moment.replace(tzinfo=UTC) for moment in MOMENTS],
    "ntz": MOMENTS,
    "n": [
        decimal.Decimal("0.00"),
        decimal.Decimal("9.99"),
        decimal.Decimal("10.00"),
        decimal.Decimal("-9999999999.99"),
    ],
    "flag": [True, False],
}
CONSTANTS = [
    "0", "5", "10", "-3", "16777217", "9007199254740993", "9223372036854775807", "9" * 40,
    "1.5", "0.1", "9.99", "9.995", "1e3", "9007199254740992.0", "1e300",
    "null", "true", "'5'", "'10'", "''", "'a'", "'ü'", "'it''s'",
    "'2024-01-01'", "date '2024-01-01'", "timestamp '2024-01-01 00:00:00.000001'", "'2024-01-01 00:00:00.000999'::timestamptz",
    "'2024-1-1'", "'nan'::double", "i", "1 + 1", "'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz'",
]  # fmt: skip
column = st.sampled_from(SCHEMA.names)
constant = st.sampled_from(CONSTANTS)
leaf = st.one_of(
    st.builds("{} {} {}".format, column, st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]), constant),
    st.builds("{} {} {}".format, constant, st.sampled_from(["=", "<", "<=", ">", ">="]), column),
    st.builds("{} between {} and {}".format, column, constant, constant),
    st.builds(
        lambda name, listed: f"{name} in ({', '.join(listed)})", column, st.lists(constant, min_size=1, max_size=3)
    ),
    st.builds("{} is null".format, column),
)
predicate = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=4,
)
row = st.fixed_dictionaries({name: st.none() | st.sampled_from(VALUES[name]) for name in SCHEMA.names})


def part_of(rows: list[dict[str, Any]], number: int, folder: Path) -> ScanFile:
    """The statistics are those of the writer of parts."""
    table = pa.Table.from_pylist(rows, SCHEMA)
    connection = connect()
    connection.register("rows", table)
    copied = connection.execute(f"copy (select * from rows) to '{folder}/{number}' (format parquet, return_stats)")
    stats = delta_stats(len(rows), copied.fetchall()[0][4], SCHEMA)
    return ScanFile(path=f"_lakebed/{number}.parquet", bytes=1, rows=len(rows), stats=stats)


@pytest.mark.slow
@settings(examples(100), suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(row, min_size=1, max_size=3), min_size=2, max_size=3), predicate)
def test_no_part_with_a_matching_row_is_left_out(tmp_path: Path, parts: list[list[dict[str, Any]]], where: str) -> None:
    files = [part_of(rows, number, tmp_path) for number, rows in enumerate(parts)]
    kept = parts_that_may_match(connect(), files, SCHEMA, expression(where, "where"))
    numbered = [{**row, "part": number} for number, rows in enumerate(parts) for row in rows]
    table = pa.Table.from_pylist(numbered, SCHEMA.append(pa.field("part", pa.int64())))
    connection = connect()
    connection.register("t", table)
    connection.execute("create or replace temp table stored as select * from t")
    try:
        matching = {number for (number,) in connection.execute(f"select part from stored where ({where})").fetchall()}
    except duckdb.Error:
        return
    assert matching <= {files.index(file) for file in kept}


def stats(low: dict[str, Any], high: dict[str, Any]) -> str:
    return orjson.dumps({"numRecords": 1, "minValues": low, "maxValues": high}).decode()


FILES = [
    ScanFile(
        path="_lakebed/a.parquet",
        bytes=1,
        rows=1,
        stats=stats({"i": 0, "s": "a", "f": 0.5}, {"i": 9, "s": "c", "f": 1.5}),
    ),
    ScanFile(
        path="_lakebed/b.parquet",
        bytes=1,
        rows=1,
        stats=stats({"i": 10, "s": "d", "f": 2.5}, {"i": 19, "s": "f", "f": 3.5}),
    ),
    ScanFile(
        path="c.parquet",
        bytes=1,
        rows=1,
        partition_values={"s": "x"},
        stats=stats({"i": 20, "f": 4.5}, {"i": 29, "f": 5.5}),
    ),
    ScanFile(path="_lakebed/d.parquet", bytes=1, rows=1),
]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("i = 12", "bd"), ("I >= 10 and i < 20", "bd"), ("12 > i", "abd"), ("i between 5 and 9 -- few", "ad"),
        ("i in (3, 25)", "acd"), ("s = 'x'", "cd"), ("s <= 'd' and flag", "abd"), ("f > 3.0", "bcd"), ("f < 3.0", "abcd"),
        ("i = 3 or i = 25", "abcd"), ("not i = 12", "abcd"), ("i + 0 = 12", "abcd"), ("s > 5", "abcd"), ("i = null", "abcd"),
        ("i = 100", "d"), ("nothing = 3", "abcd"), ("i in (3, 2.5)", "abcd"),
    ],
)  # fmt: skip
def test_conditions_joined_by_and_leave_parts_out(where: str, kept: str) -> None:
    found = parts_that_may_match(connect(), FILES, SCHEMA, expression(where, "where"))
    assert "".join(file.path.removeprefix("_lakebed/")[0] for file in found) == kept


def test_what_was_read_of_statistics_is_kept_and_says_the_same_of_other_files() -> None:
    known, world = StatisticsCache(), random.Random(3)
    files: list[ScanFile] = []
    for number in range(30):
        low = world.randrange(100)
        made = stats({"i": low, "f": low / 4}, {"i": low + 9, "f": low / 4 + 1})
        folder = world.choice(("_lakebed/", ""))
        files = [file for file in files if world.random() < 0.9] + [
            ScanFile(
                path=f"{folder}{number}.parquet",
                bytes=1,
                rows=1,
                partition_values={"s": world.choice("xyz")},
                stats=made,
            ),
            ScanFile(path=f"_lakebed/{number}-b.parquet", bytes=1, rows=1, stats=made),
        ]
        sought = world.randrange(110)
        for where, wanted in (
            (f"i = {sought}", [file for file in files if holds(file, sought)]),
            (
                f"s = 'x' and i = {sought}",
                [file for file in files if holds(file, sought) and file.partition_values.get("s", "x") == "x"],
            ),
            (
                "f > 12.0",
                [file for file in files if bound(file, "max", "f") > 12 or not file.path.startswith("_lakebed/")],
            ),
        ):
            assert parts_that_may_match(connect(), files, SCHEMA, expression(where, "where"), known) == (
                wanted if len(files) > 1 else files
            )
    assert len(known) >= len({file.stats for file in files})


def holds(file: ScanFile, value: int) -> bool:
    return bound(file, "min", "i") <= value <= bound(file, "max", "i")


def bound(file: ScanFile, end: str, column: str) -> float:
    return float(orjson.loads(file.stats or "")[f"{end}Values"][column])


class Recording:
    """A connection that remembers the queries."""

    def __init__(self) -> None:
        self._connection = connect()
        self.queries: list[str] = []

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        self.queries.append(query)
        return self._connection.sql(query)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_a_long_list_of_constants_is_two_comparisons_with_the_bounds() -> None:
    files = [
        ScanFile(
            path=f"_lakebed/{i}.parquet",
            bytes=1,
            rows=1,
            stats=stats({"i": 1000 * i, "s": ""}, {"i": 1000 * i + 9, "s": "z"}),
        )
        for i in range(1000)
    ]
    listed = ", ".join(str(number) for number in range(400_000, 409_999))
    recording: Any = Recording()
    found = parts_that_may_match(recording, files, SCHEMA, expression(f"i in ({listed}) and s <> 'a'", "where"))
    assert [file.path for file in found] == [f"_lakebed/{i}.parquet" for i in range(400, 410)]
    [query] = recording.queries
    assert query.count("lo0") + query.count("hi0") <= 4, "not a condition for each constant"


def test_a_read_does_not_touch_the_parts_that_it_leaves_out(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("region", pa.string())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], partition_by=["region"])
    table.apply(pa.table({"id": [1, 2], "region": ["eu", "us"]}))
    table.apply(pa.table({"id": [1000], "region": ["eu"]}))
    table.settle()
    for part in table.inspect.parts().to_pylist():
        if part["partition"] == [("region", "us")] or part["min_block"] == 2:
            (tmp_path / "t" / part["path"]).unlink()
    assert table.to_arrow(where="region = 'eu' and id < 500").to_pylist() == [{"id": 1, "region": "eu"}]
