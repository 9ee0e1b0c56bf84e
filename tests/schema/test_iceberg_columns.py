"""Numbers of columns for Iceberg: each is given once, stays through every change, and is Delta's with column mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.errors import InvalidSchema
from lakebed.iceberg.columns import iceberg_columns
from tests.internals import log_of

NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("s", pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.list_(pa.string())))])),
        ("m", pa.map_(pa.string(), pa.struct([("q", pa.int8())]))),
    ]
)
ON = {"lakebed.iceberg": "on"}


def numbers(table: lakebed.Table) -> dict[str, int]:
    """The numbers of columns, fields, and what lists and maps hold, by path."""
    found: dict[str, int] = {}

    def see(kind: Any, path: str) -> None:
        if not isinstance(kind, dict):
            return
        for each in kind.get("fields", ()):
            found[f"{path}{each['name']}"] = each["id"]
            see(each["type"], f"{path}{each['name']}.")
        for step in ("element", "key", "value"):
            if f"{step}-id" in kind:
                found[f"{path}{step}"] = kind[f"{step}-id"]
                see(kind[step], f"{path}{step}.")

    see(iceberg_columns(log_of(table).refresh()).schema, "")
    return found


def test_everything_has_a_number_of_its_own(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", NESTED, keys=["id"], properties=ON)
    given = numbers(table)
    assert set(given) == {
        "id", "s", "s.x", "s.tags", "s.tags.element", "s.tags.element.element", "m", "m.key", "m.value", "m.value.q",
    }  # fmt: skip
    assert len(set(given.values())) == len(given)


def test_numbers_stay_through_changes_and_are_never_given_again(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", NESTED, keys=["id"], properties=ON)
    first = numbers(table)
    table.alter(add={"s.y": pa.string(), "l": pa.list_(pa.int64())})
    added = numbers(table)
    assert first.items() <= added.items()
    table.alter(rename={"s": "t"}, drop=["l"])  # the first that needs column mapping
    renamed = numbers(table)
    assert renamed == {
        path.replace("s", "t", 1) if path.partition(".")[0] == "s" else path: number
        for path, number in added.items()
        if path.partition(".")[0] != "l"
    }
    table.alter(add={"l": pa.list_(pa.int64())})
    assert {numbers(table)["l"], numbers(table)["l.element"]}.isdisjoint(added.values())


@pytest.mark.parametrize("before", [True, False])
def test_files_of_a_table_with_column_mapping_have_the_numbers(tmp_path: Path, before: bool) -> None:
    table = lakebed.create(tmp_path / "t", NESTED, keys=["id"], properties=ON if before else {})
    table.alter(rename={"m": "map"})
    if not before:
        table.set_properties(ON)
    table.apply([{"id": 1, "s": {"x": 1, "tags": [["a"]]}, "map": [("k", {"q": 1})]}])
    [part] = log_of(table).refresh().tail.values()
    given = numbers(table)
    schema = pq.read_schema(f"{table.path}/{part.path}")
    tags = schema.field("s").type.field("tags").type.value_field

    def number(field: pa.Field) -> int:
        return int(field.metadata[b"PARQUET:field_id"])

    assert number(schema.field("s")) == given["s"]
    assert number(tags) == given["s.tags.element"]
    assert number(tags.type.value_field) == given["s.tags.element.element"]
    assert number(schema.field("m").type.item_field) == given["map.value"]


def test_delta_s_numbers_are_not_in_a_table_without_column_mapping(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", NESTED, keys=["id"], properties=ON)
    assert "delta.columnMapping" not in log_of(table).refresh().metadata.schema_string, "readers of Delta refuse that"


@pytest.mark.parametrize(
    ("kind", "wide", "says"),
    [
        (pa.int16(), pa.int64(), True),
        (pa.float32(), pa.float64(), True),
        (pa.decimal128(5, 1), pa.decimal128(12, 1), True),
        (pa.decimal128(5, 1), pa.decimal128(12, 2), False),
        (pa.int32(), pa.float64(), False),
        (pa.date32(), pa.timestamp("us"), False),
        (pa.int32(), pa.decimal128(10, 0), False),
    ],
)
def test_a_type_is_widened_to_what_iceberg_can_say(tmp_path: Path, kind: Any, wide: Any, says: bool) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", kind)])
    table = lakebed.create(tmp_path / "on", schema, keys=["id"], properties=ON)
    late = lakebed.create(tmp_path / "late", schema, keys=["id"])
    late.alter(widen={"a": wide})
    if says:
        table.alter(widen={"a": wide})
        late.set_properties(ON)
        assert numbers(table) == numbers(late)
        return
    with pytest.raises(InvalidSchema, match="which Iceberg can't say"):
        table.alter(widen={"a": wide})
    with pytest.raises(InvalidSchema, match=r"'a' is widened from .*, which Iceberg can't say"):
        late.set_properties(ON)


def test_rows_of_a_wider_type_are_quarantined(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.int32())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], properties=ON)
    before = orjson.loads(log_of(table).refresh().metadata.schema_string)
    with pytest.raises(lakebed.errors.InvalidInput):
        table.apply(pa.table({"id": [1], "a": [1.5]}), evolve=["widen"])
    assert orjson.loads(log_of(table).refresh().metadata.schema_string) == before
