"""Fields that are NOT NULL in structs that may be null."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.errors import InvalidChanges, InvalidInput
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.schema.nested import as_declared, first_missing, nullable


def must(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


DEEP = pa.struct(
    [
        must("a", pa.int64()),
        must("b", pa.struct([must("c", pa.string())])),
        must("l", pa.list_(must("element", pa.bool_()))),
        must("m", pa.map_(pa.string(), must("value", pa.struct([must("q", pa.decimal128(5, 1))])))),
    ]
)
VALUE = {"a": 1, "b": {"c": "x"}, "l": [True, False], "m": [("k", {"q": Decimal("1.5")})]}
NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "struct": (DEEP, [VALUE, None, VALUE]),
    "struct in a struct": (pa.struct([pa.field("s", DEEP)]), [{"s": VALUE}, {"s": None}, None]),
    "structs in a list": (pa.list_(pa.field("element", DEEP)), [[VALUE, None], None, []]),
    "structs that must be in a list": (pa.list_(must("element", DEEP)), [[VALUE], None, [VALUE, VALUE]]),
    "structs in a map": (pa.map_(pa.string(), pa.field("value", DEEP)), [[("k", VALUE), ("l", None)], None, []]),
}


@pytest.mark.parametrize("name", NESTED)
def test_what_was_computed_without_the_declarations_gets_them_back(name: str, tmp_path: Path) -> None:
    kind, values = NESTED[name]
    plain = pa.chunked_array([pa.array(values, nullable(kind)), pa.array([None, *values], nullable(kind))])
    for column, expected in ((plain, [*values, None, *values]), (plain.slice(1, 4), [*values[1:], None, values[0]])):
        declared = as_declared(column, kind)
        assert (declared.type, declared.to_pylist()) == (kind, expected)
        declared.validate(full=True)
        pq.write_table(pa.table({"v": declared}), tmp_path / "v.parquet")  # it refuses a null where there may be none
        assert first_missing(column, kind) is None


def test_the_first_row_that_lacks_a_value_is_found_with_the_place_that_lacks_it() -> None:
    lacking = VALUE | {"m": [("k", {"q": None})]}
    chunks = [[VALUE, None], [None, VALUE, lacking, lacking]]
    column = pa.chunked_array([pa.array(chunk, nullable(DEEP)) for chunk in chunks])
    assert first_missing(column, DEEP) == (4, "m.value.q")


@pytest.mark.parametrize("name", NESTED)
def test_a_null_struct_is_written_read_and_deleted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    kind, values = NESTED[name]
    schema = pa.schema([must("id", pa.int64()), pa.field("v", kind)])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])
    rows = [{"id": at, "v": value} for at, value in enumerate(values)]

    def read() -> list[dict[str, Any]]:
        found = table.to_arrow()
        assert found.schema == schema
        return sorted(found.to_pylist(), key=lambda row: int(row["id"]))

    table.apply(pa.Table.from_pylist(rows, schema))
    assert read() == rows, "in the tail"
    table.settle()
    assert table.update({"v": "null"}, "id = 0").rows == 1
    assert table.update({"v": "v"}, "id = 2").rows == 1
    rows[0]["v"] = None
    assert read() == rows, "mutated"
    assert table.lookup([1]).to_pylist() == rows[1:2]
    table.maintenance.recluster(final=True)
    gone = pa.table({"id": [1], "v": pa.nulls(1, kind), "op": ["d"]})
    table.apply(gone, apply_as_deletes="op = 'd'")
    table.apply(pa.table({"id": [2], "v": pa.array(values[:1], kind)}), except_column_list=["v"])
    rows = [rows[0], {"id": 2, "v": None}]
    assert read() == rows, "with a delete and a row whose value is not taken over"
    table.settle()
    assert read() == rows, "settled"
    assert not table.doctor(deep=True).findings
    found = versions_with_changes(table.path, 0, table.version)
    assert sum(len(batch) for version in found for batch in read_version(table.path, version)) == 7


def test_a_struct_that_lacks_a_value_it_needs_is_refused_by_name(tmp_path: Path) -> None:
    kind = pa.struct([must("a", pa.int64()), pa.field("b", pa.int64())])
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", kind)]), keys=["id"])
    for given in (kind, nullable(kind)):
        rows = pa.table({"id": [1, 2], "v": pa.array([{"a": 1}, {"b": 1}], given), "op": ["u", "u"]})
        with pytest.raises(InvalidChanges, match=r"'v\.a' is NOT NULL but has no value in row 1"):
            table.apply(rows, apply_as_deletes="op = 'd'")
        table.apply(rows.set_column(2, "op", [["u", "d"]]), apply_as_deletes="op = 'd'")  # nothing but the key counts
    with pytest.raises(InvalidInput, match=r"'v\.a' is NOT NULL"):
        table.update({"v": "{'a': null, 'b': 1}"}, "id = 1")
    assert table.to_arrow().to_pylist() == [{"id": 1, "v": {"a": 1, "b": None}}]
