"""Spark, in a process of its own, reads by the names of a catalog what lakebed reads by paths."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.listeners.targets import Catalog
from tests.infra.downloads import pyspark, spark_iceberg_jars
from tests.infra.metastore import MetastoreServer
from tests.infra.spark_start import spark_environment
from tests.listeners.catalogs.catalogs import Follower

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.usefixtures("own_cache")]
_DELTA = """
import json, sys
from pyspark.sql import SparkSession
from lakebed.sparks.session import settings
url, *statements = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").enableHiveSupport()
for name, value in settings(s3=False).items():
    builder = builder.config(name, value)
spark = (
    builder.config("spark.hadoop.hive.metastore.uris", url).config("spark.driver.host", "127.0.0.1").getOrCreate()
)
print(json.dumps([[row.asDict(True) for row in spark.sql(each).collect()] for each in statements], default=str))
"""
_ICEBERG = """
import json, sys
from pyspark.sql import SparkSession
jar, kind, url, *statements = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars", jar).config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC").config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.catalog.shop", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.shop.type", kind).config("spark.sql.catalog.shop.uri", url).getOrCreate()
)
print(json.dumps([[row.asDict(True) for row in spark.sql(each).collect()] for each in statements], default=str))
"""


def asked_of_spark(
    program: str, given: list[str], statements: list[str], folder: Path, **variables: str
) -> list[list[dict[str, Any]]]:
    """The rows that statements give."""
    environment = {**os.environ, **spark_environment(), "SPARK_LOCAL_IP": "127.0.0.1", **variables}
    command = [sys.executable, "-c", program, *given, *statements]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True, cwd=folder)
    found: list[list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _rows(schema: pa.Schema) -> pa.Table:
    day, noon = datetime.date(2026, 1, 31), datetime.datetime(2026, 1, 31, 12)
    rows = [{"id": number, "day": day, "at": noon, "note": "é", "_lakebed_op": "u"} for number in range(3)]
    return pa.Table.from_pylist(rows, schema.append(pa.field("_lakebed_op", pa.string())))


def test_spark_with_hive_and_delta(tmp_path: Path, metastore: MetastoreServer) -> None:
    database, lake = f"shop_{uuid.uuid4().hex[:8]}", tmp_path / "lake"
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us")), ("note", pa.string())])
    orders = lakebed.create(lake / "public/orders", schema, keys=["id", "day"], partition_by=["day"])
    orders.apply(_rows(schema))
    follower = Follower(str(lake), Catalog(url=metastore.url, database=database))
    follower.step()
    orders.alter(add={"tags": "map<string, array<int>>"}, rename={"note": "remark"}, comment={"id": "its number"})
    orders.settle()
    assert follower.step() == ""
    name = f"{database}.orders"
    read, count, described, listed = asked_of_spark(
        _DELTA,
        [metastore.url],
        [
            f"select * from {name} order by id",
            f"select count(*) as rows from {name} where day = date'2026-01-31' and remark = 'é'",
            f"describe {name}",
            f"show tables in {database}",
        ],
        tmp_path,
    )
    assert read == json.loads(json.dumps(orders.to_arrow().sort_by("id").to_pylist(), default=str))
    assert count == [{"rows": 3}]
    assert described[0] == {"col_name": "id", "data_type": "bigint", "comment": "its number"}
    assert [each["tableName"] for each in listed] == ["orders"]


@pytest.mark.parametrize("kind", ["hive", "rest"])
def test_spark_with_iceberg(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("metastore" if kind == "hive" else "rest_catalog").url
    config = {"replace": "yes"} if kind == "rest" else {}
    database, lake = f"shop_{uuid.uuid4().hex[:8]}", tmp_path / "lake"
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us")), ("note", pa.string())])
    orders = lakebed.create(
        lake / "public/orders", schema, keys=["id", "day"], partition_by=["day"], properties={"lakebed.iceberg": "on"}
    )
    follower = Follower(str(lake), Catalog(url=url, format="iceberg", database=database, config=config))
    follower.step(2)
    orders.apply(_rows(schema))
    orders.settle()
    orders.alter(add={"price": "decimal(10,2)"}, rename={"note": "remark"}, drop=["at"])
    assert follower.step(2) == ""
    [jar] = spark_iceberg_jars().glob("*.jar")
    [read] = asked_of_spark(
        _ICEBERG,
        [str(jar), kind, url],
        [f"select * from shop.{database}.orders order by id"],
        tmp_path,
        PYTHONPATH=str(pyspark("4.1.4")),
    )
    assert read == json.loads(json.dumps(orders.to_arrow().sort_by("id").to_pylist(), default=str))
