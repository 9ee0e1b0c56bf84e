"""Debezium's JSON with inline schemas, and plain JSON, where records and table differ."""

from __future__ import annotations

import json
import pickle
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from lakebed.decode import json_rows
from lakebed.decode.debezium import events as debezium
from lakebed.decode.debezium.inline_schemas import row_of_envelope
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.json.text import Unreadable
from lakebed.ingest.batch_writer import WriteTask
from lakebed.parts.changes import WriteSpec
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import EVOLUTIONS, EvolvePolicy, OnMismatch
from tests.decode.fuzz import only_one_by_one
from tests.decode.records import event, records, with_schema

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("qty", pa.int32()), ("note", pa.string())])
ID = {"type": "int64", "field": "id", "optional": False}
QTY = {"type": "int32", "field": "qty", "optional": True}
NOTE = {"type": "string", "field": "note", "optional": True}
COUPON = {"type": "string", "field": "coupon", "optional": True}
OLD, NEW = [ID, QTY, NOTE], [ID, QTY, NOTE, COUPON]
FIXED_BY_SCHEMA = EvolvePolicy(by_schema=True)


def policy(*allowed: Any, on_mismatch: OnMismatch = "quarantine", **columns: str) -> EvolvePolicy:
    return EvolvePolicy(allowed=frozenset(allowed), on_mismatch=on_mismatch, renamed=columns, by_schema=True)


def decode(
    values: list[Any],
    policy: EvolvePolicy,
    columns: pa.Schema = COLUMNS,
    *,
    format: str = "debezium-json",
    options: dict[str, Any] | None = None,
    keys: list[Any] | None = None,
) -> Decoded:
    reader = decoder(format, DecoderSchema.of_table(columns, ("id",), None, policy), options)
    return pickle.loads(pickle.dumps(reader)).decode(records(values, keys))


def rows(decoded: Decoded) -> list[dict[str, Any]]:
    assert decoded.schema_needed is None
    return [
        {name: value for name, value in row.items() if not name.startswith("_lakebed")}
        for row in decoded.changes.to_pylist()
    ]


def created(fields: list[dict[str, Any]], **after: Any) -> dict[str, Any]:
    return with_schema(event("c", after), fields)


def test_a_field_of_a_new_schema_is_asked_for_before_anything_is_decoded() -> None:
    decoded = decode([created(OLD, id=1), created(NEW, id=2, coupon="A")], policy("add", "relax"))
    assert decoded.schema_needed == SchemaChange(add={"coupon": pa.string()})
    assert len(decoded.changes) == len(decoded.quarantined) == 0


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, -1])
def test_all_that_a_batch_needs_is_found_in_one_reading_in_either_order(order: int) -> None:
    tip = {"type": "int32", "field": "tip", "optional": True}
    schemas = [OLD, NEW, [ID, {**QTY, "type": "int64"}, NOTE, tip], [ID, QTY, {**tip, "type": "int64"}]]
    values = [created(fields, id=number) for number, fields in enumerate(schemas)][::order]
    needed = SchemaChange(add={"coupon": pa.string(), "tip": pa.int64()}, widen={"qty": pa.int64()})
    found = decode(values, policy(*EVOLUTIONS)).schema_needed
    assert found == needed
    many = [*[created(OLD, id=number) for number in range(40_000)], *values]
    assert decode(many, policy(*EVOLUTIONS)).schema_needed == needed


@pytest.mark.slow
def test_after_a_new_schema_only_schemas_are_read() -> None:
    values = [created(NEW, id=1), *[created(OLD, id=number) for number in range(20_000)]]
    read = []
    reader = vars(debezium)["_EventReader"]
    plain = reader.read_slice

    def counted(self: Any, given: pa.RecordBatch, first: int) -> Any:
        read.append(len(given))
        return plain(self, given, first)

    with patch.object(reader, "read_slice", counted):
        assert decode(values, policy("add")).schema_needed is not None
    assert len(read) == 1


def test_a_schema_that_is_not_written_first_is_found_too() -> None:
    change = created(NEW, id=1)
    swapped = json.dumps({"payload": change["payload"], "schema": change["schema"]}).encode()
    assert decode([swapped], policy("add")).schema_needed == SchemaChange(add={"coupon": pa.string()})


def test_a_delete_brings_its_schema_too() -> None:
    gone = with_schema(event("d", None, {"id": 1}), NEW)
    assert decode([gone], policy("add")).schema_needed == SchemaChange(add={"coupon": pa.string()})
    assert rows(decode([gone], FIXED_BY_SCHEMA)) == [{"id": 1, "qty": None, "note": None}]


def test_a_schema_without_rows_asks_for_nothing() -> None:
    message = {"schema": {"type": "struct", "fields": [{"type": "string", "field": "op"}]}, "payload": {"op": "m"}}
    strict = pa.schema([pa.field(column.name, column.type, False) for column in COLUMNS])
    decoded = decode([message], policy(*EVOLUTIONS), strict)
    assert (decoded.schema_needed, decoded.ignored) == (None, 1)


def test_a_column_that_is_gone_from_the_source_is_null() -> None:
    assert rows(decode([created([ID, QTY], id=1, qty=2)], policy(*EVOLUTIONS))) == [{"id": 1, "qty": 2, "note": None}]
    strict = COLUMNS.set(2, pa.field("note", pa.string(), False))
    assert decode([created([ID, QTY], id=1, qty=2)], policy("relax"), strict).schema_needed == SchemaChange(
        relax=("note",)
    )


def test_a_field_that_may_not_be_added_sends_its_record_to_the_quarantine_whole() -> None:
    values = [created(OLD, id=1), created(NEW, id=2, coupon="A")]
    decoded = decode(values, FIXED_BY_SCHEMA)
    assert [row["id"] for row in rows(decoded)] == [1]
    assert (decoded.mismatched, decoded.quarantined["offset"].to_pylist()) == (1, [1])
    assert "coupon" in decoded.mismatch and "evolve" in decoded.mismatch
    assert json.loads(decoded.quarantined["value"][0].as_py()) == values[1]


@pytest.mark.parametrize("kind", ["ignore", "quarantine"])
def test_unknown_fields_can_keep_columns_from_being_added(kind: str) -> None:
    decoded = decode([created(NEW, id=2, coupon="A")], policy(*EVOLUTIONS), options={"unknown_fields": kind})
    assert decoded.schema_needed is None
    assert (len(decoded.changes), len(decoded.quarantined)) == ((1, 0) if kind == "ignore" else (0, 1))


ODD = [
    {"type": "map", "keys": {"type": "int16"}, "values": {"type": "double"}, "field": "vector", "optional": True},
    {"type": "string", "field": "_lakebed_op", "optional": True},
    {
        "type": "struct",
        "field": "place",
        "optional": True,
        "fields": [NOTE, {"type": "int64", "field": "", "optional": True}],
    },
]
LEFT_OUT = {
    "vector (no column can have its type)",
    "_lakebed_op (names that begin with '_lakebed_' are reserved for lakebed)",
    "place. (a name must not be empty)",
}


@pytest.mark.parametrize("one_by_one", [False, True])
def test_what_no_column_can_be_like_is_left_out_of_its_record_and_told(one_by_one: bool) -> None:
    columns = COLUMNS.append(pa.field("place", pa.struct([("note", pa.string())])))
    row = {"id": 1, "vector": [[1, 0.5]], "_lakebed_op": "x", "place": {"note": "n", "": 1}}
    gone = with_schema(event("d", None, {"id": 2}), [*OLD, *ODD])
    values = [created([*OLD, *ODD], **row), gone]
    for allowed in (EVOLUTIONS, ()):
        with only_one_by_one() if one_by_one else nullcontext():
            decoded = decode(values, policy(*allowed), columns)
        assert [(row["id"], row["place"]) for row in rows(decoded)] == [(1, {"note": "n"}), (2, None)]
        assert decoded.remarks == {"left_out_field": dict.fromkeys(LEFT_OUT, 2)}
    assert decode(values[:1], policy(), columns, options={"unknown_fields": "ignore"}).remarks == {}
    refused = decode(values[:1], policy(), columns, options={"unknown_fields": "quarantine"})
    assert (len(refused.changes), len(refused.quarantined)) == (0, 1)
    rescued = decode(values[:1], RESCUE, columns.append(pa.field("_rescued", pa.string())))
    [text] = rescued.changes["_rescued"].to_pylist()
    assert json.loads(text) == {name: row[name] for name in ("vector", "_lakebed_op", "place")}


def test_of_a_type_that_no_column_can_widen_to_each_value_decides() -> None:
    text = [ID, {**QTY, "type": "string"}, NOTE]
    decoded = decode([created(text, id=1, qty="7"), created(text, id=2, qty="many")], policy(*EVOLUTIONS))
    assert rows(decoded) == [{"id": 1, "qty": 7, "note": None}]
    assert (decoded.mismatched, "qty" in decoded.mismatch) == (1, True)


def test_a_record_that_is_no_event_is_not_a_mismatch() -> None:
    assert decode([b"{", {"op": "?"}], policy()).mismatched == 0


# -- rescue ------------------------------------------------------------------------------------------------------------

RESCUE = policy(on_mismatch="rescue")
WITH_RESCUED = COLUMNS.append(pa.field("_rescued", pa.string()))
MISFITS = [
    {"id": 1, "qty": 1, "note": "fits"},
    {"id": 2, "qty": "many", "note": "x"},
    {"id": 3, "coupon": "A", "deep": {"a": [1, 2.50, None]}},
    {"id": 4, "qty": 2**40, "_rescued": "mine", "coupon": 123456789012345678901234567890},
]
RESCUED = [
    (1, 1, "fits", None),
    (2, None, "x", {"qty": "many"}),
    (3, None, None, {"coupon": "A", "deep": {"a": [1, 2.50, None]}}),
    (4, None, None, {"qty": 2**40, "_rescued": "mine", "coupon": 123456789012345678901234567890}),
]


@pytest.mark.parametrize("format", ["json", "debezium-json", "inline"])
def test_what_does_not_fit_is_kept_as_json_and_its_row_comes_in(format: str) -> None:
    values: list[Any] = MISFITS
    if format != "json":
        values = [event("c", row) for row in MISFITS]
    if format == "inline":
        values = [with_schema(one, OLD) for one in values]
    name = "json" if format == "json" else "debezium-json"
    assert decode(values, RESCUE, format=name).schema_needed == SchemaChange(add={"_rescued": pa.string()})
    many = values * 50
    decoded = decode(many, RESCUE, WITH_RESCUED, format=name)
    found = [tuple(row.values()) for row in rows(decoded)]
    assert [(*row[:3], row[3] and json.loads(row[3])) for row in found] == RESCUED * 50
    counts = {"coupon": 100, "deep": 50, "_rescued": 50}
    assert (len(decoded.quarantined), decoded.remarks.get("unknown_field", {})) == (0, counts)


@pytest.mark.parametrize("format", ["json", "debezium-json"])
def test_what_is_rescued_by_columns_is_rescued_one_by_one(format: str) -> None:
    shape = DecoderSchema.of_table(WITH_RESCUED, ("id",), None, policy(on_mismatch="rescue", comment="note"))
    whole = decoder(format, shape)
    odd = [
        *MISFITS,
        {"id": 5, "comment": "c", "x": {"a": "é\u0001", "b": [{}]}, "y": None, "z": 1.50},
        b'{"id": 6, "x": "\\ud800"}',
        {"id": 7, "qty": "__debezium_unavailable_value", "x": 1},
        b'{"id": 8, "x": {"a": 1, "a": 2}, "y": 1e400}',
    ]
    values: list[Any] = [*odd, *({"id": 100 + n, "qty": n, "extra": n} for n in range(100)), *odd]
    if format == "debezium-json":
        values = [event("u", one, {"id": 9}) for one in values if isinstance(one, dict)]
        values += [event("d", None, {"id": 1, "x": 2}), event("r", {"id": 3, "x": 2})]
    given = records(values)
    fast = whole.decode(given)
    module = json_rows if format == "json" else debezium
    reader = vars(module)["_RowReader" if format == "json" else "_EventReader"]
    with patch.object(reader, "read_slice", side_effect=ValueError):
        slow = decoder(format, shape).decode(given)
    assert fast.changes.to_pylist() == slow.changes.to_pylist()
    assert fast.quarantined.equals(slow.quarantined)
    assert fast.remarks.get("unknown_field", {}) == slow.remarks.get("unknown_field", {})
    assert fast.changes["_rescued"].null_count < len(fast.changes)


def test_a_table_gets_the_column_for_rescued_values_when_one_is_there() -> None:
    assert "_rescued" not in decode(MISFITS[:1], RESCUE, format="json").changes.column_names


def test_what_a_row_must_have_is_not_rescued() -> None:
    strict = WITH_RESCUED.set(1, pa.field("qty", pa.int32(), False))
    values = [{"id": "x", "qty": 1}, {"id": 2, "qty": "many"}, {"id": 3}, {"id": 4, "qty": 4, "note": "\\ud800"}]
    decoded = decode(values, RESCUE, strict, format="json")
    assert rows(decoded) == [{"id": 4, "qty": 4, "note": "\\ud800", "_rescued": None}]
    reasons = decoded.quarantined["reason"].to_pylist()
    assert decoded.mismatched == 3
    assert "'id'" in reasons[0] and "many" in reasons[1] and "may not be null" in reasons[2]


def test_numbers_are_rescued_as_they_were_written() -> None:
    [row] = rows(decode([b'{"id": 1, "deep": {"a": [1.50, 1e400, -0]}}'], RESCUE, WITH_RESCUED, format="json"))
    assert row["_rescued"] == '{"deep":{"a":[1.50,1e400,-0]}}'


def test_halves_of_surrogates_are_not_rescued() -> None:
    value = b'{"id": 1, "coupon": "\\ud800"}'
    decoded = decode([value], RESCUE, WITH_RESCUED, format="json")
    assert (len(decoded.changes), len(decoded.quarantined)) == (0, 1)


def test_a_delete_rescues_nothing() -> None:
    gone = event("d", None, {"id": 1, "coupon": "A"})
    assert rows(decode([gone], RESCUE, WITH_RESCUED)) == [{"id": 1, "qty": None, "note": None, "_rescued": None}]


# -- names -------------------------------------------------------------------------------------------------------------

RENAMED = policy("add", comment="note", amount="qty", number="id")


@pytest.mark.parametrize("format", ["json", "debezium-json", "inline"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_renamed_field_goes_to_the_column_that_it_was(format: str, order: int) -> None:
    before = [{"id": n, "qty": n, "note": f"n{n}"} for n in range(40)]
    after = [{"number": n, "amount": n, "comment": f"n{n}"} for n in range(40, 80)]
    values: list[Any] = (before + after)[::order]
    if format != "json":
        values = [event("u", row, row) for row in values]
    if format == "inline":
        new = [{**one, "field": name} for one, name in zip(OLD, ("number", "amount", "comment"), strict=True)]
        values = [with_schema(one, OLD if "id" in one["after"] else new) for one in values]
    decoded = decode(values, RENAMED, format="json" if format == "json" else "debezium-json")
    assert rows(decoded) == [{"id": n, "qty": n, "note": f"n{n}"} for n in range(80)][::order]
    assert decoded.remarks.get("unknown_field", {}) == {}


def test_a_key_that_is_deleted_under_its_new_name_is_found() -> None:
    gone = [event("d", None, {"number": 1}), event("d", None, {"id": 2}), event("d")]
    decoded = decode(gone, RENAMED, keys=[None, None, {"number": 3}])
    assert decoded.changes["id"].to_pylist() == [1, 2, 3]


def test_one_column_under_two_names_is_refused_unless_one_is_null() -> None:
    values = [{"id": 1, "note": "a", "comment": "b"}, {"id": 2, "note": None, "comment": "b"}, {"id": 3, "note": "c"}]
    decoded = decode(values, RENAMED, format="json")
    assert [row["note"] for row in rows(decoded)] == ["b", "c"]
    assert "comment" in decoded.quarantined["reason"][0].as_py()


def test_names_hold_when_the_table_itself_is_renamed() -> None:
    table = pa.schema([pa.field("number", pa.int64(), False), ("amount", pa.int32()), ("comment", pa.string())])
    reader = decoder("json", DecoderSchema.of_table(COLUMNS, ("id",), None, RENAMED))
    bound = reader.bound_to(DecoderSchema.of_table(table, ("number",), None, RENAMED))
    decoded = bound.decode(records([{"id": 1, "qty": 2, "note": "x"}, {"number": 2, "comment": "y"}]))
    assert [tuple(row.values())[:3] for row in rows(decoded)] == [(1, 2, "x"), (2, None, "y")]


# -- inline schemas ----------------------------------------------------------------------------------------------------


def connect(type: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": type, **({"name": name} if name else {}), **more}


DECIMAL = "org.apache.kafka.connect.data.Decimal"


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (connect("int16"), pa.int16()),
        (connect("float"), pa.float32()),
        (connect("double"), pa.float64()),
        (connect("boolean"), pa.bool_()),
        (connect("bytes"), pa.binary()),
        (connect("int32", "io.debezium.time.Date"), pa.date32()),
        (connect("int64", "io.debezium.time.MicroTimestamp"), pa.timestamp("us", "UTC")),
        (connect("string", "io.debezium.time.ZonedTimestamp"), pa.timestamp("us", "UTC")),
        (connect("int64", "io.debezium.time.MicroTime"), pa.string()),
        (connect("string", "io.debezium.data.Uuid"), pa.string()),
        (connect("int32", "io.debezium.time.Year"), pa.int32()),
        (connect("bytes", DECIMAL, parameters={"scale": "2", "connect.decimal.precision": "12"}), pa.decimal128(12, 2)),
        (connect("bytes", DECIMAL, parameters={"scale": "2"}), pa.decimal128(38, 2)),
        (connect("bytes", DECIMAL, parameters={"scale": "2", "connect.decimal.precision": "50"}), pa.string()),
        (connect("bytes", DECIMAL, parameters={"scale": "-2"}), pa.string()),
        (connect("struct", "io.debezium.data.VariableScaleDecimal", fields=[]), pa.string()),
        (connect("array", items=connect("int32", optional=True)), pa.list_(pa.field("element", pa.int32()))),
        (connect("map", keys=connect("string"), values=connect("int64")),
         pa.map_(pa.string(), pa.field("value", pa.int64(), False))),
        (connect("map", keys=connect("int32"), values=connect("int64")), pa.null()),
        (connect("struct", fields=[]), pa.null()),
        (connect("unheard-of"), pa.null()),
        (connect("struct", fields=[{**connect("int32"), "field": "a"}]), pa.struct([pa.field("a", pa.int32(), False)])),
    ],
)  # fmt: skip
def test_a_field_of_an_inline_schema_has_a_column_type(schema: dict[str, Any], kind: pa.DataType) -> None:
    row = row_of_envelope(with_schema({}, [{**schema, "field": "x"}])["schema"])
    assert row is not None
    assert row.field("x").type == kind


def test_what_a_column_was_made_for_it_can_hold() -> None:
    fields = [
        ID,
        {**connect("int64", "io.debezium.time.MicroTimestamp"), "field": "at"},
        {**connect("int64", "io.debezium.time.MicroTime"), "field": "clock"},
        {**connect("bytes", DECIMAL, parameters={"scale": "2", "connect.decimal.precision": "5"}), "field": "price"},
        {**connect("array", items=connect("string")), "field": "tags"},
    ]
    change = created(fields, id=1, at=1_700_000_000_000_000, clock=3_600_000_000, price="AfQ=", tags=["a"])
    table = pa.schema([ID_COLUMN])
    needed = decode([change], policy("add"), table).schema_needed
    assert needed is not None
    for name, kind in needed.add.items():
        table = table.append(pa.field(name, kind))
    [row] = rows(decode([change], policy("add"), table))
    assert (row["clock"], str(row["price"]), row["tags"]) == ("01:00:00.000000", "5.00", ["a"])


ID_COLUMN = pa.field("id", pa.int64(), False)


@pytest.mark.parametrize(
    "schema",
    [3, {"fields": 3}, {"fields": [{}]}, {"fields": [{"field": "after", "fields": [{"field": "x", "type": "array"}]}]}],
)
def test_a_schema_that_is_none_has_a_reason(schema: Any) -> None:
    with pytest.raises(Unreadable, match="schema"):
        row_of_envelope(schema)
    decoded = decode([{"schema": schema, "payload": event("c", {"id": 1})}], policy(*EVOLUTIONS))
    assert (len(decoded.changes), len(decoded.quarantined)) == (0, 1)


def test_what_was_read_before_records_that_need_a_column_is_not_written(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    some = Decoded.needing(SchemaChange(add={"more": pa.string()}), DecoderSchema(schema))
    read = replace(some, changes=pa.table({"id": [1, 2], "_lakebed_op": ["u", "u"]}), schema_needed=None)
    written = WriteTask(WriteSpec(schema=schema), str(tmp_path), lambda _: iter([])).write(iter([read, some]))
    assert written.schema_needed == some.schema_needed and not written.parts
    assert not list(tmp_path.rglob("*.parquet"))
