"""Entries in AWS Glue, as moto's server has it."""

from __future__ import annotations

import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

import lakebed
from lakebed.listeners.targets import Catalog
from tests.infra.metastore import MetastoreServer
from tests.infra.s3 import S3Server, aws_environment
from tests.listeners.catalogs.catalogs import Follower
from tests.listeners.catalogs.metastore import table_in
from tests.listeners.test_listening import changes, make

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]
GLUE = Catalog(url="glue://eu-central-1")


@pytest.fixture
def glue(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
    with aws_environment(f"http://{host}:{port}"):
        yield boto3.client("glue", region_name="eu-central-1")
    server.stop()


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def entry(glue: Any, table: str = "orders", database: str = "public") -> Any:
    try:
        return glue.get_table(DatabaseName=database, Name=table)["Table"]
    except glue.exceptions.EntityNotFoundException:
        return None


def columns(found: Any) -> dict[str, str]:
    return {each["Name"]: each["Type"] for each in found["StorageDescriptor"]["Columns"]}


def versions(glue: Any) -> list[str]:
    found = glue.get_table_versions(DatabaseName="public", TableName="orders")["TableVersions"]
    return [each["VersionId"] for each in found]


def test_a_table_is_entered_as_delta_and_follows_what_becomes_of_it(glue: Any, lake: str) -> None:
    orders = make(lake, "public/orders")
    orders.apply(changes())
    follower = Follower(lake, GLUE)
    assert follower.step() == ""
    found = entry(glue)
    assert columns(found) == {"id": "bigint"}
    assert found["TableType"] == "EXTERNAL_TABLE"
    assert found["StorageDescriptor"]["Location"] == orders.path
    assert found["StorageDescriptor"]["SerdeInfo"]["Parameters"]["path"] == orders.path
    assert found["Parameters"]["spark.sql.sources.provider"] == "delta"
    assert found["Parameters"]["table_type"] == "DELTA"
    assert found["Parameters"]["EXTERNAL"] == "TRUE"

    orders.alter(add={"note": "string"}, comment={"id": "its number"})
    make(lake, "items")
    follower.step()
    assert columns(entry(glue)) == {"id": "bigint", "note": "string"}
    assert entry(glue)["StorageDescriptor"]["Columns"][0]["Comment"] == "its number"
    assert entry(glue, "items", "default") is not None

    orders.alter(rename={"note": "remark"})
    orders.alter(add={"price": "double"})
    orders.alter(drop=["price"])
    follower.step()
    assert columns(entry(glue)) == {"id": "bigint", "remark": "string"}


def test_batches_cost_no_request_and_a_change_of_the_schema_one_write(glue: Any, lake: str) -> None:
    orders = make(lake, "public/orders")
    follower = Follower(lake, GLUE)
    follower.step()
    orders.apply(changes())
    orders.settle()
    assert follower.step() == "" and len(versions(glue)) == 1
    for name in ("a", "b", "c"):
        orders.alter(add={name: "string"})
    follower.step()
    assert len(versions(glue)) == 2, "three changes in a round are one write"
    assert Follower(lake, GLUE).step() == "" and len(versions(glue)) == 2, "what is so already is not written"


def test_a_table_that_is_dropped_leaves_and_one_that_comes_back_is_there_again(glue: Any, lake: str) -> None:
    orders, items = make(lake, "public/orders"), make(lake, "public/items")
    follower = Follower(lake, GLUE)
    follower.step()
    orders.drop()
    follower.step()
    assert entry(glue) is None and entry(glue, "items") is not None
    lakebed.undrop(orders.path)
    follower.step()
    assert entry(glue) is not None
    lakebed.open(orders.path).drop(purge=True)
    items.drop(purge=True)
    make(lake, "public/items").alter(add={"note": "string"})
    follower.step()
    assert entry(glue) is None
    assert columns(entry(glue, "items")) == {"id": "bigint", "note": "string"}


def test_a_name_that_is_taken_is_left_as_it_is_and_that_is_said(glue: Any, lake: str) -> None:
    glue.create_database(DatabaseInput={"Name": "public"})
    glue.create_table(DatabaseName="public", TableInput={"Name": "orders", "Parameters": {"made": "by hand"}})
    orders = make(lake, "public/orders")
    make(lake, "public/items")
    follower = Follower(lake, GLUE)
    error = follower.step()
    assert "public.orders is taken in the catalog by something that lakebed did not enter" in error
    assert entry(glue)["Parameters"] == {"made": "by hand"}
    assert entry(glue, "items") is not None, "others go on"
    assert follower.behind_seconds() > 0
    orders.drop()
    follower.step(3)
    assert entry(glue)["Parameters"] == {"made": "by hand"}
    assert follower.behind_seconds() == 0 and follower.delivery.error == ""


def test_what_somebody_changed_by_hand_stays_unless_it_is_ours(glue: Any, lake: str) -> None:
    orders = make(lake, "public/orders")
    follower = Follower(lake, GLUE)
    follower.step()
    own = {key: entry(glue)[key] for key in ("Name", "TableType", "StorageDescriptor", "Parameters")}
    own["Owner"] = "ann"
    own["Parameters"] |= {"classification": "delta", "spark.sql.sources.provider": "parquet"}
    own["StorageDescriptor"]["Columns"] = []
    glue.update_table(DatabaseName="public", TableInput=own)
    orders.alter(add={"note": "string"})
    follower.step()
    found = entry(glue)
    assert (found["Owner"], found["Parameters"]["classification"]) == ("ann", "delta")
    assert found["Parameters"]["spark.sql.sources.provider"] == "delta"
    assert columns(found) == {"id": "bigint", "note": "string"}


def test_a_change_while_it_does_not_answer_is_there_when_it_answers_again(
    glue: Any, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = make(lake, "public/orders")
    follower = Follower(lake, GLUE)
    follower.step()
    with monkeypatch.context() as down:
        down.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        follower.destination.close()
        orders.alter(add={"note": "string"})
        assert "glue://eu-central-1 does not answer" in follower.step()
        assert follower.behind_seconds() > 0
    assert follower.step(2) == "" and follower.behind_seconds() == 0
    assert columns(entry(glue)) == {"id": "bigint", "note": "string"}


@pytest.mark.long
def test_a_table_in_s3_is_entered_where_it_is(
    glue: Any, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, metastore: MetastoreServer
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint)
    bucket = s3_server.create_bucket()
    orders = make(f"s3://{bucket}/lake", "public/orders")
    assert Follower(f"s3://{bucket}/lake", GLUE).step() == ""
    assert entry(glue)["StorageDescriptor"]["Location"] == orders.path == f"s3://{bucket}/lake/public/orders"
    hive = Catalog(url=metastore.url, database=f"s3_{uuid.uuid4().hex[:8]}")
    assert Follower(f"s3://{bucket}/lake", hive).step() == ""
    found = table_in(metastore.url, hive.database, "orders")
    assert found.sd.serdeInfo.parameters["path"] == f"s3a://{bucket}/lake/public/orders"
