"""While parts wait to be sorted by a new sort key, Spark's queries are counted where they are planned."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakebed
from lakebed.table import internals_of
from tests.internals import log_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    """Four parts of ten ids; one id of each part died."""
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties={"lakebed.count_reads": "on"})
    for start in range(0, 40, 10):
        table.apply(pa.table({"id": range(start, start + 10), "value": [0] * 10}, SCHEMA))
    table.apply(pa.table({"id": range(0, 40, 10), "value": [1] * 4}, SCHEMA))
    table.settle()
    return table


def reads(table: lakebed.Table) -> list[int]:
    """Reads of each part, oldest first."""
    found = internals_of(table).reads.of(log_of(table).refresh())
    parts = sorted(log_of(table).refresh().parts.values(), key=lambda part: (part.min_block, part.path))
    return [found.get(part.path, 0) for part in parts]


def test_each_query_counts_the_parts_that_it_can_not_leave_out_once(spark: SparkSession, table: lakebed.Table) -> None:
    table.set_sort_key(["value", "id"])
    frame = table.read(spark)
    assert reads(table) == [0, 0, 0, 0, 0], "nothing was asked yet"
    assert frame.where("id between 11 and 19").count() == 9
    assert reads(table) == [0, 1, 0, 0, 1]
    frame.createOrReplaceTempView("counted")
    for _ in range(3):
        assert spark.sql("select sum(value) from counted where id in (35, 36)").collect()[0][0] == 0
    assert reads(table) == [0, 1, 0, 3, 1]
    assert frame.count() == 40
    assert reads(table) == [1, 2, 1, 4, 2]


def test_a_view_of_maintenance_counts_from_the_change_of_the_key_until_all_is_sorted(
    spark: SparkSession, table: lakebed.Table
) -> None:
    table.create_view(spark, "kept")  # as running maintenance refreshes it
    spark.sql("select * from kept where id < 5").collect()
    table.set_sort_key(["value", "id"])
    internals_of(table).view.refresh(log_of(table).refresh())
    assert reads(table) == [0, 0, 0, 0, 0]
    spark.sql("select * from kept where id < 5").collect()
    assert reads(table) == [1, 0, 0, 0, 1]
    internals_of(table).reads.close()
    assert len(list(Path(table.path, "_lakebed/reads").glob("*.json"))) == 1
    table.maintenance.compact()
    internals_of(table).view.refresh(log_of(table).refresh())
    spark.sql("select * from kept where id < 5").collect()
    assert internals_of(table).reads.of(log_of(table).refresh()) == {}
    assert internals_of(table).reads.is_idle, "nothing is to be told any more"


def test_an_exchange_is_shared_by_two_frames_also_while_reads_are_counted(
    spark: SparkSession, table: lakebed.Table
) -> None:
    table.set_sort_key(["value", "id"])
    one, two = (table.read(spark).groupBy("value").count() for _ in range(2))
    frame = one.union(two)
    frame.collect()
    assert "ReusedExchange" in frame._jdf.queryExecution().executedPlan().toString()
