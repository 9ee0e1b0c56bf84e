"""What records need of their table, compared schema by schema, and what a policy allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidInput
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import (
    ANY_PRECISION,
    COLUMNS_MAX,
    EVOLUTIONS,
    EvolvePolicy,
    Needed,
    merged,
    needed,
    pieces_of,
)

EVERYTHING = EvolvePolicy(allowed=frozenset(EVOLUTIONS))
TABLE = pa.schema([pa.field("id", pa.int32(), False), ("qty", pa.int32()), pa.field("note", pa.string(), False)])


def need(record: Mapping[str, Any], policy: EvolvePolicy = EVERYTHING, table: pa.Schema = TABLE) -> Needed:
    fields = [kind if isinstance(kind, pa.Field) else pa.field(name, kind, False) for name, kind in record.items()]
    return needed(table, pa.schema(fields), policy, ("id",))


def nullable(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind)


@pytest.mark.parametrize(
    ("record", "change"),
    [
        ({"id": pa.int32(), "qty": pa.int32(), "note": pa.string()}, None),
        ({"id": pa.int16(), "qty": pa.int8(), "note": pa.string()}, None),
        ({"id": pa.int32(), "note": pa.string()}, None),
        ({"id": pa.int32()}, SchemaChange(relax=("note",))),
        ({"id": pa.int32(), "note": nullable("note", pa.string())}, SchemaChange(relax=("note",))),
        ({"id": nullable("id", pa.int32()), "note": pa.string()}, None),
        ({"id": pa.int64(), "note": pa.string()}, SchemaChange(widen={"id": pa.int64()})),
        ({"id": pa.int32(), "qty": pa.string(), "note": pa.string()}, None),
        ({"id": pa.int32(), "note": pa.string(), "coupon": pa.string()}, SchemaChange(add={"coupon": pa.string()})),
        ({"id": pa.int32(), "note": pa.string(), "a.b": pa.bool_()}, SchemaChange(add={"`a.b`": pa.bool_()})),
    ],
)
def test_a_schema_asks_for_what_its_rows_need(record: dict[str, Any], change: SchemaChange | None) -> None:
    assert need(record).change == change


def test_fields_within_structs_lists_and_maps_are_compared_too() -> None:
    address = pa.struct([("street", pa.string()), pa.field("zip", pa.int32(), False)])
    table = pa.schema([("id", pa.int32()), ("address", address), ("tags", pa.list_(pa.int16()))])
    more = pa.struct([("zip", pa.int64()), ("city", pa.string())])
    record = {"id": pa.int32(), "address": more, "tags": pa.list_(pa.int32())}
    assert need(record, table=table).change == SchemaChange(
        add={"address.city": pa.string()},
        widen={"address.zip": pa.int64(), "tags.element": pa.int32()},
        relax=("address.zip",),
    )


def test_only_what_is_allowed_is_asked_for() -> None:
    record = {"id": pa.int64(), "coupon": pa.string()}
    assert need(record, EvolvePolicy(allowed=frozenset({"add"}))).change == SchemaChange(add={"coupon": pa.string()})
    assert need(record, EvolvePolicy(allowed=frozenset({"relax"}))).change == SchemaChange(relax=("note",))
    fixed = need(record, EvolvePolicy())
    assert (fixed.change, list(fixed.unknown)) == (None, ["coupon"])


HOSTILE = {
    "Note": (pa.int32(), "only case tells it from 'note'"),
    "_lakebed_op": (pa.string(), "names that begin with '_lakebed_' are reserved for lakebed"),
    "_Metadata": (pa.string(), "the name is reserved for Spark"),
    "": (pa.string(), "a name must not be empty"),
    "n\0l": (pa.string(), "a name must not have a NUL"),
    "nothing": (pa.null(), "no column can have its type"),
    "clock": (pa.list_(pa.time64("us")), "no column can have its type"),
    "empty": (pa.struct([("", pa.string())]), "no column can have its type"),
    "source.lsn": (pa.int64(), "sequence_by takes what is called so from the events"),
    "_rescued": (pa.string(), "the name is reserved for what on_mismatch: rescue keeps"),
    "_Rescued": (pa.string(), "only case tells it from '_rescued'"),
}


def test_a_field_that_no_column_can_be_like_is_left_out_and_the_reason_said() -> None:
    policy = EvolvePolicy(allowed=frozenset(EVOLUTIONS), on_mismatch="rescue")
    fields = {"id": pa.int32(), "note": pa.string(), **{name: kind for name, (kind, _) in HOSTILE.items()}}
    record = [pa.field(name, kind, pa.types.is_null(kind)) for name, kind in fields.items()]
    found = needed(TABLE, pa.schema(record), policy, ("id",), "source.lsn")
    assert (found.change, found.unknown) == (None, {})
    assert {path: why for path, why in found.left_out.items() if not why.startswith(HOSTILE[path[0]][1])} == {}
    assert found.left_out.keys() == {(name,) for name in HOSTILE}


def test_any_other_name_is_a_column_of_its_own() -> None:
    names = [
        "Order Date",
        "unit,price",
        "Ship (To)",
        "a;{}=\t\n",
        "_change_type",
        "_commit_version",
        "_rescued",
        "İ",
        "ß",
        "SS",
    ]
    found = need({"id": pa.int32(), "note": pa.string(), **dict.fromkeys(names, pa.string())})
    assert found.change == SchemaChange(add=dict.fromkeys(names, pa.string()))
    assert not found.unknown and not found.left_out


def test_columns_may_name_a_column_for_what_could_not_be_one() -> None:
    policy = EvolvePolicy(
        allowed=frozenset(EVOLUTIONS), renamed={"_metadata": "meta", "Note": "note_2", "odd": "_metadata"}
    )
    record = {"id": pa.int32(), "note": pa.string(), "Note": pa.int8(), "odd": pa.int16(), "_metadata": pa.int32()}
    found = need(record, policy)
    assert found.change == SchemaChange(add={"note_2": pa.int8(), "meta": pa.int16()})
    assert not found.left_out


def test_of_a_struct_the_fields_that_can_be_stay() -> None:
    vector = pa.struct(
        [("n", pa.int16()), ("N", pa.int8()), ("of", pa.map_(pa.int16(), pa.null())), ("x y", pa.int8())]
    )
    kept = pa.struct([("n", pa.int16()), ("x y", pa.int8())])
    table = pa.schema([("id", pa.int32()), ("old", pa.struct([("n", pa.int16())]))])
    found = need({"id": pa.int32(), "new": pa.list_(vector), "old": vector}, table=table)
    assert found.change == SchemaChange(add={"new": pa.list_(pa.field("element", kept)), "old.x y": pa.int8()})
    assert found.left_out.keys() == {(name, field) for name in ("new", "old") for field in ("N", "of")}


def test_a_field_in_another_case_is_the_column_unless_another_has_its_name() -> None:
    table = pa.schema([("id", pa.int32()), ("s", pa.struct([("zip", pa.int16())])), ("ÄÖ", pa.int32())])
    found = need({"ID": pa.int32(), "S": pa.struct([("Zip", pa.int32())]), "äÖ": pa.int64()}, table=table)
    assert found.change == SchemaChange(widen={"s.zip": pa.int32(), "ÄÖ": pa.int64()})
    found = need({"ID": pa.string(), "id": pa.int32()}, table=table)
    assert (found.change, list(found.left_out)) == (None, [("ID",)])


def test_columns_are_added_up_to_a_bound() -> None:
    many = {f"c{number}": pa.int32() for number in range(COLUMNS_MAX)}
    found = need({"id": pa.int32(), "note": pa.string(), **many})
    assert found.change is not None
    assert len(found.change.add) + len(TABLE) == COLUMNS_MAX
    assert len(found.left_out) == len(TABLE)


def test_a_decimal_of_unknown_precision_widens_nothing() -> None:
    table = pa.schema([("price", pa.decimal128(10, 2))])
    wide = pa.field("price", pa.decimal128(38, 2), metadata=ANY_PRECISION)
    assert need({"price": wide}, table=table).change is None
    assert need({"price": wide.remove_metadata()}, table=table).change is not None


def test_what_the_table_refused_is_not_asked_for_again() -> None:
    refusing = EvolvePolicy(allowed=frozenset(EVOLUTIONS), refused=frozenset({"id", "note", "coupon"}))
    found = need({"id": pa.int64(), "coupon": pa.string()}, refusing)
    assert (found.change, found.unknown.keys()) == (None, {"coupon"})


def test_a_column_under_its_new_name_is_no_new_one() -> None:
    policy = EvolvePolicy(allowed=frozenset(EVOLUTIONS), renamed={"comment": "note", "remark": "comment"})
    for name in ("note", "comment", "remark"):
        assert need({"id": pa.int32(), name: pa.string()}, policy).change is None
    renamed = pa.schema([("id", pa.int32()), ("remark", pa.string())])
    assert need({"id": pa.int32(), "note": pa.string()}, policy, renamed).change is None


@pytest.mark.parametrize("columns", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "a"}])
def test_names_that_go_in_a_circle_are_refused(columns: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="columns"):
        EvolvePolicy(renamed=columns)


def test_two_columns_of_the_table_are_not_one() -> None:
    with pytest.raises(InvalidInput, match="'qty' and 'note' are one column"):
        need({}, EvolvePolicy(renamed={"qty": "note"}))


def test_an_unknown_word_is_refused_with_the_words_there_are() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'widen'"):
        EvolvePolicy(allowed=frozenset({"wide"}))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="did you mean 'rescue'"):
        EvolvePolicy(on_mismatch="rescued")  # type: ignore[arg-type]


def test_what_several_schemas_need_is_one_change_in_any_order() -> None:
    old = SchemaChange(add={"n": pa.int32(), "s": pa.struct([("a", pa.int32())])}, widen={"id": pa.int64()})
    new = SchemaChange(add={"n": pa.int64(), "s": pa.struct([("a", pa.int64()), ("b", pa.string())])}, relax=("note",))
    wide = pa.struct([("a", pa.int64()), ("b", pa.string())])
    whole = SchemaChange(add={"n": pa.int64(), "s": wide}, widen={"id": pa.int64()}, relax=("note",))
    assert merged([old, new]) == whole == merged([new, old])
    text = SchemaChange(add={"n": pa.string()})
    assert merged([old, text]).add["n"] == pa.int32()


def test_the_pieces_of_a_change_are_the_change() -> None:
    whole = SchemaChange(add={"n": pa.int32(), "t": pa.string()}, widen={"id": pa.int64()}, relax=("note",))
    assert [path for path, _ in pieces_of(whole)] == ["n", "t", "id", "note"]
    assert merged(piece for _, piece in pieces_of(whole)) == whole
