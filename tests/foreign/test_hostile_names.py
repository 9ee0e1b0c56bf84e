"""A column may be called as the columns that engines add by themselves: every reader reads it, through deletion vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import lakebed
from tests.foreign.readers import all_agree, comparable
from tests.table.test_hostile_names import groups, ticked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.infra.foreign_duckdb import ForeignDuckDB

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_every_reader_reads_columns_of_any_name(
    tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB
) -> None:
    names = [name for group in groups() for name in group]
    key, place, *others = names
    rows = pa.table({key: [1, 2, 3], place: ["x", "y", "x"]} | {name: [700, 701, 702] for name in others})
    table = lakebed.create(tmp_path / "t", rows.schema, keys=[key], partition_by=[place])
    table.apply(rows)
    table.settle()
    changed = rows.slice(0, 1).set_column(2, others[0], pa.array([703]))
    table.apply(spark.createDataFrame(changed))
    expected = pa.concat_tables([changed, rows.slice(1)])
    assert comparable(table.read(spark).toArrow(), table.schema) == comparable(expected, table.schema), "in the tail"
    table.settle()
    assert all_agree(table, spark, duckdb_delta) == comparable(expected, table.schema)
    for name in others[1:]:
        found = table.read(spark).where(f"{ticked(name)} = 701")
        assert [row[0] for row in found.select(ticked(key)).collect()] == [2], name
