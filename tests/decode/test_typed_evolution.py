"""What records with a schema ask of their table, and what becomes of those that it does not fit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.typed.records import TypedRecords
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import EvolvePolicy
from tests.decode.records import event
from tests.decode.test_typed_records import FIELDS, ORDERS, as_avro, of_avro, rows_of

ROW = dict.fromkeys(ORDERS.names) | {"id": 1, "qty": 1, "coupon": "ten"}
ALL = frozenset(["add", "widen", "relax"])


def decoder(
    table: pa.Schema = ORDERS, *, events: bool = True, unknown_fields: Any = "warn", **policy: Any
) -> TypedRecords:
    schema = DecoderSchema.of_table(table, ("id",), None, EvolvePolicy(by_schema=True, **policy))
    return of_avro(decoder_schema=schema, events=events, options=JsonOptions(unknown_fields=unknown_fields))


def decode(reader: TypedRecords, *rows: dict[str, Any]) -> Decoded:
    return reader.decode(as_avro([event("c", row) for row in rows]))


def test_records_ask_for_the_columns_that_their_schema_has_and_the_table_lacks() -> None:
    needed = decode(decoder(allowed=ALL), ROW).schema_needed
    assert needed == SchemaChange(add={"coupon": pa.string()}, widen={"qty": pa.int32()})
    assert decoder(allowed=ALL).schema_needed(as_avro([event("c", ROW)])) == needed


def test_records_get_their_values_in_once_the_table_has_the_columns() -> None:
    wider = ORDERS.set(2, pa.field("qty", pa.int32(), False)).append(pa.field("coupon", pa.string()))
    first = decoder(allowed=ALL)
    assert decode(first, ROW | {"qty": 70_000}).schema_needed is not None
    again = decode(
        first.bound_to(DecoderSchema.of_table(wider, ("id",), None, EvolvePolicy(allowed=ALL))), ROW | {"qty": 70_000}
    )
    assert again.schema_needed is None
    assert again.changes.select(["id", "qty", "coupon"]).to_pylist() == [{"id": 1, "qty": 70_000, "coupon": "ten"}]


def test_a_row_of_plain_records_asks_for_no_column_for_its_operation() -> None:
    schema = DecoderSchema(ORDERS, ("id",), None, EvolvePolicy(allowed=frozenset(["add"])))
    fields = [*FIELDS, {"type": "string", "field": "op", "optional": True}]
    reader = of_avro(fields, schema, events=False, operation_field="op")
    assert reader.decode(rows_of([ROW])).schema_needed == SchemaChange(add={"coupon": pa.string()})


@pytest.mark.parametrize("unknown_fields", ["ignore", "quarantine"])
def test_no_column_is_asked_for_where_unknown_fields_are_left_out_or_refused(unknown_fields: str) -> None:
    needed = decode(decoder(allowed=ALL, unknown_fields=unknown_fields), ROW).schema_needed
    assert needed == SchemaChange(widen={"qty": pa.int32()})


def test_records_with_a_field_that_may_not_become_a_column_are_quarantined() -> None:
    decoded = decode(decoder(), ROW)
    assert decoded.schema_needed is None and len(decoded.changes) == 0
    assert decoded.quarantined["reason"][0].as_py().startswith('no column takes its fields "coupon"')
    assert decoded.mismatched == 1


def test_a_rescue_keeps_what_no_column_takes_and_what_does_not_fit() -> None:
    columns = ORDERS.append(pa.field("_rescued", pa.string()))
    decoded = decode(decoder(columns, on_mismatch="rescue"), ROW | {"raw": "AQI="}, ROW | {"coupon": None})
    assert decoded.changes["_rescued"].to_pylist() == ['{"coupon":"ten"}', '{"coupon":null}']
    assert decoded.changes["raw"].to_pylist() == [b"\1\2", None]


@pytest.mark.parametrize("unknown_fields", ["warn", "quarantine", "ignore"])
def test_of_records_that_fill_a_column_the_fields_of_others_are_left_out(unknown_fields: str) -> None:
    table = ORDERS.append(pa.field("coupon", pa.string()))
    decoded = decode(
        decoder(table, unknown_fields=unknown_fields, fills=("name",), allowed=ALL), ROW | {"name": "a", "qty": 70_000}
    )
    assert decoded.changes.select(["id", "name"]).to_pylist() == [{"id": 1, "name": "a"}]
    assert "qty" not in decoded.changes.column_names
    assert (len(decoded.quarantined), decoded.remarks, decoded.schema_needed) == (0, {}, None)


def test_a_column_may_have_another_name_at_the_source() -> None:
    renamed = pa.schema([pa.field("note", one.type) if one.name == "name" else one for one in ORDERS])
    renamed = renamed.append(pa.field("coupon", pa.string()))
    decoded = decode(decoder(renamed, renamed={"name": "note"}), ROW | {"name": "a"}, ROW | {"qty": 70_000})
    assert decoded.changes.select(["id", "note"]).to_pylist() == [{"id": 1, "note": "a"}]
    assert decoded.quarantined["reason"].to_pylist() == ["column 'qty': 70000 is out of the range of int16"]


def test_a_record_with_values_under_both_names_of_a_column_is_quarantined() -> None:
    columns = pa.schema([one for one in ORDERS if one.name != "name"]).append(pa.field("coupon", pa.string()))
    decoded = decode(
        decoder(columns, renamed={"name": "coupon"}), ROW | {"name": "a"}, ROW | {"name": "b", "coupon": None}
    )
    assert decoded.changes["coupon"].to_pylist() == ["b"]
    assert decoded.quarantined["reason"].to_pylist() == [
        "two fields, one of them 'coupon', are of the column 'coupon' (renamed_columns)"
    ]


def test_a_field_that_the_writer_lacks_is_null() -> None:
    reader = of_avro([one for one in FIELDS if one["field"] != "money"])
    fields = [one for one in FIELDS if one["field"] != "money"]
    decoded = reader.decode(as_avro([event("c", ROW)], fields))
    assert decoded.changes["money"].to_pylist() == [None] and decoded.remarks.get("unknown_field", {}) == {"coupon": 1}
