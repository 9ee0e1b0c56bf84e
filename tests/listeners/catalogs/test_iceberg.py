"""Entries of Iceberg tables in three catalogs: PyIceberg reads by names what lakebed reads by paths."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

import lakebed
from lakebed.listeners.targets import Catalog
from tests.infra.metastore import MetastoreServer
from tests.infra.rest_catalog import RestCatalogServer
from tests.listeners.catalogs.catalogs import Follower
from tests.listeners.catalogs.test_glue import glue  # noqa: F401
from tests.listeners.test_listening import changes, make

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]
ON = {"lakebed.iceberg": "on"}


class Lake:
    """A folder of tables, and a database of a catalog that follows them."""

    def __init__(self, root: Path, url: str, read: dict[str, str], **config: str) -> None:
        self.root = str(root / "lake")
        self.database = f"shop_{uuid.uuid4().hex[:8]}"
        self.target = Catalog(url=url, format="iceberg", database=self.database, config=config)
        self._read = read

    def table(self, name: str = "orders") -> Any:
        """As PyIceberg finds it."""
        return load_catalog("catalog", **self._read).load_table((self.database, name))

    def rows(self, name: str = "orders") -> list[dict[str, Any]]:
        found: pa.Table = self.table(name).scan().to_arrow()
        return found.sort_by(found.column_names[0]).to_pylist()


@pytest.fixture(params=["hive", "glue", "rest"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "glue":
        request.getfixturevalue("glue")
        return Lake(tmp_path, "glue://eu-central-1", {"type": "glue", "glue.region": "eu-central-1"})
    if request.param == "rest":
        catalog: RestCatalogServer = request.getfixturevalue("rest_catalog")
        return Lake(tmp_path, catalog.url, {"type": "rest", "uri": catalog.url}, replace="yes")
    server: MetastoreServer = request.getfixturevalue("metastore")
    return Lake(tmp_path, server.url, {"type": "hive", "uri": server.url})


@pytest.mark.few(1)
def test_the_entry_follows_what_is_published(lake: Lake) -> None:
    orders = make(lake.root, "public/orders")
    orders.set_properties(ON)
    orders.apply(changes())
    orders.settle()
    first = orders.maintenance.publish_iceberg()
    follower = Follower(lake.root, lake.target)
    assert follower.step() == ""
    assert lake.table().metadata_location == first.metadata
    assert lake.rows() == [{"id": 1}, {"id": 2}, {"id": 3}]
    orders.alter(add={"note": "string"})
    orders.alter(rename={"note": "remark"})
    orders.apply(pa.table({"id": [4], "remark": ["é"], "_lakebed_op": ["u"]}))
    orders.settle()
    second = orders.maintenance.publish_iceberg()
    assert follower.step() == ""
    assert lake.table().metadata_location == second.metadata
    assert lake.rows()[-1] == {"id": 4, "remark": "é"}
    orders.alter(add={"price": "decimal(10,2)", "at": "timestamp"}, drop=["remark"])
    third = orders.maintenance.publish_iceberg()
    assert follower.step() == ""
    assert lake.table().metadata_location == third.metadata
    assert lake.rows()[-1] == {"id": 4, "price": None, "at": None}


def test_what_maintenance_does_not_publish_is_published_for_the_entry(lake: Lake) -> None:
    """Until then the listener is behind: what it does not name yet is not acknowledged."""
    orders = make(lake.root, "public/orders")
    orders.set_properties(ON)
    follower = Follower(lake.root, lake.target)
    follower.step(2)
    assert lake.rows() == []
    orders.apply(changes())
    orders.settle()
    follower.clock.now += 1.0
    follower.feed.poke("public.orders")
    follower.delivery.step()
    assert follower.behind_seconds() > 0 and lake.rows() == []
    assert follower.step(2) == "" and follower.behind_seconds() == 0
    assert len(lake.rows()) == 3


def test_a_table_has_an_entry_while_it_is_published(lake: Lake) -> None:
    orders = make(lake.root, "public/orders")
    make(lake.root, "public/items").apply(changes())
    follower = Follower(lake.root, lake.target)
    assert follower.step(2) == "" and follower.behind_seconds() == 0
    for name in ("orders", "items"):
        with pytest.raises(NoSuchTableError):
            lake.table(name)
    orders.set_properties(ON)
    assert follower.step(2) == "" and lake.rows() == []
    orders.drop()
    follower.step(2)
    with pytest.raises(NoSuchTableError):
        lake.table()
    lakebed.undrop(orders.path)
    follower.step(2)
    assert lake.rows() == []
    lakebed.open(orders.path).set_properties({"lakebed.iceberg": "off"})
    follower.step(2)
    with pytest.raises(NoSuchTableError):
        lake.table()


def test_a_table_that_was_made_anew_has_the_metadata_of_the_new_one(lake: Lake) -> None:
    orders = make(lake.root, "public/orders")
    orders.set_properties(ON)
    orders.apply(changes())
    orders.settle()
    follower = Follower(lake.root, lake.target)
    assert follower.step(2) == "" and len(lake.rows()) == 3
    orders.drop(purge=True)
    make(lake.root, "public/orders").set_properties(ON)
    assert follower.step(2) == "" and lake.rows() == []


def test_a_table_that_was_copied_has_metadata_of_its_own_place(lake: Lake) -> None:
    orders = make(f"{lake.root}-before", "public/orders")
    orders.set_properties(ON)
    orders.apply(changes())
    orders.settle()
    orders.maintenance.publish_iceberg()
    shutil.copytree(f"{lake.root}-before", lake.root)
    shutil.rmtree(f"{lake.root}-before")
    assert Follower(lake.root, lake.target).step(2) == "" and len(lake.rows()) == 3
    assert lake.table().metadata.location == f"{lake.root}/public/orders/_lakebed/iceberg"
