"""Records with a schema that are rare: read one by one, without what others have, or with keys of their own types."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.json_schema import JsonSchemaFormat
from lakebed.decode.slices import UNFORESEEN
from lakebed.decode.typed import records as typed_records
from lakebed.decode.typed.avro_reader import AvroFormat
from lakebed.decode.typed.records import TypedRecords, TypedSettings
from lakebed.decode.typed.schemas import FixedSchema
from lakebed.decode.typed.values import metadata_of
from tests.decode.avro_events import avro_type, avro_value, encoded, envelope, envelope_schema
from tests.decode.records import event, records
from tests.decode.test_typed_records import (
    FIELDS,
    ORDERS,
    PLAIN_FIELDS,
    SHAPE,
    as_avro,
    as_json,
    assert_equal,
    of_avro,
    rows_of,
)

ROW = dict.fromkeys(ORDERS.names) | {"id": 1, "qty": 1, "coupon": None}
TOO_LARGE = {"qty": 70_000}  # read one by one, and refused


def as_row(fields: list[dict[str, Any]], *rows: dict[str, Any]) -> pa.Table:
    connect = {"type": "struct", "fields": fields}
    return records([encoded(avro_type(connect, "Row"), avro_value(row, connect)) for row in rows])


def test_a_record_on_which_the_decoder_fails_is_quarantined_and_its_neighbours_come_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is wrong with the decoder: a record is never taken for one that changes nothing."""
    found = typed_records.members_of

    def fails(rows: pa.RecordBatch, name: str) -> Any:
        members = found(rows, name)
        if 7 in (members[0]["id"].to_pylist() if name == "after" else []):
            raise ZeroDivisionError("seven")
        return members

    monkeypatch.setattr(typed_records, "members_of", fails)
    decoded = of_avro().decode(as_avro([event("c", ROW | {"id": number}) for number in (6, 7, 8)]))
    assert decoded.changes["id"].to_pylist() == [6, 8] and decoded.ignored == 0
    assert decoded.quarantined["reason"].to_pylist() == [f"{UNFORESEEN}: ZeroDivisionError: seven"]


def test_rows_that_are_read_one_by_one_have_the_operations_of_the_others() -> None:
    decoder = of_avro(PLAIN_FIELDS, events=False, operation_field="op", delete_values=("gone",), upsert_values=("new",))
    money = {"money": "EjRWeJASNFZ4kBI="}  # has more digits than its column: the value is looked at alone
    operations = [None, "new", "gone", "what"]
    rows = [ROW | {"id": id, "op": operation} for id, operation in enumerate(operations)]
    decoded = decoder.decode(rows_of([row | money for row in rows]))
    assert [(row["id"], row["_lakebed_op"]) for row in decoded.changes.to_pylist()] == [(2, "d")]
    reasons = decoded.quarantined["reason"].to_pylist()
    assert [reason.split()[0] for reason in reasons] == ["column", "column", "unknown"]
    assert decoded.remarks.get("unknown_operation", {}) == {"what": 1}
    plain = [(0, "u"), (1, "u"), (2, "d")]
    assert [(row["id"], row["_lakebed_op"]) for row in decoder.decode(rows_of(rows)).changes.to_pylist()] == plain
    alone = of_avro(
        PLAIN_FIELDS,
        events=False,
        operation_field="op",
        delete_values=("gone",),
        upsert_values=("new",),
        options=JsonOptions(unknown_fields="rescue"),
    )
    assert [(row["id"], row["_lakebed_op"]) for row in alone.decode(rows_of(rows)).changes.to_pylist()] == plain


def test_records_without_an_operation_are_no_events() -> None:
    schema = envelope_schema(FIELDS)
    schema["fields"] = [one for one in schema["fields"] if one["name"] != "op"] + [{"name": "kind", "type": "string"}]
    values = FixedSchema(AvroFormat(), json.dumps(schema))
    decoder = TypedRecords(TypedSettings(decoder_schema=SHAPE, values=values, keys=None, events=True))
    value = avro_value(event("c", ROW), envelope(FIELDS)) | {"kind": "c"}
    decoded = decoder.decode(records([encoded(schema, value)]))
    assert len(decoded.changes) == 0 and decoded.ignored == 0
    assert "no change event" in decoded.quarantined["reason"].to_pylist()[0]


def test_an_update_whose_old_row_does_not_fit_is_what_it_is_as_json() -> None:
    narrow = DecoderSchema(ORDERS.set(0, pa.field("id", pa.int16(), False)), ("id",), "source.lsn")
    old = ROW | {"id": 70_000}
    changes = [event("u", ROW, old), event("d", None, old), event("u", ROW, ROW | TOO_LARGE), event("u", old, ROW)]
    avro = of_avro(decoder_schema=narrow).decode(as_avro(changes))
    assert_equal(avro, DebeziumJson(narrow, JsonOptions()).decode(as_json(changes)))
    assert avro.quarantined["offset"].to_pylist() == [0, 1, 3]


def test_values_that_are_no_numbers_are_read_one_by_one_as_they_are() -> None:
    fields = [*PLAIN_FIELDS, {"type": "double", "field": "ratio"}]
    table = DecoderSchema(ORDERS.append(pa.field("ratio", pa.float32())), ("id",))
    values = [math.nan, math.inf, -math.inf, 0.5, 1e300]
    decoded = of_avro(fields, table, events=False).decode(as_row(fields, *(ROW | {"ratio": one} for one in values)))
    assert str(decoded.changes["ratio"].to_pylist()) == "[nan, inf, -inf, 0.5]"
    assert decoded.quarantined["offset"].to_pylist() == [4]


@pytest.mark.parametrize(("events", "unknown"), [(True, {"more": 1}), (False, {"more": 1, "odd": 1})])
def test_members_that_a_json_schema_lacks_are_counted_if_they_are_of_the_row(events: bool, unknown: Any) -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}}}
    schema = (
        row
        if not events
        else {
            "type": "object",
            "properties": {"op": {"type": "string"}, "after": row, "before": row},
        }
    )
    value = {"id": 1, "more": 2}
    value = {"op": "c", "after": value, "odd": 1} if events else value | {"odd": 1}
    decoder = TypedRecords(
        TypedSettings(
            decoder_schema=DecoderSchema(pa.schema([pa.field("id", pa.int64(), False)]), ("id",)),
            values=FixedSchema(JsonSchemaFormat(), json.dumps(schema)),
            keys=None,
            events=events,
        )
    )
    decoded = decoder.decode(records([value]))
    assert decoded.changes["id"].to_pylist() == [1] and decoded.remarks.get("unknown_field", {}) == unknown


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "Key", "fields": [{"name": "day", "type": {"type": "int", "logicalType": "date"}}]},
        {
            "type": "record",
            "name": "Key",
            "fields": [{"name": "day", "type": {"type": "int", "connect.name": "io.debezium.time.Date"}}],
        },
        {"type": "int", "connect.name": "io.debezium.time.Date"},
    ],
)
def test_a_tombstone_deletes_the_key_of_its_own_type(schema: Any) -> None:
    """By columns, and one by one."""
    table = DecoderSchema(pa.schema([pa.field("day", pa.date32(), False), pa.field("v", pa.string())]), ("day",))
    fields = [{"type": "int32", "name": "io.debezium.time.Date", "field": "day"}]
    decoder = of_avro(fields, table, events=False, keys=FixedSchema(AvroFormat(), json.dumps(schema)))
    key = encoded(schema, {"day": 19_000} if schema["type"] == "record" else 19_000)
    for keys in ([key, key], [key, b"\xff"]):
        decoded = decoder.decode(records([None, None], keys))
        found = decoded.changes["day"].cast(pa.int32()).to_pylist()
        assert found == [19_000] * (2 - decoded.quarantined.num_rows), decoded.quarantined["reason"]
    assert decoded.quarantined["offset"].to_pylist() == [1]


def test_metadata_is_read_as_numbers_also_where_it_is_text() -> None:
    source = pa.array([{"lsn": "12"}, {"lsn": "x"}, {"lsn": "9" * 18}, {"lsn": None}, None, {"lsn": "1.5"}])
    rows = pa.RecordBatch.from_arrays([source], names=["source"])
    assert metadata_of(rows, ("source", "lsn")).to_pylist() == [12, None, 10**18 - 1, None, None, None]
    decimals = pa.array([{"lsn": 7}, {"lsn": 2**63}], pa.struct([("lsn", pa.decimal128(20, 0))]))
    rows = pa.RecordBatch.from_arrays([decimals], names=["source"])
    assert metadata_of(rows, ("source", "lsn")).to_pylist() == [7, None]
    flags = pa.RecordBatch.from_arrays([pa.array([{"lsn": True}])], names=["source"])
    assert metadata_of(flags, ("source", "lsn")).to_pylist() == [None]
