"""Programs that know Iceberg's REST catalog read the tables of a service through it: what lakebed reads, and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    ServiceUnavailableError,
    UnauthorizedError,
)

import lakebed
from lakebed.discovery import TableName
from tests.foreign.readers import comparable
from tests.infra.downloads import pyspark, spark_iceberg_jars
from tests.infra.foreign_duckdb import ICEBERG_REST, ForeignDuckDB, ForeignError
from tests.infra.s3 import S3Server
from tests.infra.spark_start import spark_environment
from tests.service.conftest import SCHEMA, TOKENS, Serve, Served, orders
from tests.service.test_iceberg_catalog import ON, change, make

NESTED = "shop.eu.north.orders"


@pytest.fixture
def served(tmp_path: Path, serve: Serve) -> Served:
    """Tables with partitions, vectors, renamed columns, and levels of namespaces."""
    make(tmp_path / "lake/items")
    make(tmp_path / "lake" / TableName(NESTED).folder)
    make(tmp_path / "lake/shop/off", publish=False, on=False)
    table = orders(tmp_path / "lake/shop/orders")
    table.set_properties(ON)
    table.alter(rename={"amount": "total"})
    table.settle()
    table.maintenance.publish_iceberg()
    return serve(tmp_path / "lake")


def client(served: Served, role: str = "reader", **properties: str) -> RestCatalog:
    return RestCatalog("lake", uri=f"{served.url}/iceberg", token=TOKENS.get(role, role), **properties)


def own(served: Served, name: str) -> lakebed.Table:
    return lakebed.open(served.catalog.root_of(name))


def same(found: pa.Table, expected: pa.Table) -> None:
    assert comparable(found, expected.schema) == comparable(expected, expected.schema)


@pytest.mark.parametrize("properties", [{}, {"snapshot-loading-mode": "refs"}, {"rest-page-size": "1"}])
def test_pyiceberg(served: Served, properties: dict[str, str]) -> None:
    catalog = client(served, **properties)
    assert catalog.list_namespaces() == [("default",), ("shop",)]
    assert catalog.list_namespaces("shop") == [("shop", "eu")]
    assert catalog.list_namespaces("shop.eu") == [("shop", "eu", "north")]
    assert catalog.list_tables("shop.eu.north") == [("shop", "eu", "north", "orders")]
    assert catalog.list_tables("shop") == [("shop", "orders")]
    assert catalog.load_namespace_properties("shop.eu") == {}
    assert catalog.namespace_exists("shop.eu.north") and not catalog.namespace_exists("eu")
    for name in ("default.items", "shop.orders", NESTED):
        assert catalog.table_exists(name)
        table = own(served, name.removeprefix("default."))
        found = catalog.load_table(name)
        same(found.scan().to_arrow(), table.to_arrow())
        for snapshot in found.snapshots():
            same(
                found.scan(snapshot_id=snapshot.snapshot_id).to_arrow(),
                table.to_arrow(version=snapshot.snapshot_id - 1),
            )
    found, table = catalog.load_table("default.items"), own(served, "items")
    change(table)
    same(found.refresh().scan().to_arrow(), table.to_arrow())
    assert found.current_snapshot() is not None and len(found.snapshots()) == (
        1 if "snapshot-loading-mode" in properties else 2
    )


def test_pyiceberg_gets_errors_that_it_knows(served: Served) -> None:
    catalog = client(served)
    for name in ("shop.none", "none.none", "shop.off"):
        assert not catalog.table_exists(name)
        with pytest.raises(NoSuchTableError, match=r"there is no table|is off for"):
            catalog.load_table(name)
    for refused in (catalog.list_tables, catalog.list_namespaces, catalog.load_namespace_properties):
        with pytest.raises(NoSuchNamespaceError, match="there is no namespace 'none'"):
            refused("none")
    make(Path(served.catalog.roots[0]) / "shop/new", publish=False)
    with pytest.raises(ServiceUnavailableError, match=r"nothing of shop\.new is published yet"):
        catalog.load_table("shop.new")
    assert client(served, "operator").load_table("shop.new").scan().count() == 10
    with pytest.raises(UnauthorizedError, match="unknown token"):
        client(served, "no such token")
    with pytest.raises(OAuthError, match="lakebed serve token"):
        RestCatalog("lake", uri=f"{served.url}/iceberg", credential="a:b")


def test_pyiceberg_writes_nothing(served: Served) -> None:
    catalog = client(served, "operator")
    table = catalog.load_table("shop.orders")
    for write in (lambda: catalog.create_table("shop.more", table.schema()), lambda: catalog.drop_table("shop.orders")):
        with pytest.raises(NotImplementedError, match="does not support endpoint"):
            write()
    assert catalog.table_exists("shop.orders")


@pytest.fixture(scope="module")
def duckdb() -> Iterator[ForeignDuckDB]:
    with ForeignDuckDB(ICEBERG_REST) as found:
        yield found


def test_duckdb(served: Served, duckdb: ForeignDuckDB) -> None:
    token = TOKENS["reader"].replace("'", "''")
    attach = f"attach 'lake' as lake (type iceberg, endpoint '{served.url}/iceberg', token "
    duckdb.query(f"{attach}'{token}')")
    try:
        for name, there in (
            ("items", "default.items"),
            ("shop.orders", "shop.orders"),
            (NESTED, '"shop.eu.north".orders'),
        ):
            same(duckdb.query(f"select * from lake.{there}"), own(served, name).to_arrow())
        listed = duckdb.query("select schema, name from (show all tables) where database = 'lake'").to_pylist()
        assert {"schema": "shop", "name": "orders"} in listed and {"schema": "shop", "name": "off"} not in listed
        with pytest.raises(ForeignError, match="does not exist"):
            duckdb.query("select * from lake.shop.off")
        for statement in ("insert into lake.shop.orders select * from lake.shop.orders", "drop table lake.shop.orders"):
            with pytest.raises(ForeignError):
                duckdb.query(statement)
        assert own(served, "shop.orders").to_arrow().num_rows
    finally:
        duckdb.query("detach lake")
    with pytest.raises(ForeignError, match=r"unknown token|401|Unauthorized"):
        duckdb.query(f"{attach}'no such token')")
        duckdb.query("select * from lake.shop.orders")


_SPARK = """
import json, sys
import pyarrow as pa
from pyspark.sql import SparkSession
jar, url, token, asked, out = sys.argv[1:]
catalog = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": url, ".token": token}
builder = SparkSession.builder.master("local[2]").config("spark.jars", jar).config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
for name, value in catalog.items():
    builder = builder.config(f"spark.sql.catalog.lake{name}", value)
spark = builder.getOrCreate()
failed = {}
for number, statement in enumerate(json.loads(asked)):
    try:
        rows = spark.sql(statement).toArrow()
    except Exception as error:
        failed[number] = str(error)
        continue
    with pa.OSFile(f"{out}/{number}.arrow", "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
        stream.write_table(rows)
print(json.dumps(failed))
"""


def spark_says(served: Served, statements: list[str], folder: Path) -> list[pa.Table | str]:
    """What Spark with Iceberg's catalog answers: rows, or an error."""
    [jar] = spark_iceberg_jars().glob("*.jar")
    environment = {
        **os.environ,
        **spark_environment(),
        "PYTHONPATH": str(pyspark("4.1.4")),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("SPARK_HOME", None)
    arguments = [str(jar), f"{served.url}/iceberg", TOKENS["reader"], json.dumps(statements), str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", _SPARK, *arguments], env=environment, check=True, stdout=subprocess.PIPE
    )
    failed: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return [
        failed[str(at)] if str(at) in failed else pa.ipc.open_stream(pa.OSFile(f"{folder}/{at}.arrow", "rb")).read_all()
        for at in range(len(statements))
    ]


@pytest.mark.long
def test_spark(served: Served, tmp_path: Path) -> None:
    table = own(served, "shop.orders")
    version = table.version
    found: list[Any] = spark_says(
        served,
        [
            "select * from lake.default.items",
            "select * from lake.shop.orders",
            f"select * from lake.{NESTED}",
            f"select * from lake.shop.orders version as of {version + 1}",
            "show namespaces in lake",
            "show namespaces in lake.shop",
            "show tables in lake.shop",
            "select snapshot_id from lake.shop.orders.snapshots",
            "select count(*) as files from lake.shop.orders.data_files",
            "select * from lake.shop.off",
            "insert into lake.shop.orders select * from lake.shop.orders",
            "drop table lake.shop.orders",
        ],
        tmp_path,
    )
    same(found[0], own(served, "items").to_arrow())
    same(found[1], table.to_arrow())
    same(found[2], own(served, NESTED).to_arrow())
    same(found[3], table.to_arrow(version=version))
    assert sorted(found[4]["namespace"].to_pylist()) == ["default", "shop"]
    assert found[5]["namespace"].to_pylist() == ["shop.eu"]
    assert found[6]["tableName"].to_pylist() == ["orders"]
    assert found[7]["snapshot_id"].to_pylist() == [version + 1]
    assert found[8]["files"].to_pylist() == [len(table.inspect.parts())]
    assert all(isinstance(each, str) for each in found[9:]), "refused"
    assert "TABLE_OR_VIEW_NOT_FOUND" in found[9]
    same(table.to_arrow(), found[1])


_FROM_S3 = """
import sys
from pyiceberg.catalog.rest import RestCatalog
url, token = sys.argv[1:]
print(RestCatalog("lake", uri=url, token=token).load_table("shop.orders").scan().count())
"""


@pytest.mark.slow
def test_pyiceberg_reads_from_s3_with_what_a_load_says(s3: S3Server, serve: Serve) -> None:
    """In a process that knows neither the endpoint nor, where the service shares them, the keys."""
    root = f"s3://{s3.create_bucket()}/lake"
    change(lakebed.create(f"{root}/shop/orders", SCHEMA, keys=["id"], properties=ON))

    def read(served: Served, *without: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(without)}
        command = [sys.executable, "-c", _FROM_S3, f"{served.url}/iceberg", TOKENS["reader"]]
        return subprocess.run(
            command,
            env=environment | {"AWS_EC2_METADATA_DISABLED": "true"},
            capture_output=True,
            text=True,
            timeout=300,
        )

    assert read(serve(root), "AWS_ENDPOINT", "AWS_REGION", "AWS_DEFAULT").stdout == "10\n"
    assert read(serve(root), "AWS_").returncode != 0
    assert read(serve(root, shares_keys=True), "AWS_").stdout == "10\n"
