"""Names that files can't have, and names in another case: in tables, altered ones, change rows, copies and layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

import lakebed
from lakebed.errors import InvalidInput
from lakebed.operations.purge import files as purge_files
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.schema.change import SchemaChange
from lakebed.schema.column_mapping import COLUMN_MAPPING
from lakebed.schema.conversion import ChangeNames
from tests.internals import log_of
from tests.oracle import in_order
from tests.sources.test_upstream import Layer
from tests.table.values import MAPPED_NAMES
from tests.view.test_a_copy_of_changes import rows_of

PLACE = pa.struct([("Zip Code", pa.string()), ("city", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("Order Id", pa.int64(), False), ("unit,price", pa.int64()), pa.field("Ship (To)", pa.string()),
        ("_change_type", pa.string()), ("place", PLACE), ("id", pa.int64()),
    ]
)  # fmt: skip


def row(number: int, price: int = 1, **more: Any) -> dict[str, Any]:
    place = {"Zip Code": str(number), "city": "a"}
    values = [number, price, "xy"[number % 2], f"c{number}", place, number]
    return dict(zip(SCHEMA.names, values, strict=True)) | more


def orders(path: Path, **how: Any) -> lakebed.Table:
    table = lakebed.create(path, SCHEMA, keys=["Order Id"], partition_by=["Ship (To)"], **how)
    table.apply([row(1), row(2)])
    return table


def features(table: lakebed.Table) -> frozenset[str]:
    return log_of(table).refresh().protocol.reader_features


def test_only_a_name_that_files_can_not_have_turns_on_column_mapping(tmp_path: Path) -> None:
    plain = lakebed.create(
        tmp_path / "plain", pa.schema([("id", pa.int64()), ("a.b", pa.int64()), ("_change_type", pa.int64())])
    )
    assert COLUMN_MAPPING not in features(plain)
    nested = lakebed.create(tmp_path / "nested", pa.schema([("id", pa.int64()), ("s", pa.list_(PLACE))]))
    assert COLUMN_MAPPING in features(nested)
    snapshot = log_of(orders(tmp_path / "t")).refresh()
    assert snapshot.logical_schema.names == SCHEMA.names
    assert [name for name in snapshot.schema.names if not name.startswith("col-")] == ["_change_type", "place", "id"]
    assert len({*snapshot.schema.names}) == len(SCHEMA)


def test_a_column_of_such_a_name_is_added_to_a_table_with_plain_names(tmp_path: Path) -> None:
    table = lakebed.create(
        tmp_path / "t", pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())]))]), keys=["id"]
    )
    table.apply([{"id": 1, "s": {"a": 1}}])
    added = table.alter(add={"unit,price": "struct<`x y`: long>"})
    assert "column mapping" in added.notes[0]
    table.alter(add={"s.b c": "long"}, comment={"unit,price": "in cents"})
    table.apply([{"id": 2, "s": {"a": 1, "b c": 2}, "unit,price": {"x y": 3}}])
    table.settle()
    assert in_order(table.to_arrow().to_pylist()) == [
        {"id": 1, "s": {"a": 1, "b c": None}, "unit,price": None},
        {"id": 2, "s": {"a": 1, "b c": 2}, "unit,price": {"x y": 3}},
    ]
    change = json.loads(table.inspect.schemas().to_pylist()[1]["change"])
    assert str(SchemaChange.from_json(change)) == "add unit,price struct<`x y`: long>"
    table.alter(rename={"unit,price": "Unit Price"})
    table.alter(drop=["s.b c"])
    assert table.schema.names == ["id", "s", "Unit Price"]


def test_rows_bring_such_columns(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]), keys=["id"])
    table.apply([{"id": 1, "Order Date": "2026", "s": {"x y": 1}}], evolve=["add"])
    table.apply([{"ID": 2, "ORDER date": "2027", "S": {"X Y": 2}}], evolve=["add"])
    assert in_order(table.to_arrow().to_pylist()) == [
        {"id": 1, "Order Date": "2026", "s": {"x y": 1}},
        {"id": 2, "Order Date": "2027", "s": {"x y": 2}},
    ]
    assert table.schema.names == ["id", "Order Date", "s"]


def test_rows_in_another_case_delete_and_leave_columns_out(tmp_path: Path) -> None:
    schema = pa.schema([("Order Id", pa.int64()), ("a note", pa.string()), ("v", pa.int64())])
    table = lakebed.create(tmp_path / "t", schema, keys=["Order Id"])
    for policy in ({}, {"evolve": ["add"]}, {"on_mismatch": "rescue"}):
        table.apply([{"order id": n, "A Note": "x", "V": n} for n in (1, 2)], except_column_list=["A Note"], **policy)
        assert in_order(table.to_arrow().select(schema.names).to_pylist()) == [
            {"Order Id": n, "a note": None, "v": n} for n in (1, 2)
        ]
        table.apply([{"order id": n, "A Note": "x", "V": n} for n in (1, 2)], apply_as_deletes="V = 1", **policy)
        assert table.to_arrow().select(schema.names).to_pylist() == [{"Order Id": 2, "a note": "x", "v": 2}]
        table.delete("v = 2")
    with pytest.raises(InvalidInput, match="a key"):
        table.apply([{"ORDER ID": 1, "a note": "x", "v": 1}], except_column_list=["ORDER ID"])


def test_a_table_of_another_writer_keeps_such_names_in_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)
    key, place, *others = MAPPED_NAMES
    rows = pa.table({key: [1, 2, 3], place: ["x", "y z", "x"]} | {name: [7, 8, 9] for name in others})
    write_deltalake(tmp_path / "t", rows, partition_by=[place])
    table = lakebed.convert(tmp_path / "t", keys=[key])
    assert COLUMN_MAPPING in features(table)
    assert table.schema.names == log_of(table).refresh().schema.names == rows.column_names
    table.apply(rows.slice(0, 1).set_column(2, others[0], pa.array([70])))
    table.apply([dict.fromkeys(others, 1) | {key: 4, place: None}])
    table.settle()
    table.purge(f'"{key}" = 3')
    assert table.lookup([{key: 3}]).num_rows == 0
    found = pa.table(QueryBuilder().register("t", DeltaTable(str(tmp_path / "t"))).execute("select * from t"))
    assert in_order(found.select(rows.column_names).to_pylist()) == in_order(table.to_arrow().to_pylist())
    assert table.lookup([{key: 1}]).to_pylist() == [rows.slice(0, 1).to_pylist()[0] | {others[0]: 70}]
    table.alter(rename={key: "id"}, add={"x y": "string"})
    assert not table.doctor(deep=True).findings


def test_of_rows_with_two_columns_in_two_cases_the_table_takes_its_own_and_counts_the_other(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), keys=["id"])
    for evolve in ([], ["add"]):
        table.apply([{"id": 1, "V": 1, "v": 2}], evolve=evolve)
        assert table.to_arrow().to_pylist() == [{"id": 1, "v": 2}]
    [finding] = [one.what for one in table.status().findings]
    assert "V in 2" in finding


def test_rows_are_found_changed_and_removed_by_such_columns(tmp_path: Path) -> None:
    table = orders(
        tmp_path / "t", properties={"lakebed.ttl": ""}, sort_key=["`unit,price` desc"], sequence_by="unit,price"
    )
    table.settle()
    assert table.lookup([{"Order Id": 2}]).to_pylist() == [row(2)]
    found = table.query("""select "place"."Zip Code" as z from t where "Ship (To)" = 'y' and "unit,price" = 1""", "t")
    assert found.to_pylist() == [{"z": "1"}]
    assert table.to_arrow(columns=["unit,price", "place"], where='"Order Id" = 1').num_rows == 1
    table.update({"_change_type": "'z'"}, '"Order Id" = 1')
    table.apply([row(2, 0)])
    assert in_order(table.to_arrow().to_pylist()) == [row(1, _change_type="z"), row(2)]
    table.detach_partition({"Ship (To)": "y"})
    assert in_order(table.to_arrow().to_pylist()) == [row(2)]
    assert table.delete("\"Ship (To)\" = 'x'").rows == 1
    assert not table.doctor(deep=True).findings


def test_rows_live_by_such_a_column(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), (" at: time", pa.timestamp("us", "UTC"))])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], properties={"lakebed.ttl": "` at: time`: 90 days"})
    ttl = log_of(table).refresh().logical_settings.ttl
    assert ttl is not None and (ttl.column, table.properties["lakebed.ttl"]) == (" at: time", "` at: time`: 90 days")
    table.alter(rename={" at: time": "at"})
    assert table.properties["lakebed.ttl"] == "at: 90 days"


# -- change rows -------------------------------------------------------------------------------------------------------


def read(table: lakebed.Table) -> Iterator[dict[str, Any]]:
    for version in versions_with_changes(table.path, 0, table.version):
        for batch in read_version(table.path, version):
            yield from batch.to_pylist()


def test_change_rows_name_what_they_say_beside_the_columns(tmp_path: Path) -> None:
    first, *_ = read(orders(tmp_path / "t"))
    assert (first["_change_type"], first["__change_type"], first["_commit_version"]) == ("c1", "upsert", 1)
    assert ChangeNames.beside(["_Change_Type", "__change_type", "x"]).type == "___change_type"


@pytest.mark.parametrize("sequence_by", [None, "seq"])
def test_a_copy_of_such_a_table_equals_it(sequence_by: str | None, tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("_change_sequence", pa.int64()))
    table = lakebed.create(tmp_path / "t", schema, keys=["Order Id"], sequence_by=sequence_by)
    names = ChangeNames.beside(schema.names)
    copy = lakebed.create(tmp_path / "copy", schema, keys=["Order Id"], sequence_by=sequence_by and names.sequence)
    upstream_of = lakebed.create(
        tmp_path / "layer", schema, keys=["Order Id"], sequence_by=sequence_by and names.sequence
    )
    layer = Layer(table, upstream_of)
    more = {"_change_sequence": 9, **({"seq": 2} if sequence_by else {})}
    table.apply([row(1) | more, row(2) | more])
    table.settle()
    table.apply([row(1, 5) | more | ({"seq": 1} if sequence_by else {})])
    table.delete('"Order Id" = 2')
    for version in versions_with_changes(table.path, 0, table.version):
        for batch in read_version(table.path, version):
            copy.apply(pa.Table.from_batches([batch]), apply_as_deletes=f"{names.type} = 'delete'")
    layer.follow()
    assert in_order(copy.to_arrow().to_pylist()) == rows_of(table) == layer.rows()
    assert len(rows_of(table)) == 1


def test_a_layer_goes_on_when_its_upstream_gets_such_columns_or_names_in_another_case(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("userid", pa.int64())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], sequence_by="seq")
    copy = lakebed.create(tmp_path / "copy", schema, keys=["id"], sequence_by="_change_sequence")
    layer = Layer(table, copy)
    table.apply([{"id": 1, "userid": 1, "seq": 5}])
    layer.follow()
    table.alter(
        add={"_change_type": "string", "_change_sequence": "long", "Order Date": "string"}, rename={"userid": "userId"}
    )
    table.apply([{"id": 1, "userId": 2, "_change_type": "x", "_change_sequence": 0, "Order Date": "d", "seq": 6}])
    table.apply([{"id": 1, "userId": 3, "_change_type": "late", "_change_sequence": 9, "Order Date": "d", "seq": 4}])
    layer.follow()
    assert layer.rows() == [{"id": 1, "userid": 2, "_change_type": "x", "Order Date": "d"}]


def test_the_names_of_change_rows_change_with_a_word(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]), keys=["id"])
    result = table.alter(add={"_Commit_Version": "long"})
    assert result.notes == (
        "from now on change rows have other names beside the table's columns: _commit_version is __commit_version",
    )
    notes = table.alter(rename={"_Commit_Version": "v"}, dry_run=True).notes
    assert any(note.endswith("__commit_version is _commit_version") for note in notes)


def test_a_name_that_no_column_can_have_is_refused_with_the_rule(tmp_path: Path) -> None:
    table = orders(tmp_path / "t")
    for name, rule in (("_lakebed_x", "reserved for lakebed"), ("_metadata", "reserved for Spark"), ("x\0", "NUL")):
        with pytest.raises(InvalidInput, match=rule):
            table.alter(add={name: "string"})
        table.apply([row(3) | {name: "x"}], evolve=["add"])
    with pytest.raises(InvalidInput, match="there is 'Order Id'"):
        table.alter(add={"ORDER ID": "string"})
    assert table.schema.names == SCHEMA.names
    counted = json.dumps([one.what for one in table.status().findings])
    assert "_lakebed_x" in counted and "_metadata" in counted
