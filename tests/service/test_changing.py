"""Tables are made and changed through the service, and nobody's change is lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput, InvalidSchema, TableExists
from tests.service.conftest import Serve


def test_a_table_made_through_the_service_is_the_library_s(tmp_path: Path, serve: Serve) -> None:
    client = serve(tmp_path).client()
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("tags", pa.list_(pa.string())), ("price", pa.decimal128(10, 2))]
    )
    remote = client.create("shop.orders", schema, keys=["id"], properties={"lakebed.read_budget": 4})
    table = lakebed.open(tmp_path / "shop" / "orders")
    assert client.tables() == ("shop.orders",) and remote.version == table.version == 0
    assert table.schema == remote.schema and table.properties["lakebed.read_budget"] == "4"
    with pytest.raises(TableExists):
        client.create("shop.orders", schema, keys=["id"])
    assert client.create("single", schema).path == str(tmp_path / "single")


@pytest.mark.parametrize(
    "name",
    ["../up", "_lakebed", ".hidden", "a/b", "a.", "", "a\0b", "default.x", "x_quarantine", "a.b/../../c", "%2e%2e"],
)
def test_a_table_can_t_be_made_outside_of_the_root(tmp_path: Path, serve: Serve, name: str) -> None:
    (tmp_path / "lake").mkdir()
    client = serve(tmp_path / "lake").client()
    with pytest.raises(InvalidInput):
        client.create(name, pa.schema([("id", pa.int64())]))
    assert [each for each in tmp_path.rglob("_delta_log")] == []


def test_a_change_is_made_only_to_what_its_author_has_seen(lake: Path, serve: Serve) -> None:
    served = serve(lake)
    remote, table = served.client().table("orders"), lakebed.open(lake / "orders")
    seen = remote.version
    table.apply([{"id": 7_000, "day": "2026-02-02", "amount": 1}])  # rows do not stand in the way
    assert remote.set_properties({"lakebed.read_budget": 5}, if_version=seen) == seen + 2
    with pytest.raises(InvalidInput, match=f"changed between version {seen} and"):
        remote.alter(add={"note": "string"}, if_version=seen)
    result = remote.alter(add={"note": "string"}, reason="asked for", if_version=seen + 2)
    assert result.changed and table.schema.names[-1] == "note"
    assert table.inspect.schemas().to_pylist()[-1]["reason"] == "asked for"
    assert remote.set_properties({"lakebed.read_budget": 6}) > result.version
    path = "/v1/tables/orders"
    body = {"properties": {"lakebed.read_budget": 7}}
    assert served.problem("PATCH", path, body)["status"] == 428
    assert served.problem("PATCH", path, body, If_Match='"99999"')["status"] == 412
    assert served.problem("PATCH", path, body, If_Match="yesterday")["status"] == 400


def test_what_the_library_refuses_the_service_refuses_in_the_same_words(lake: Path, serve: Serve) -> None:
    remote, table = serve(lake).client().table("orders"), lakebed.open(lake / "orders")
    for theirs, ours in (
        (lambda: remote.alter(drop=["id"]), lambda: table.alter(drop=["id"])),
        (lambda: remote.alter(add={"x": "intger"}), lambda: table.alter(add={"x": "intger"})),
        (lambda: remote.set_properties({"lakebed.keys": "x"}), lambda: table.set_properties({"lakebed.keys": "x"})),
    ):
        with pytest.raises((InvalidSchema, InvalidInput)) as refused:
            ours()
        with pytest.raises(type(refused.value)) as refused_there:
            theirs()
        assert str(refused_there.value) == str(refused.value)
