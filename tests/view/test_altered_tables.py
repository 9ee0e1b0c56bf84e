"""What readers show of a table whose columns were renamed, dropped and widened: its users' names, at no cost."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.log.snapshot import Snapshot
from lakebed.parts.change_columns import columns_at
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.parts.changes import UNAVAILABLE_COLUMN
from lakebed.parts.part_filter import parts_that_may_match
from lakebed.sql import expression
from lakebed.storage.engine import connect
from lakebed.table import Table, internals_of
from lakebed.table.inspect import table_as_html
from lakebed.ui import documents
from lakebed.ui.levels import levels
from lakebed.view.arrow_scan import register_view

PLACE = pa.struct([("zip", pa.string()), ("floor", pa.int32())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("region", pa.string()),
        ("qty", pa.int32()),
        ("day", pa.date32()),
        ("place", PLACE),
        ("old", pa.string()),
    ]
)


def rows(first: int, **values: Any) -> pa.Table:
    row = {"qty": 1, "day": datetime.date(2024, 1, 1), "place": {"zip": "1010", "floor": 2}, "old": "x", "region": "eu"}
    return pa.Table.from_pylist([{"id": key, **row, **values} for key in range(first, first + 3)], SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Keyed by ``key``, which was ``id``; partitioned by ``zone``, which was ``region``."""
    table = lakebed.create(tmp_path / "orders", SCHEMA, keys=["id"], sort_key=["day", "id"], partition_by=["region"])
    table.apply(rows(0))
    table.apply(rows(10, qty=50, day=datetime.date(2024, 3, 1)))
    table.settle()
    table.alter(rename={"id": "key", "region": "zone", "place": "spot", "place.zip": "code"}, drop=["old"])
    table.alter(rename={"qty": "id", "day": "qty"}, widen={"qty": "decimal(20,3)", "day": "timestamp_ntz"})
    table.alter(add={"day": "string"})
    return table


def snapshot_of(table: Table) -> Snapshot:
    return internals_of(table).log.refresh()


def test_rows_have_the_names_of_their_users(table: Table) -> None:
    newest = {"key": 11, "zone": "eu", "id": Decimal(50), "qty": datetime.datetime(2024, 3, 1), "day": None}
    newest |= {"spot": {"code": "1010", "floor": 2}}
    assert table.to_arrow(where="key = 11 and spot.code = '1010'").to_pylist() == [newest]
    assert table.lookup([11]).to_pylist() == [newest]
    assert table.lookup([{"zone": "eu", "key": 11}], columns=["spot", "key"]).to_pylist() == [
        {"spot": newest["spot"], "key": 11}
    ]
    assert table.query(
        "select max(id) as most, any_value(spot.code) as code from t where qty > date '2024-02-01'", "t"
    ).to_pylist() == [{"most": Decimal(50), "code": "1010"}]
    assert table.query("describe t", "t")["column_name"].to_pylist() == table.schema.names
    assert len(table.to_arrow(columns=[])) == len(table.to_arrow(columns=[], where="key > 0")) + 1 == 6


def test_a_change_without_all_values_is_completed_from_parts_of_an_older_schema(table: Table) -> None:
    change = table.lookup([11]).to_pylist()[0] | {"id": Decimal(7), "spot": None, "day": "new"}
    unsent = table.schema.append(pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string())))
    table.apply(pa.Table.from_pylist([change | {UNAVAILABLE_COLUMN: ["spot"]}], unsent))
    whole = change | {"spot": {"code": "1010", "floor": 2}}
    for _ in ("in the tail", "settled"):
        assert table.lookup([11]).to_pylist() == [whole]
        assert table.to_arrow(where="id = 7 and spot.code = '1010'").to_pylist() == [whole]
        assert whole in table.to_arrow().to_pylist()
        table.settle()


def test_fields_within_lists_and_maps_have_the_names_of_their_users(tmp_path: Path) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("items", pa.list_(pa.field("element", PLACE))), ("per", pa.map_(pa.string(), PLACE))]
    )
    table = lakebed.create(tmp_path / "orders", schema, keys=["id"])
    place = {"zip": "1010", "floor": 2}
    table.apply(
        [
            {"id": 1, "items": [place, None], "per": {"k": place, "l": None}},
            {"id": 2, "items": [], "per": {}},
            {"id": 3},
        ]
    )
    table.alter(rename={"items.element.zip": "floor", "items.element.floor": "zip", "per.value.zip": "code"})
    swapped, coded = {"floor": "1010", "zip": 2}, {"code": "1010", "floor": 2}
    expected = [
        {"id": 1, "items": [swapped, None], "per": [("k", coded), ("l", None)]},
        {"id": 2, "items": [], "per": []},
        {"id": 3, "items": None, "per": None},
    ]
    assert table.to_arrow().sort_by("id").to_pylist() == expected
    assert table.to_arrow(where="id > 0").sort_by("id").to_pylist() == expected
    found = table.query(
        "select id from t where items[1].floor = '1010' and items[1].zip = 2 and per['k'].code = '1010'", "t"
    )
    assert found["id"].to_pylist() == [1]


def test_a_reader_of_changes_is_not_given_a_null_where_its_columns_have_none(tmp_path: Path) -> None:
    place = pa.struct([pa.field("zip", pa.string(), nullable=False), pa.field("floor", pa.int32())])
    table = lakebed.create(tmp_path / "orders", pa.schema([("id", pa.int64()), ("place", place)]), keys=["id"])
    before = columns_at(snapshot_of(table))
    table.apply([{"id": 1, "place": {"zip": "1010", "floor": 1}}, {"id": 2, "place": None}])
    table.alter(relax=["place.zip"])
    table.apply([{"id": 3, "place": {"zip": None, "floor": 1}}])
    first, second = versions_with_changes(table.path, 0, table.version, before)
    assert [row["id"] for batch in read_version(table.path, first) for row in batch.to_pylist()] == [1, 2]
    with pytest.raises(InvalidSchema, match=r"a null within column 'place'.*start the query again"):
        list(read_version(table.path, second))
    (now,) = versions_with_changes(table.path, 3, table.version)
    assert [row["place"] for batch in read_version(table.path, now) for row in batch.to_pylist()] == [
        {"zip": None, "floor": 1}
    ]


@pytest.mark.parametrize("name", ["region", "old", "place"])
def test_a_name_that_is_no_longer_one_is_refused_by_name(table: Table, name: str) -> None:
    for read in (
        lambda: table.to_arrow(columns=[name]),
        lambda: table.to_arrow(where=f"{name} is null"),
        lambda: table.lookup([{name: "eu"}]),
        lambda: table.lookup([1], columns=[name]),
        lambda: table.query(f"select {name} from t", "t"),
    ):
        with pytest.raises(InvalidInput, match=name):
            read()


def test_parts_are_left_out_by_bounds_from_before_a_column_was_widened(table: Table) -> None:
    snapshot = snapshot_of(table)
    parts = list(snapshot.parts.values())

    def kept(where: str) -> int:
        found = parts_that_may_match(
            connect(), parts, snapshot.schema, expression(where, "where"), None, snapshot.columns
        )
        return len(found)

    assert len(parts) == 2
    assert kept("id > 20.5") == 1, "a whole number that is a decimal now"
    assert kept("id = 1.000") == 1
    assert kept("qty > timestamp '2024-02-01 00:00:00'") == 1, "a date that is a time now"
    assert kept("qty between '2024-01-01' and '2024-01-02'") == 1
    assert kept("zone = 'us'") == 0, "a partition column with another name"
    assert kept("day = 'x'") == 2, "the name was another column's, whose bounds say nothing of this one"


def test_metadata_tables_have_the_names_of_their_users(table: Table) -> None:
    (detail,) = table.inspect.detail().to_pylist()
    assert (detail["keys"], detail["sort_key"], detail["partition_by"]) == (["key"], ["qty", "key"], ["zone"])
    parts = table.inspect.parts().to_pylist()
    assert [part["partition"] for part in parts] == [[("zone", "eu")]] * 2
    stats = json.loads(parts[0]["stats"])
    assert (stats["minValues"]["key"], stats["minValues"]["id"], stats["minValues"]["qty"]) == (0, 1, "2024-01-01")
    assert stats["minValues"]["zone"] == "eu"
    assert "old" not in stats["nullCount"], "another column may have the name of one that was dropped"
    assert {row["cluster_by"] for row in table.inspect.clustering().to_pylist()} == {"(qty, key)"}
    assert [dict(row["partition"]) for row in table.maintenance.plan().to_pylist() if row["partition"]] in (
        [],
        [{"zone": "eu"}],
    )


def test_pages_have_the_names_of_their_users(table: Table) -> None:
    snapshot = snapshot_of(table)
    shape = documents.shape(snapshot)
    assert (shape["keys"], shape["sort_key"], shape["partition_by"]) == (["key"], ["qty", "key"], ["zone"])
    assert [column["name"] for column in shape["columns"]] == table.schema.names
    html = table_as_html(table.path, snapshot)
    assert "zone" in html and "code" in html and "region" not in html and "col-" not in html
    picture = levels(snapshot, frozenset())
    assert picture.document["axis"]["by"] == ["qty", "key"]
    found = picture.part(picture.document["columns"]["id"][0])
    assert found is not None and found["partition"] == "zone=eu"


def test_a_table_whose_columns_have_one_name_is_read_by_the_same_sql_as_ever(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "orders", SCHEMA, keys=["id"])
    table.apply(rows(0))
    table.apply(rows(2))
    inside, snapshot = internals_of(table), snapshot_of(table)
    assert snapshot.logical_schema is snapshot.schema

    def sql(mapped: bool) -> str:
        connection = connect()
        pinned = inside.view.pin(snapshot)
        mapping = snapshot.columns if mapped else None
        register_view(connection, "v", inside.storage, pinned.files, snapshot.schema, mapping=mapping)
        return str(connection.sql("select sql from duckdb_views() where view_name = 'v'").fetchall())

    assert sql(mapped=True) == sql(mapped=False)
    assert "struct_extract" not in sql(mapped=True)
    table.alter(rename={"place.zip": "code", "qty": "amount"})
    snapshot = snapshot_of(table)
    assert sql(mapped=True).count("struct_extract") == 4, "once for parts with dead rows and once for those without"
