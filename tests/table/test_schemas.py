"""Every type, at its edges, as column, as key and as partition: what is read is what was applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidChanges, InvalidInput, InvalidSchema
from tests.table.values import KEYS, ODD_NAMES, PARTITIONS, TYPES

pytestmark = pytest.mark.usefixtures("own_cache")


def rows_of(table: pa.Table) -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


@pytest.mark.parametrize("name", TYPES)
def test_a_column_of_a_type_reads_as_it_was_applied_before_and_after_settling(name: str, tmp_path: Path) -> None:
    kind, values = TYPES[name]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", kind)])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])
    assert table.schema == schema
    rows = pa.table({"id": range(len(values)), "v": pa.array(values, kind)}, schema)
    table.apply(rows)
    assert rows_of(table.to_arrow()) == rows_of(rows), "in the tail"
    table.settle()
    found = table.to_arrow()
    assert found.schema == schema
    assert rows_of(found) == rows_of(rows), "settled"
    table.apply(rows.slice(0, 1))
    table.settle()
    assert rows_of(lakebed.open(tmp_path / "t").to_arrow()) == rows_of(rows), "through deletion vectors"


@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_a_type_finds_its_row(name: str, tmp_path: Path) -> None:
    kind = TYPES[name][0]
    values = KEYS[name]
    table = lakebed.create(tmp_path / "t", pa.schema([("k", kind), ("v", pa.int64())]), keys=["k"])
    keys = pa.array(values, kind)
    table.apply(pa.table({"k": keys, "v": pa.array([0] * len(values))}))
    table.settle()
    table.apply(pa.table({"k": keys, "v": pa.array([1] * len(values))}))  # every key is found again, by its index
    table.settle()
    assert rows_of(table.to_arrow()) == rows_of(pa.table({"k": keys, "v": pa.array([1] * len(values))}))
    reopened = lakebed.open(tmp_path / "t")  # and by reading key columns
    gone = pa.table({"k": keys.slice(0, 1), "v": pa.array([None], pa.int64()), "op": ["d"]})
    reopened.apply(gone, apply_as_deletes="op = 'd'")
    left = rows_of(pa.table({"k": keys.slice(1), "v": pa.array([1] * (len(values) - 1))}))
    assert rows_of(reopened.to_arrow()) == left, "in the tail"
    reopened.settle()
    assert rows_of(reopened.to_arrow()) == left, "settled"


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_partition_column_of_a_type_reads_as_it_was_applied(name: str, tmp_path: Path) -> None:
    kind, values = PARTITIONS[name]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("p", kind)])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], partition_by=["p"])
    rows = pa.table({"id": range(len(values)), "p": pa.array(values, kind)}, schema)
    table.apply(rows)
    # Delta can't tell an empty partition value from null: null it is, for every reader.
    wanted = rows_of(
        pa.table({"id": range(len(values)), "p": pa.array([v if v != "" else None for v in values], kind)})
    )
    assert rows_of(table.to_arrow()) == wanted, "in the tail"
    table.settle()
    table.apply(rows.slice(0, 2))
    table.settle()
    assert rows_of(table.to_arrow()) == wanted, "settled"
    assert table.to_arrow(["p"], where="id = 1")["p"].to_pylist() == [values[1]]


def test_a_key_may_be_a_partition_column(tmp_path: Path) -> None:
    schema = pa.schema([("p", pa.string()), ("id", pa.int64()), ("v", pa.int64())])
    table = lakebed.create(tmp_path / "t", schema, keys=["p", "id"], partition_by=["p"])
    first = pa.table({"p": ["a b", "a/b", "a b"], "id": [1, 1, 2], "v": [0, 0, 0]})
    table.apply(first)
    table.settle()
    table.apply(pa.table({"p": ["a b"], "id": [1], "v": [1]}))
    table.settle()
    assert rows_of(table.to_arrow()) == rows_of(first.set_column(2, "v", pa.array([1, 0, 0])))


def test_an_empty_text_can_be_no_key_of_a_partition(tmp_path: Path) -> None:
    table = lakebed.create(
        tmp_path / "t", pa.schema([("p", pa.string()), ("v", pa.int64())]), keys=["p"], partition_by=["p"]
    )
    with pytest.raises(InvalidChanges, match="key column 'p' is ''"):
        table.apply(pa.table({"p": [""], "v": [1]}))
    assert table.version == 0


def test_odd_column_names_are_names_like_others(tmp_path: Path) -> None:
    names = [*ODD_NAMES, "plain"]
    schema = pa.schema([pa.field(name, pa.int64()) for name in names])
    for keys in (["ü"], ["a`b", 'say"so"'], ["it's", "a.b", "%41"]):
        table = lakebed.create(tmp_path / keys[0].replace("'", ""), schema, keys=keys, sort_key=["a\\b", "*"])
        first = pa.table({name: pa.array([1, 2, 3], pa.int64()) for name in names})
        table.apply(first)
        table.settle()
        table.apply(first.slice(1, 1))
        assert rows_of(table.to_arrow()) == rows_of(first)
        table.settle()
        assert rows_of(table.to_arrow()) == rows_of(first)
        assert table.to_arrow(["👍"], where='"a.b" = 2')["👍"].to_pylist() == [2]


def test_nested_names_may_be_odd_too(tmp_path: Path) -> None:
    kind = pa.struct(
        [
            pa.field("a.b", pa.int64()),
            pa.field("it's", pa.string()),
            pa.field("ü", pa.list_(pa.field("element", pa.int64()))),
        ]
    )
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("s", kind)]), keys=["id"])
    rows = pa.table({"id": [1], "s": pa.array([{"a.b": 1, "it's": "x", "ü": [1, None]}], kind)})
    table.apply(rows)
    table.settle()
    assert rows_of(table.to_arrow()) == rows_of(rows)


@pytest.mark.parametrize(
    "kind", [pa.uint8(), pa.uint64(), pa.time64("us"), pa.duration("us"), pa.decimal256(50, 2), pa.null(), pa.float16()]
)
def test_a_type_that_delta_lacks_is_refused_by_column(kind: pa.DataType, tmp_path: Path) -> None:
    for nested in (kind, pa.list_(kind), pa.struct([("x", kind)])):
        with pytest.raises(InvalidSchema, match="column 'odd"):
            lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("odd", nested)]), keys=["id"])
    assert not list(tmp_path.iterdir())


NAMELESS = [("", pa.int64()), ("a\0b", pa.int64())]


@pytest.mark.parametrize(
    "column", [*NAMELESS, *(("s", pa.list_(pa.struct([one]))) for one in NAMELESS), ("_lakebed_x", pa.int64())], ids=str
)
def test_a_name_that_can_not_be_is_refused(column: tuple[str, pa.DataType], tmp_path: Path) -> None:
    with pytest.raises(InvalidSchema, match=r"(?s)(column|field) .*name"):
        lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64()), column]), keys=["id"])


def test_names_that_differ_only_by_case_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSchema, match="case"):
        lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("ID", pa.int64())]), keys=["id"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": ["nope"]}, "keys names the column 'nope'"),
        ({"keys": ["id", "id"]}, "twice"),
        ({"keys": ["s"]}, "nested"),
        ({"sort_key": ["nope"]}, "sort_key names"),
        ({"partition_by": ["s"]}, "nested"),
        ({"partition_by": ["f"]}, "partition_by lists the column 'f'"),
        ({"partition_by": ["id", "s", "f"]}, "partition_by"),
        ({"sequence_by": "id"}, "needs keys"),
        ({"keys": ["id"], "sequence_by": "s"}, "nested"),
        ({"keys": ["id"], "properties": {"lakebed.conflict_scop": "file"}}, "did you mean 'lakebed.conflict_scope'"),
        ({"keys": ["id"], "properties": {"delta.enableChangeDataFeed": "true"}}, "delta.enableChangeDataFeed"),
    ],
)
def test_a_wrong_argument_is_named_and_creates_nothing(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.int64())])), ("f", pa.float64())])
    with pytest.raises(InvalidInput, match=message):
        lakebed.create(tmp_path / "t", schema, **arguments)
    assert not list(tmp_path.glob("t/_delta_log/*"))


def test_a_missing_value_of_a_column_that_must_have_one_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])
    with pytest.raises(InvalidChanges, match="'v' is NOT NULL but has no value in row 1"):
        table.apply(pa.table({"id": [1, 2], "v": ["a", None]}))
    table.apply(pa.table({"id": [1], "v": pa.array([None], pa.string()), "op": ["d"]}), apply_as_deletes="op = 'd'")
    assert table.to_arrow().num_rows == 0


def test_changes_are_cast_only_where_nothing_is_lost(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int8()), ("t", pa.timestamp("us", "UTC"))])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])
    when = pa.array([0], pa.timestamp("ms", "Europe/Berlin"))
    table.apply(pa.table({"id": pa.array([1], pa.uint32()), "v": pa.array([127], pa.int64()), "t": when}))
    assert table.to_arrow()["v"].to_pylist() == [127]
    with pytest.raises(InvalidChanges, match="column 'v'"):
        table.apply(pa.table({"id": [1], "v": [128], "t": when}))
    with pytest.raises(InvalidChanges, match="column 't'"):
        table.apply(pa.table({"id": [1], "v": [1], "t": pa.array([1], pa.timestamp("us"))}))


def test_a_slice_of_structs_within_structs_is_applied_as_it_is(tmp_path: Path) -> None:
    kind, values = TYPES["struct"]
    rows = pa.table({"id": range(len(values)), "v": pa.array(values, kind)})
    table = lakebed.create(tmp_path / "t", rows.schema, keys=["id"])
    table.apply(rows.slice(1, 2))
    table.settle()
    assert rows_of(table.to_arrow()) == rows_of(rows.slice(1, 2))
