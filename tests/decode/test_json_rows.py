"""What flat JSON objects become."""

from __future__ import annotations

from contextlib import nullcontext
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.errors import InvalidInput, InvalidSchema
from tests.decode.fuzz import only_one_by_one, without_native_code
from tests.decode.records import records

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("amount", pa.decimal128(8, 2), False),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)
SHAPE = DecoderSchema(COLUMNS, ("id",))


def rows(changes: pa.Table) -> list[tuple[Any, ...]]:
    return [(row["id"], row["amount"], row["_lakebed_op"]) for row in changes.to_pylist()]


def test_objects_are_upserts_and_members_that_are_no_columns_are_skipped() -> None:
    decoded = decoder("json", SHAPE).decode(records([{"id": 1, "amount": "1.50", "extra": [1, {"a": 2}]}]))
    assert rows(decoded.changes) == [(1, Decimal("1.50"), "u")]


def test_a_member_may_say_that_the_row_is_deleted() -> None:
    options = {"operation_field": "op", "delete_values": ["gone"], "upsert_values": ["new"]}
    decoded = decoder("json", SHAPE, options).decode(
        records([{"id": 1, "amount": 1, "op": "new"}, {"id": 1, "amount": 9, "op": "gone"}, {"id": 2, "op": "gone"}])
    )
    assert rows(decoded.changes) == [(1, Decimal("1.00"), "u"), (1, None, "d"), (2, None, "d")]


@pytest.mark.parametrize(
    ("delete_value", "upsert_value", "deletes", "upserts"),
    [("true", "false", True, False), ("TRUE", "False", True, False), ("1", "0", 1, 0), ("-1", "1.5", -1, 1.5)],
)
@pytest.mark.parametrize("reading", [nullcontext, only_one_by_one, without_native_code])
def test_the_member_may_be_a_truth_value_or_a_number(
    delete_value: str, upsert_value: str, deletes: Any, upserts: Any, reading: Any
) -> None:
    options = {"operation_field": "del", "delete_values": [delete_value], "upsert_values": [upsert_value]}
    given = [{"id": n, "amount": 1, "del": deletes if n % 2 else upserts} for n in range(100)]
    given += [{"id": 100, "amount": 1, "del": None}, {"id": 101, "amount": 1, "del": "what"}]
    with reading():
        decoded = decoder("json", SHAPE, options).decode(records(given))
    assert [row[2] for row in rows(decoded.changes)] == ["d" if n % 2 else "u" for n in range(100)] + ["u"]
    assert decoded.remarks == {"unknown_operation": {"what": 1}}


def test_a_record_without_a_value_deletes_the_key_of_its_message() -> None:
    decoded = decoder("json", SHAPE).decode(records([{"id": 5, "amount": 1}, None, None], [None, {"id": 5}, None]))
    assert rows(decoded.changes) == [(5, Decimal("1.00"), "u"), (5, None, "d")]
    assert decoded.ignored == 1


@pytest.mark.parametrize("key", [b"5", b'"5"', b" 5 ", b'{"schema":{"type":"int64"},"payload":5}', b'{"id":5}'])
def test_a_message_key_of_one_value_is_the_only_key_of_the_table(key: bytes) -> None:
    decoded = decoder("json", SHAPE).decode(records([None], [key]))
    assert rows(decoded.changes) == [(5, None, "d")]


@pytest.mark.parametrize(
    ("key", "keys", "why"),
    [
        (b"5", ("id", "amount"), "it is one value, but the key of the table is id, amount"),
        (b"5", (), "the table has no keys"),
        (b"Struct{id=5}", ("id",), "message key: not JSON"),
        (b"[5]", ("id",), "message key: it is a list"),
        (b"true", ("id",), "true is not"),
        (b'"abc"', ("id",), "abc"),
        (b"{}", ("id",), "key 'id' is null or missing"),
        (b'{"other":5}', ("id",), "key 'id' is null or missing"),
        (b'{"schema":{"type":"struct","fields":3},"payload":{"id":5}}', ("id",), "message key: its inline schema"),
    ],
)
def test_a_message_key_that_can_not_be_used_is_quarantined(key: bytes, keys: tuple[str, ...], why: str) -> None:
    decoded = decoder("json", DecoderSchema(COLUMNS, keys)).decode(records([None], [key]))
    assert not len(decoded.changes) and not decoded.ignored
    [reason] = decoded.quarantined["reason"].to_pylist()
    assert why in reason


@pytest.mark.parametrize("key", [None, b"null", b'{"schema":null,"payload":null}'])
def test_a_record_with_neither_value_nor_key_says_nothing(key: bytes | None) -> None:
    decoded = decoder("json", SHAPE).decode(records([None], [key]))
    assert decoded.ignored == 1 and not len(decoded.changes) and not len(decoded.quarantined)


CONNECT = "org.apache.kafka.connect.data."
FIELDS = [
    {"type": "int64", "field": "id"},
    {"type": "bytes", "name": CONNECT + "Decimal", "parameters": {"scale": "1"}, "field": "amount"},
    {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "field": "at"},
]


def enveloped(row: dict[str, Any] | None, fields: Any = FIELDS) -> dict[str, Any]:
    return {"schema": {"type": "struct", "fields": fields}, "payload": row}


@pytest.mark.parametrize("reading", [nullcontext, only_one_by_one, without_native_code])
def test_an_object_with_its_schema_is_read_by_it(reading: Any) -> None:
    texts = [FIELDS[0], {"type": "string", "field": "amount"}]
    values = [enveloped({"id": n, "amount": "AQI=", "at": 5}) for n in range(40)]
    values += [{"id": 40, "amount": "1.5"}, enveloped({"id": 41, "amount": "1234"}, texts), enveloped(None)]
    keys = [None] * 42 + [enveloped({"id": 7}, FIELDS[:1])]
    with reading():
        decoded = decoder("json", SHAPE).decode(records(values, keys))
    assert rows(decoded.changes) == [
        *((n, Decimal("25.80"), "u") for n in range(40)),
        (40, Decimal("1.50"), "u"),
        (41, Decimal("1234.00"), "u"),
        (7, None, "d"),
    ]
    assert decoded.changes["at"].cast(pa.int64()).to_pylist()[:40] == [5] * 40


@pytest.mark.parametrize("reading", [nullcontext, only_one_by_one, without_native_code])
def test_an_envelope_in_another_order_is_no_row_of_nulls(reading: Any) -> None:
    shape = DecoderSchema(pa.schema([("note", pa.string())]))
    schema = {"type": "struct", "fields": [{"type": "string", "field": "note"}]}
    values = [{"payload": {"note": "a"}, "schema": schema}, {"note": "b"}, {"schema": 1, "payload": {"note": "c"}}]
    with reading():
        decoded = decoder("json", shape).decode(records(values))
    assert decoded.changes["note"].to_pylist() == ["a", "b"]
    assert decoded.quarantined["reason"].to_pylist() == ["its inline schema can't be read: it is not an object"]


@pytest.mark.parametrize("reading", [nullcontext, only_one_by_one])
def test_a_table_may_have_columns_with_the_names_of_an_envelope(reading: Any) -> None:
    shape = DecoderSchema(pa.schema([("schema", pa.string()), ("payload", pa.string())]))
    with reading():
        decoded = decoder("json", shape).decode(records([{"schema": "a", "payload": "b"}] * 40))
    assert decoded.changes["schema"].to_pylist() == ["a"] * 40


def test_bad_objects_are_quarantined_with_a_reason() -> None:
    good = [{"id": i, "amount": i} for i in range(200)]
    decoded = decoder("json", SHAPE).decode(
        records([*good, "{", {"id": 1}, {"amount": 1}, {"id": 1, "amount": "12,50"}])
    )
    assert len(rows(decoded.changes)) == 200
    first, *others = decoded.quarantined.column("reason").to_pylist()
    assert first.startswith("not JSON")
    assert others == [
        "column 'amount' may not be null",
        "key 'id' is null or missing, in the row and in the message key",
        "column 'amount': \"12,50\" is not a valid decimal",
    ]


def test_a_wrong_option_names_the_right_ones() -> None:
    with pytest.raises(InvalidInput, match=r"format 'xml' is unknown; use one of debezium-json, json"):
        decoder("xml", SHAPE)
    with pytest.raises(InvalidInput, match=r"has no option 'operation_field'"):
        decoder("debezium-json", SHAPE, {"operation_field": "op"})
    with pytest.raises(InvalidInput, match=r"timestamp_unit is 'days'; use auto or s or ms or us or ns"):
        decoder("json", SHAPE, {"timestamp_unit": "days"})
    with pytest.raises(InvalidSchema, match="flat JSON has no such metadata"):
        decoder("json", DecoderSchema(COLUMNS, ("id",), "source.lsn"))
