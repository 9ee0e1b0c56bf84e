"""A selective read of a merged table touches the row groups that may match, by DuckDB and by Spark.

All other row groups are made unreadable, so a read that needs them can't go unnoticed.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakebed
from lakebed.parts.write import ROW_GROUP_ROWS
from lakebed.storage.engine import connect
from tests.view.damage import UNVERIFIED, keep_row_groups

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("ts", pa.int64()), ("x", pa.float64())])
GROUPS = 6
ROWS = GROUPS * ROW_GROUP_ROWS
IDS = np.random.default_rng(1).permutation(10 * ROWS)[:ROWS]
PLACE = 100_000  # a row of the third row group


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    """Sorted by ``ts``, which is the row's number; keys are scattered."""
    properties = {"lakebed.read_budget": "1", **UNVERIFIED}
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id", "name"], sort_key=["ts"], properties=properties)
    rows = {"id": IDS, "name": [f"{id:x}" for id in IDS], "ts": range(ROWS), "x": [0.5] * ROWS}
    for remainder in range(2):
        half = pa.table(rows, SCHEMA).filter(pa.array(np.arange(ROWS) % 2 == remainder))
        table.apply(half)
    table.settle()
    table.maintenance.compact()
    assert table.inspect.parts()["rows"].to_pylist() == [ROWS]
    return table


def part_of(table: lakebed.Table) -> Path:
    [part] = table.inspect.parts()["path"].to_pylist()
    return Path(table.path, part)


def row_groups_read(table: lakebed.Table, where: str) -> int:
    explained = table.query(f"explain analyze select * from t where {where}")[1][0].as_py()
    return sum(int(count) for count in re.findall(r"Row Groups Scanned: (\d+)", explained))


def admitted(part: Path, column: str, value: object) -> set[int]:
    """The row groups whose Bloom filter does not rule the value out."""
    probe = f"select row_group_id from parquet_bloom_probe('{part}', '{column}', $1) where not bloom_filter_excludes"
    return {number for (number,) in connect().execute(probe, [value]).fetchall()}


def test_a_range_of_the_leading_sort_column_is_read_by_its_row_groups(
    table: lakebed.Table, spark: SparkSession
) -> None:
    keep_row_groups(part_of(table), {2, 3})
    where = f"ts between {2 * ROW_GROUP_ROWS} and {4 * ROW_GROUP_ROWS - 1}"
    assert row_groups_read(table, where) == 2
    assert table.to_arrow(where=where).num_rows == 2 * ROW_GROUP_ROWS
    assert table.read(spark).where(where).selectExpr("sum(x)").collect()[0][0] == ROW_GROUP_ROWS
    few = f"ts in (select unnest([{PLACE}, {PLACE + 30_000}]))"
    assert row_groups_read(table, few) == 2


@pytest.mark.parametrize("column", ["id", "name"])
def test_a_key_that_does_not_lead_the_order_is_found_by_bloom_filters(
    table: lakebed.Table, spark: SparkSession, column: str
) -> None:
    key = int(IDS[PLACE]) if column == "id" else f"{IDS[PLACE]:x}"
    kept = admitted(part_of(table), column, key)
    assert 2 in kept and len(kept) < GROUPS
    keep_row_groups(part_of(table), kept)
    where = f"{column} = {key!r}"
    assert row_groups_read(table, where) == len(kept)
    assert table.to_arrow(["ts"], where)["ts"].to_pylist() == [PLACE]
    assert table.lookup(pa.table({column: [key]}), ["ts"])["ts"].to_pylist() == [PLACE]
    frame = table.read(spark).where(where)
    assert [row.ts for row in frame.collect()] == [PLACE]
    assert rows_out_of_scan(frame) <= len(kept) * ROW_GROUP_ROWS


def rows_out_of_scan(frame: DataFrame) -> int:
    plan = frame._jdf.queryExecution().executedPlan()
    scan = plan.collectLeaves().head()
    return int(scan.metrics().get("numOutputRows").get().value())


def test_spark_reads_the_partitions_that_a_join_asks_for(tmp_path: Path, spark: SparkSession) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, sort_key=["id"], partition_by=["ts"])
    table.apply(pa.table({"id": range(40), "name": ["a"] * 40, "ts": np.repeat(range(4), 10), "x": [0.5] * 40}, SCHEMA))
    spark.range(4).selectExpr("id as ts", "id * 2 as twice").write.parquet(str(tmp_path / "small"))
    spark.read.parquet(str(tmp_path / "small")).createOrReplaceTempView("small")
    table.create_view(spark, "large")
    frame = spark.sql(
        "select /*+ broadcast(small) */ large.id from large join small on large.ts = small.ts where small.twice = 4"
    )
    for part in table.inspect.parts().to_pylist():
        if part["partition"] != [("ts", "2")]:
            (tmp_path / "t" / part["path"]).unlink()
    assert sorted(row.id for row in frame.collect()) == list(range(20, 30))


def test_only_keys_that_do_not_lead_the_order_have_bloom_filters(tmp_path: Path) -> None:
    rows = pa.table({"id": range(100), "name": [str(id) for id in range(100)], "ts": range(100), "x": [0.5] * 100})
    for sort_key, filtered in ((["ts"], {"id", "name"}), (["id", "ts"], {"name"}), (["name desc"], {"id"})):
        path = tmp_path / "-".join(sort_key)
        table = lakebed.create(path, SCHEMA, ["id", "name"], sort_key, properties={"lakebed.read_budget": "1"})
        for start in (0, 1):
            table.apply(rows.take(list(range(start, 100, 2))))
        table.settle()
        assert all(with_filter(path / part) == set() for part in table.inspect.parts()["path"].to_pylist())
        table.maintenance.compact()
        assert with_filter(part_of(table)) == filtered


def with_filter(part: Path) -> set[str]:
    assert pq.read_metadata(part).num_row_groups == 1
    query = f"select path_in_schema from parquet_metadata('{part}') where bloom_filter_offset is not null"
    return {name for (name,) in connect().execute(query).fetchall()}
