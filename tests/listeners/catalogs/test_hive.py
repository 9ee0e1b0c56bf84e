"""Entries in a metastore of Hive: a real one, from the jars that PySpark brings."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

import lakebed
from lakebed.listeners.catalogs.entry import Entry, Name
from lakebed.listeners.catalogs.hive import HiveClient
from lakebed.listeners.targets import Catalog
from tests.infra.metastore import MetastoreServer
from tests.listeners.catalogs.catalogs import Follower
from tests.listeners.catalogs.metastore import Losing, client_of, table_in
from tests.listeners.test_listening import changes, make

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]


class Lake:
    """A folder of tables, and a database of a metastore that follows them."""

    def __init__(self, root: Path, server: MetastoreServer) -> None:
        self.root = str(root / "lake")
        self.server = server
        self.database = f"shop_{uuid.uuid4().hex[:8]}"
        self.target = Catalog(url=server.url, database=self.database)

    def entry(self, table: str = "orders") -> Any:
        return table_in(self.server.url, self.database, table)

    def columns(self, table: str = "orders") -> dict[str, str]:
        return columns_of(self.entry(table))


def columns_of(entry: Any) -> dict[str, str]:
    given = entry.parameters
    name = "spark.sql.sources.schema"
    count = int(given.get(f"{name}.numParts", 0))
    text = "".join(given[f"{name}.part.{number}"] for number in range(count)) or given[name]
    return {each["name"]: each["type"] for each in orjson.loads(text)["fields"]}


@pytest.fixture
def lake(tmp_path: Path, metastore: MetastoreServer) -> Lake:
    return Lake(tmp_path, metastore)


def test_a_table_is_entered_and_follows_what_becomes_of_it(lake: Lake) -> None:
    orders = make(lake.root, "public/Orders")
    orders.apply(changes())
    follower = Follower(lake.root, lake.target)
    assert follower.step() == ""
    found = lake.entry()
    assert found.tableType == "EXTERNAL_TABLE"
    assert found.parameters["spark.sql.sources.provider"] == "delta"
    assert found.sd.serdeInfo.parameters["path"] == f"file:{orders.path}"
    assert lake.columns() == {"id": "long"}
    orders.alter(add={"note": "string", "at": "timestamp_ntz", "tags": "map<string, array<struct<`é x`: int>>>"})
    orders.alter(rename={"note": "remark"}, comment={"id": "its number"})
    orders.alter(drop=["at"])
    follower.step()
    assert list(lake.columns()) == ["id", "remark", "tags"]
    assert not any((Path(lake.server.warehouse) / f"{lake.database}.db").rglob("*.parquet"))


def test_batches_write_nothing_and_a_change_is_one_write(lake: Lake) -> None:
    orders = make(lake.root, "public/orders")
    follower = Follower(lake.root, lake.target)
    follower.step()
    version = lake.entry().parameters["lakebed.version"]
    orders.apply(changes())
    orders.settle()
    assert follower.step() == "" and Follower(lake.root, lake.target).step() == ""
    assert lake.entry().parameters["lakebed.version"] == version
    orders.set_properties({"lakebed.read_budget": "4"})
    follower.step()
    assert lake.entry().parameters["lakebed.read_budget"] == "4"
    assert lake.entry().parameters["lakebed.version"] == str(orders.version)


def test_a_schema_as_wide_as_a_metastore_would_not_keep_in_one_piece(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int64())] + [(f"column_{number}", pa.string()) for number in range(300)])
    wide = lakebed.create(f"{lake.root}/wide", schema, keys=["id"])
    follower = Follower(lake.root, lake.target)
    assert follower.step() == "" and len(lake.columns("wide")) == 301
    wide.alter(drop=[f"column_{number}" for number in range(1, 300)])
    assert follower.step() == "" and list(lake.columns("wide")) == ["id", "column_0"]
    assert not [name for name in lake.entry("wide").parameters if ".part." in name], "no piece is left"


def test_tables_that_leave_and_come_back(lake: Lake) -> None:
    orders = make(lake.root, "public/orders")
    follower = Follower(lake.root, lake.target)
    follower.step()
    orders.drop()
    follower.step()
    assert lake.entry() is None
    lakebed.undrop(orders.path)
    follower.step()
    assert lake.entry() is not None
    lakebed.open(orders.path).drop(purge=True)
    make(lake.root, "public/orders").alter(add={"note": "string"})
    follower.step()
    assert list(lake.columns()) == ["id", "note"]


def test_a_name_that_is_taken_is_left_as_it_is(lake: Lake) -> None:
    make(lake.root, "public/orders")
    make(lake.root, "other/orders")
    follower = Follower(lake.root, lake.target)
    error = follower.step(2)
    assert f"{lake.database}.orders is taken in the catalog by the table at {lake.root}/" in error
    taken = lake.entry().parameters["lakebed.root"]
    loser = lakebed.open(
        f"{lake.root}/public/orders" if taken.endswith("other/orders") else f"{lake.root}/other/orders"
    )
    loser.drop(purge=True)
    assert follower.step(3) == ""
    assert lake.entry().parameters["lakebed.root"] == taken, "the entry of the other table is not removed"


def test_what_somebody_changed_by_hand_stays_unless_it_is_ours(lake: Lake) -> None:
    orders = make(lake.root, "public/orders")
    follower = Follower(lake.root, lake.target)
    follower.step()
    changed = lake.entry()
    changed.owner = "ann"
    changed.parameters |= {"team": "shop", "spark.sql.sources.provider": "parquet"}
    with client_of(lake.server.url) as client:
        client.alter_table(lake.database, "orders", changed)
    orders.alter(add={"note": "string"})
    follower.step()
    found = lake.entry()
    assert (found.owner, found.parameters["team"]) == ("ann", "shop")
    assert found.parameters["spark.sql.sources.provider"] == "delta"


class Slow(HiveClient):
    """Lets something happen between its look at the table, or at the entry, and its write."""

    before_look: Callable[[], object] | None = None
    before_write: Callable[[], object] | None = None

    def ensure(self, name: Name, entry: Entry) -> bool:
        happens, self.before_look = self.before_look, None
        if happens is not None:
            happens()
        return super().ensure(name, entry)

    def _replace(self, *how: Any) -> bool:
        happens, self.before_write = self.before_write, None
        if happens is not None:
            happens()
        self.wrote = super()._replace(*how)
        return self.wrote


@pytest.mark.long
def test_a_column_that_was_added_while_it_was_down_is_there_when_it_is_back(tmp_path: Path) -> None:
    with MetastoreServer() as server:
        lake = Lake(tmp_path, server)
        orders = make(lake.root, "public/orders")
        client = Slow(lake.target)
        follower = Follower(lake.root, lake.target, connect=lambda _: client)
        follower.step()
        server.kill()
        orders.apply(changes())  # ingest knows nothing of it
        orders.alter(add={"note": "string"})
        for _ in range(3):
            assert f"{server.url} does not answer" in follower.step()
        assert follower.behind_seconds() > 0
        server.start()
        assert follower.step() == "" and follower.behind_seconds() == 0
        assert list(lake.columns()) == ["id", "note"]
        orders.alter(add={"killed_amid_the_write": "string"})
        client.before_write = server.kill
        assert f"{server.url} does not answer" in follower.step()
        assert follower.behind_seconds() > 0
        server.start()
        assert follower.step() == "" and follower.behind_seconds() == 0
        assert list(lake.columns()) == ["id", "note", "killed_amid_the_write"]


def test_a_metastore_that_takes_a_connection_and_says_nothing_holds_up_nobody_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.listeners.catalogs.hive._TIMEOUT_MS", 200)
    orders = make(str(tmp_path / "lake"), "public/orders")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = Catalog(url=f"thrift://127.0.0.1:{silent.getsockname()[1]}")
        follower = Follower(str(tmp_path / "lake"), target)
        assert f"{target.url} does not answer: " in follower.step()
        assert follower.behind_seconds() > 0
    assert orders.version == 0


@pytest.mark.parametrize("moment", ["before_look", "before_write"])
def test_of_two_processes_the_slow_one_does_not_bring_back_what_was(lake: Lake, moment: str) -> None:
    orders = make(lake.root, "public/orders")
    client = Slow(lake.target)
    slow, quick = Follower(lake.root, lake.target, connect=lambda _: client), Follower(lake.root, lake.target)
    slow.step()
    quick.step()

    def be_quick() -> None:
        orders.alter(add={"second": "string"})
        assert quick.step() == ""

    orders.alter(add={"first": "string"})
    setattr(client, moment, be_quick)
    assert slow.step() == ""
    assert list(lake.columns()) == ["id", "first", "second"]
    if moment == "before_write":
        assert client.wrote is False, "the metastore itself refused it"


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_write_whose_answer_is_lost_is_not_made_again(lake: Lake, format: str) -> None:
    """Be it that the process goes on, or that another one begins where it had kept its position: before the write."""
    (Path(lake.root) / "public").mkdir(parents=True)
    with Losing(lake.server.url) as losing:
        follower = Follower(lake.root, Catalog(url=losing.url, database=lake.database, format=format))

        def after_loss(request: bytes, table: lakebed.Table) -> tuple[Any, Any]:
            """The entry when the answer was lost, and when all has been said again."""
            if request != b"drop_table":
                table.maintenance.publish_iceberg()
            losing.loses, kept, name = request, follower.delivery.cursor, Path(table.path).name
            assert f"{losing.url} does not answer" in follower.step() and follower.behind_seconds() > 0
            assert losing.loses == b"", f"there was no {request!r}"
            found = lake.entry(name)
            assert follower.step() == "" and follower.behind_seconds() == 0
            follower.destination.close()
            again, writes = lake.entry(name), losing.writes
            assert Follower(lake.root, follower.listener.target, kept).step() == "" and losing.writes == writes
            return found, again

        for request, name in ((b"create_database", "items"), (b"create_table", "orders")):
            table = make(lake.root, f"public/{name}")
            table.set_properties({"lakebed.iceberg": "on"})
            found, again = after_loss(request, table)
            assert again is not None and found in ([None] if request == b"create_database" else [again])
        table.alter(add={"note": "string"})
        found, again = after_loss(b"alter_table", table)
        assert found == again and found.parameters["lakebed.version"] == str(table.version)
        table.drop()
        assert after_loss(b"drop_table", table) == (None, None)


def test_what_is_too_long_for_a_metastore_holds_up_no_table(lake: Lake) -> None:
    orders = make(lake.root, "public/orders")
    orders.set_properties({"lakebed.iceberg": "on"})
    orders.alter(comment={"id": 'it\'s the "number" é\n' + "x" * 5_000})
    orders.maintenance.publish_iceberg()
    assert Follower(lake.root, Catalog(url=lake.server.url, database=lake.database, format="iceberg")).step() == ""
    assert lake.entry().sd.cols[0].comment.startswith('it\'s the "number" é\nxxx')


def test_names_that_are_too_long_for_a_metastore_hold_up_no_table(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int64()), ("n" * 768, pa.string()), ("note", pa.string())])
    wide = lakebed.create(f"{lake.root}/public/wide", schema, keys=["id"], properties={"lakebed.iceberg": "on"})
    wide.maintenance.publish_iceberg()
    target = Catalog(url=lake.server.url, database=lake.database, format="iceberg")
    assert Follower(lake.root, target).step() == ""
    assert [each.name for each in lake.entry("wide").sd.cols] == ["id", "note"]
    schemas = Follower(lake.root, Catalog(url=lake.server.url, database=f"{lake.database}_{{schema}}"))
    make(lake.root, f"{'s' * 120}/orders")
    make(lake.root, f"public/{'t' * 130}")
    error = schemas.step()
    assert "a metastore keeps no longer name than 128 characters of a database" in error and "orders" in error
    found = table_in(lake.server.url, f"{lake.database}_public", "t" * 130)
    assert found is not None, "the others are entered"
