"""Events and rows of Avro become what the same become as JSON with its schema."""

from __future__ import annotations

import pickle
from json import dumps
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.typed.avro_reader import AvroFormat
from lakebed.decode.typed.records import TypedRecords, TypedSettings
from lakebed.decode.typed.schemas import FixedSchema
from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.positions.truncates import NO_CUTOFF, Cutoff, Truncate
from tests.decode.avro_events import CONNECT, avro_type, avro_value, encoded, envelope, envelope_schema
from tests.decode.records import event, in_log, records, with_schema
from tests.decode.test_logical_types import REFUSED_WITH_SCHEMA, WITH_SCHEMA, b64
from tests.worlds import examples

DEBEZIUM = "io.debezium.time."
FIELDS: list[dict[str, Any]] = [
    {"type": "int64", "field": "id"},
    {"type": "string", "field": "name", "optional": True},
    {"type": "int32", "field": "qty"},
    {"type": "bytes", "field": "raw", "optional": True},
    {"type": "bytes", "name": CONNECT + "Decimal", "parameters": {"scale": "2"}, "field": "money", "optional": True},
    {"type": "int64", "name": DEBEZIUM + "MicroTimestamp", "field": "at", "optional": True},
    {"type": "int32", "name": DEBEZIUM + "Date", "field": "day", "optional": True},
    {"type": "array", "items": {"type": "string", "optional": True}, "field": "tags", "optional": True},
    {"type": "string", "field": "coupon", "optional": True},
]
ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("name", pa.string()),
        pa.field("qty", pa.int16(), False),
        pa.field("raw", pa.binary()),
        pa.field("money", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
KEY = {"type": "struct", "fields": [{"type": "int64", "field": "id"}]}
SHAPE = DecoderSchema(ORDERS, ("id",))
UNSENT = "__debezium_unavailable_value"


def of_avro(
    fields: Any = FIELDS, decoder_schema: DecoderSchema = SHAPE, *, events: bool = True, **more: Any
) -> TypedRecords:
    schema = envelope_schema(fields) if events else avro_type({"type": "struct", "fields": fields}, "Row")
    more = {"keys": FixedSchema(AvroFormat(), dumps(avro_type(KEY, "Key")))} | more
    values = FixedSchema(AvroFormat(), dumps(schema))
    return TypedRecords(TypedSettings(decoder_schema=decoder_schema, values=values, events=events, **more))


def as_avro(changes: list[Any], fields: Any = FIELDS, keys: list[Any] | None = None) -> pa.Table:
    schema = envelope_schema(fields)
    values = [None if each is None else encoded(schema, avro_value(each, envelope(fields))) for each in changes]
    key = avro_type(KEY, "Key")
    return records(values, None if keys is None else [each and encoded(key, each) for each in keys])


def as_json(changes: list[Any], fields: Any = FIELDS, keys: list[Any] | None = None) -> pa.Table:
    return records([each and with_schema(each, fields) for each in changes], keys)


def assert_equal(avro: Decoded, json: Decoded) -> None:
    assert avro.changes.schema == json.changes.schema
    assert avro.changes.equals(json.changes), (avro.changes, json.changes)
    assert avro.quarantined["offset"].to_pylist() == json.quarantined["offset"].to_pylist()
    assert avro.quarantined["reason"].to_pylist() == json.quarantined["reason"].to_pylist()
    for name in (
        "truncates",
        "event_time_max",
        "ignored",
        "truncated",
        "remarks",
        "met",
    ):
        assert getattr(avro, name) == getattr(json, name), name


ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 3),
        "name": st.one_of(st.none(), st.text(max_size=3), st.just(UNSENT)),
        "qty": st.one_of(st.integers(0, 9), st.just(70_000)),
        "raw": st.sampled_from([None, "AQI=", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]),
        "money": st.sampled_from([None, b64(150), b64(-1), b64(10**13)]),
        "at": st.one_of(st.none(), st.integers(0, 10**16), st.just(2**62)),
        "day": st.one_of(st.none(), st.integers(-1000, 20_000)),
        "tags": st.one_of(
            st.none(), st.lists(st.one_of(st.none(), st.text(max_size=2)), max_size=2), st.just([UNSENT])
        ),
        "coupon": st.sampled_from([None, "x"]),
    }
)
EVENTS = st.builds(
    in_log,
    st.builds(
        event,
        st.sampled_from(["c", "u", "u", "d", "r", "m", "t", "x"]),
        st.one_of(ROWS, ROWS, st.none()),
        st.one_of(st.none(), ROWS),
        st.integers(0, 1000),
    ),
    st.sampled_from([None, '["500","1"]', '["9","1"]', ""]),
)
KEYS = st.one_of(st.none(), st.fixed_dictionaries({"id": st.integers(0, 3)}))


@pytest.mark.slow
@examples(50)
@given(
    st.lists(st.tuples(st.one_of(EVENTS, EVENTS, EVENTS, st.none()), KEYS), max_size=12),
    st.sampled_from([None, "source.lsn", "ts_ms", "kafka.offset", "at"]),
    st.sampled_from(["warn", "ignore", "quarantine"]),
    st.booleans(),
)
def test_events_of_avro_are_the_changes_that_they_are_as_json(
    given_events: list[Any], sequence_by: str | None, unknown_fields: Any, truncated: bool
) -> None:
    changes, keys = [each for each, _ in given_events], [key for _, key in given_events]
    shape = DecoderSchema(ORDERS, ("id",), sequence_by)
    options = JsonOptions(unknown_fields=unknown_fields)
    cutoff = (
        Cutoff(new=(Truncate(topic="other", partition=0, offset=5, lsn=400, time_us=10**18),))
        if truncated
        else NO_CUTOFF
    )
    avro = of_avro(decoder_schema=shape, options=options).decode(as_avro(changes, keys=keys), cutoff)
    json = DebeziumJson(shape, options).decode(as_json(changes, keys=keys), cutoff)
    assert_equal(avro, json)


@pytest.mark.parametrize(
    ("schema", "value", "target", "expected"), [one for one in WITH_SCHEMA if one[0] != {"type": "map"}], ids=str
)
def test_every_logical_type_is_what_it_is_in_json(schema: Any, value: Any, target: pa.DataType, expected: Any) -> None:
    if "items" in schema:
        schema = {**schema, "items": {**schema["items"], "optional": True}}
    fields = [{"type": "int64", "field": "id"}, {**schema, "field": "v", "optional": True}]
    shape = DecoderSchema(pa.schema([pa.field("id", pa.int64(), False), pa.field("v", target)]), ("id",))
    change = event("c", {"id": 1, "v": value})
    avro = of_avro(fields, shape).decode(as_avro([change], fields))
    assert avro.quarantined["reason"].to_pylist() == []
    assert avro.changes["v"].to_pylist() == [expected]


@pytest.mark.parametrize(("schema", "value", "target", "reason"), REFUSED_WITH_SCHEMA, ids=str)
def test_nothing_is_guessed_that_is_not_guessed_in_json(
    schema: Any, value: Any, target: pa.DataType, reason: str
) -> None:
    fields = [{"type": "int64", "field": "id"}, {**schema, "field": "v", "optional": True}]
    shape = DecoderSchema(pa.schema([pa.field("id", pa.int64(), False), pa.field("v", target)]), ("id",))
    decoded = of_avro(fields, shape).decode(as_avro([event("c", {"id": 1, "v": value})], fields))
    assert decoded.changes.num_rows == 0
    assert reason in decoded.quarantined["reason"][0].as_py()


@pytest.mark.parametrize(("form", "value"), [("hex", "fbff"), ("base64-url-safe", "-_8="), ("base64", "+/8=")])
def test_the_form_of_bytes_in_strings_of_avro_can_be_set(form: Any, value: str) -> None:
    fields = [{"type": "int64", "field": "id"}, {"type": "string", "field": "v"}]
    shape = DecoderSchema(pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.binary())]), ("id",))
    decoded = of_avro(fields, shape, options=JsonOptions(binary_text=form)).decode(
        as_avro([event("c", {"id": 1, "v": value})], fields)
    )
    assert decoded.changes["v"].to_pylist() == [b"\xfb\xff"]


def test_a_value_that_does_not_fit_is_quarantined_with_the_reason_and_the_others_come_in() -> None:
    row = dict.fromkeys(ORDERS.names) | {"id": 1, "qty": 1}
    changes = [event("c", row), event("c", row | {"qty": 70_000}), event("c", row | {"id": 2})]
    decoded = of_avro().decode(as_avro(changes))
    assert decoded.changes["id"].to_pylist() == [1, 2]
    assert decoded.quarantined["offset"].to_pylist() == [1]
    assert decoded.quarantined["reason"].to_pylist() == ["column 'qty': 70000 is out of the range of int16"]


def test_bytes_that_are_no_record_are_quarantined_and_their_neighbours_come_in() -> None:
    row = dict.fromkeys(ORDERS.names) | {"id": 1, "qty": 1}
    good = as_avro([event("c", row)])["value"][0].as_py()
    decoded = of_avro().decode(records([good, good[:-3], b"", good + b"x", b"\xff" * 50, good]))
    assert decoded.changes["id"].to_pylist() == [1, 1]
    assert decoded.quarantined["offset"].to_pylist() == [1, 2, 3, 4]
    assert all(reason and "no change event" not in reason for reason in decoded.quarantined["reason"].to_pylist())


PLAIN_FIELDS = [*FIELDS, {"type": "string", "field": "op", "optional": True}]


def rows_of(values: list[Any], keys: list[Any] | None = None) -> pa.Table:
    connect = {"type": "struct", "fields": PLAIN_FIELDS}
    schema, key = avro_type(connect, "Row"), avro_type(KEY, "Key")
    encoded_values = [None if each is None else encoded(schema, avro_value(each, connect)) for each in values]
    return records(encoded_values, None if keys is None else [each and encoded(key, each) for each in keys])


def test_rows_are_upserts_or_deletes_by_their_operation_and_tombstones_delete_the_key() -> None:
    row = dict.fromkeys(ORDERS.names) | {"id": 1, "qty": 1}
    decoder = of_avro(PLAIN_FIELDS, events=False, operation_field="op")
    table = rows_of(
        [row, row | {"id": 2, "op": "delete"}, None, row | {"id": 3, "op": "what"}, None, row | {"id": 4, "op": "u"}],
        [None, None, {"id": 9}, None, None, None],
    )
    decoded = decoder.decode(table)
    assert [(each["id"], each["qty"], each["_lakebed_op"]) for each in decoded.changes.to_pylist()] == [
        (1, 1, "u"),
        (2, None, "d"),
        (9, None, "d"),
        (4, 1, "u"),
    ]
    assert decoded.ignored == 1 and decoded.remarks.get("unknown_operation", {}) == {"what": 1}
    assert decoded.quarantined["offset"].to_pylist() == [3]


@pytest.mark.parametrize(
    ("keys", "key", "expected"),
    [
        (FixedSchema(AvroFormat(), '"long"'), encoded("long", 1), 1),
        (FixedSchema(AvroFormat(), '["null", "long"]'), b"\2\2", 1),
        ("json", b"1", 1),
        ("json", b'{"id": 1}', 1),
        ("json", b"Struct{id=1}", "message key: not JSON"),
        (FixedSchema(AvroFormat(), dumps(avro_type(KEY, "Key"))), b"", "message key: "),
        (FixedSchema(AvroFormat(), dumps({"type": "record", "name": "K", "fields": []})), b"", "key 'id' is null or missing"),
        (None, b"\2", "set format.key_schema_file"),
        ("none", b"\2", None),
    ],
)  # fmt: skip
def test_a_tombstone_deletes_the_row_of_its_key_or_is_quarantined(keys: Any, key: bytes, expected: Any) -> None:
    decoded = of_avro(PLAIN_FIELDS, events=False, keys=keys).decode(records([None], [key]))
    if isinstance(expected, str):
        assert not decoded.ignored and expected in decoded.quarantined["reason"].to_pylist()[0]
    else:
        assert decoded.changes["id"].to_pylist() == ([expected] if expected else [])
        assert decoded.ignored == (expected is None) and not len(decoded.quarantined)


@pytest.mark.parametrize(
    ("kind", "deletes", "upserts"), [("boolean", True, False), ("int32", 1, 0), ("double", 1.0, 0.0)]
)
def test_the_operation_may_be_a_truth_value_or_a_number(kind: str, deletes: Any, upserts: Any) -> None:
    fields = [FIELDS[0], {"type": kind, "field": "del", "optional": True}]
    shape = DecoderSchema(ORDERS.remove(2), ("id",))
    options = {"operation_field": "del", "delete_values": ("true", "1"), "upsert_values": ("false", "0")}
    connect = {"type": "struct", "fields": fields}
    given = [{"id": n, "del": value} for n, value in enumerate([upserts, deletes, None])]
    values = [encoded(avro_type(connect, "Row"), avro_value(one, connect)) for one in given]
    decoded = of_avro(fields, shape, events=False, **options).decode(records(values))
    assert decoded.changes["_lakebed_op"].to_pylist() == ["u", "d", "u"]


def test_rows_without_an_operation_field_keep_its_member_as_an_unknown_one() -> None:
    row = dict.fromkeys(ORDERS.names) | {"id": 1, "qty": 1, "op": "delete"}
    decoded = of_avro(PLAIN_FIELDS, events=False).decode(rows_of([row]))
    assert decoded.changes["_lakebed_op"].to_pylist() == ["u"]
    assert decoded.remarks.get("unknown_field", {}) == {"coupon": 1, "op": 1}


def test_a_key_that_is_one_value_is_the_tables_only_key() -> None:
    decoder = of_avro(PLAIN_FIELDS, events=False, keys=FixedSchema(AvroFormat(), '"long"'))
    decoded = decoder.decode(records([None, None], [encoded("long", 7), b"\xff"]))
    assert [(each["id"], each["_lakebed_op"]) for each in decoded.changes.to_pylist()] == [(7, "d")]
    assert decoded.quarantined["offset"].to_pylist() == [1]
    assert decoded.quarantined["reason"][0].as_py().startswith("message key: ")


def test_a_decoder_can_be_pickled_and_decodes_the_same() -> None:
    row = dict.fromkeys(ORDERS.names) | {"id": 1, "qty": 1}
    decoder = of_avro()
    copy = pickle.loads(pickle.dumps(decoder))
    assert_equal(copy.decode(as_avro([event("c", row)])), decoder.decode(as_avro([event("c", row)])))


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidSchema, match="rows have no such metadata"):
        of_avro(events=False, decoder_schema=DecoderSchema(ORDERS, ("id",), "source.lsn"))
    with pytest.raises(InvalidInput, match="takes no deletes"):
        of_avro(events=False, decoder_schema=DecoderSchema(ORDERS), operation_field="op")
