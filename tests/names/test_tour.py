"""The statements of the README, on the table that its pipeline makes."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.guides.orders import orders_table
from tests.guides.pages import blocks_of
from tests.names.conftest import Sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def test_the_tour_of_the_readme(spark: SparkSession, sql: Sql, tmp_path: Path) -> None:
    table = orders_table(tmp_path / "orders")
    before, third = table.to_arrow(), table.to_arrow(version=3)
    [lost, came_back] = [row["order_id"] for row in before.slice(0, 2).to_pylist()]
    spark.createDataFrame([(came_back,)], "order_id long").createOrReplaceTempView("returned")
    [tour] = [block.text for block in blocks_of("README.md") if block.language == "sql"]
    answers = [sql(one.replace("= 17", f"= {lost}")) for one in filter(str.strip, tour.split(";\n"))]

    sums: dict[str, Decimal] = {}
    for row in before.to_pylist():
        sums[row["region"]] = sums.get(row["region"], Decimal(0)) + row["amount"]
    assert dict(answers[0]) == sums
    assert answers[3] == [(len(third),)]
    changed = {lost: "lost", came_back: "returned"}
    expected = {row["order_id"]: changed.get(row["order_id"], row["status"]) for row in before.to_pylist()}
    assert dict(zip(*table.to_arrow(["order_id", "status"]).to_pydict().values(), strict=True)) == expected
    assert table.inspect.detail()["tail_parts"].to_pylist() == [0], "it was settled"
