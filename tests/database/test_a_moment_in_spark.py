"""Spark reads all tables as of one moment, by DataFrames and by views."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import lakebed
from tests.database.bank import TOTAL, Bank, Copy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_joins_tables_as_of_one_moment(tmp_path: Path, spark: SparkSession) -> None:
    bank = Bank(random.Random(3))
    copy = Copy(tmp_path / "bank", bank)
    bank.transfer()
    assert copy.batch() is not None
    moment = lakebed.warehouse(copy.path).at()
    views = moment.create_views(spark)
    for _ in range(3):
        bank.transfer()
        copy.batch()
    assert views == {"checking": "public.checking", "savings": "public.savings", "transfers": "audit.transfers"}
    sql = "select (select sum(balance) from checking) + (select sum(balance) from savings), count(*) from transfers"
    assert tuple(spark.sql(sql).collect()[0]) == (TOTAL, 1)
    assert moment.read(spark, "audit.transfers").count() == 1
    assert set(lakebed.warehouse(copy.path).create_views(spark).values()) == set(views.values())
    assert tuple(spark.sql(sql).collect()[0]) == (TOTAL, 4)
    for view in views:
        spark.catalog.dropTempView(view)
