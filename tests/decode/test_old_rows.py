"""An event is about the row that its message key and its old row name for certain; nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.debezium.message_key import SHARD_FIELD
from lakebed.decode.decoder import Decoded, Decoder, DecoderSchema, RecordFormat
from lakebed.decode.json_schema import JsonSchemaFormat
from lakebed.decode.source_order import SourceRules
from lakebed.decode.typed.avro_reader import AvroFormat
from lakebed.decode.typed.records import TypedRecords, TypedSettings
from lakebed.decode.typed.schemas import FixedSchema
from lakebed.errors import InvalidSchema
from lakebed.schema.fitting import FIXED, EvolvePolicy
from tests.decode.avro_events import avro_type, avro_value, encoded, envelope, envelope_schema
from tests.decode.fuzz import assert_same, only_one_by_one, without_native_code
from tests.decode.records import event, records

Row = dict[str, Any]
FIELDS: list[Row] = [
    {"type": "int64", "field": "id"},
    {"type": "int64", "field": "code"},
    {"type": "string", "field": "v", "optional": True},
    {"type": "string", "field": "status", "default": "new"},
    {"type": "int64", "field": "n", "optional": True, "default": 9},
]
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        *(pa.field(one, pa.int64()) for one in ("code", "n")),
        pa.field("v", pa.string()),
    ]
)
SHAPE = DecoderSchema(COLUMNS, ("id",))
UNKNOWN: Row = {"type": "string", "field": "what"}
WITH_SCHEMAS = ["json", "avro", "json-schema"]


def row(id: int | None, code: int = 0, v: str | None = None, status: str = "new", n: int | None = 9) -> Row:
    """An old row; what is not given is filled in as Debezium does."""
    return {"id": id, "code": code, "v": v, "status": status, "n": n}


def json_schema(fields: Sequence[Row]) -> Row:
    """As Confluent's converter writes it."""
    made = {}
    for one in fields:
        typed: Row = {"type": "string"} if one["type"] == "string" else {"type": "integer", "connect.type": one["type"]}
        if "fields" in one:
            typed = json_schema(one["fields"])
        typed |= {"default": one["default"]} if "default" in one else {}
        made[one["field"]] = {"oneOf": [{"type": "null"}, typed]} if one.get("optional") else typed
    required = [one["field"] for one in fields if not one.get("optional")]
    return {"type": "object", "properties": made, "required": required}


def read(
    format: str, changes: Sequence[tuple[Any, Row]], shape: DecoderSchema = SHAPE, fields: Sequence[Row] = FIELDS
) -> Decoded:
    """Each change is a message key and an event; keys that are no objects stay as they are. Fast and slow reading agree."""
    names = {one["field"]: one for one in [*fields, UNKNOWN]}
    key_fields = [
        [names.get(name, UNKNOWN | {"field": name}) for name in key] for key, _ in changes if isinstance(key, dict)
    ]
    of_keys = {"type": "struct", "fields": key_fields[0] if key_fields else [fields[0]]}
    of_values = envelope(fields)
    decoder: Decoder = DebeziumJson(shape)
    keys: list[Any] = [key for key, _ in changes]
    values: list[Any] = [change for _, change in changes]
    if format == "json":
        keys = [{"schema": of_keys, "payload": key} if isinstance(key, dict) else key for key in keys]
        values = [{"schema": of_values, "payload": change} for change in values]
    elif format != "schemaless":
        reads: RecordFormat = AvroFormat() if format == "avro" else JsonSchemaFormat()
        texts = [json.dumps(json_schema(one["fields"])) for one in (of_values, of_keys)]
        if format == "avro":
            avro = envelope_schema(fields), avro_type(of_keys, "Key")
            texts = [json.dumps(one) for one in avro]
            keys = [encoded(avro[1], avro_value(key, of_keys)) if isinstance(key, dict) else key for key in keys]
            values = [encoded(avro[0], avro_value(change, of_values)) for change in values]
        schemas = [FixedSchema(reads, text) for text in texts]
        decoder = TypedRecords(TypedSettings(decoder_schema=shape, values=schemas[0], keys=schemas[1], events=True))
    table = records(values, keys)
    fast = decoder.decode(table)
    with only_one_by_one():
        assert_same(fast, decoder.decode(table))
    with without_native_code():
        assert_same(decoder.bound_to(replace(shape)).decode(table), fast)
    return fast


def outcome(decoded: Decoded) -> Any:
    """Each change as its operation and key, or the names of remarks on what is in the quarantine."""
    done = [(one["_lakebed_op"], one["id"]) for one in decoded.changes.to_pylist()]
    return done or {kind: [*names] for kind, names in decoded.remarks.items()}


UNSENT = {"unsent_key": ["id"]}
CASES = {
    "replica identity default": ({"id": 7}, event("d", None, row(7)), [("d", 7)]),
    "a zero that is the primary key": ({"id": 0}, event("d", None, row(0)), [("d", 0)]),
    "another primary key": ({"code": 102}, event("d", None, row(0, 102)), UNSENT),
    "another message key, and the whole row": ({"code": 102}, event("d", None, row(2, 102, "b", "x")), [("d", 2)]),
    "a zero in a whole row": ({"code": 102}, event("d", None, row(0, 102, "b")), [("d", 0)]),
    "a whole row by its default": ({"code": 102}, event("d", None, row(0, 102, None, "new", None)), UNSENT),
    "a replica identity of another index": ({"id": 0}, event("d", None, row(0, 5)), UNSENT),
    "a zero as primary key of a whole row": ({"id": 0}, event("d", None, row(0, 5, "x")), [("d", 0)]),
    "a message key that says something else": ({"id": 8}, event("d", None, row(9)), UNSENT),
    "a message key beside a zero": ({"id": 8}, event("d", None, row(0)), [("d", 8)]),
    "no old row": ({"id": 8}, event("d"), [("d", 8)]),
    "no message key": (None, event("d", None, row(7)), [("d", 7)]),
    "no message key, and a zero": (None, event("d", None, row(0)), [("d", 0)]),
    "no message key, and a zero beside a value": (None, event("d", None, row(0, 102)), UNSENT),
    "no message key, and a whole row": (None, event("d", None, row(0, 102, "x")), [("d", 0)]),
    "an update": ({"id": 1}, event("u", row(1, 5)), [("u", 1)]),
    "an update without a message key": (None, event("u", row(1, 5)), [("u", 1)]),
    "an update by another primary key": ({"code": 5}, event("u", row(1, 5)), UNSENT),
    "an update of a whole row": ({"code": 5}, event("u", row(9, 5), row(1, 5, "x")), [("d", 1), ("u", 9)]),
    "an update of a zero in a whole row": ({"code": 5}, event("u", row(9, 5), row(0, 5, "x")), [("d", 0), ("u", 9)]),
    "an update that perhaps moves a zero": ({"what": "x"}, event("u", row(9, 5), row(0, 5)), UNSENT),
    "an update that moves no zero": ({"code": 5}, event("u", row(0, 5), row(0, 5)), [("u", 0)]),
    "a row that is made or read": ({"code": 5}, event("c", row(1, 5)), [("u", 1)]),
}  # fmt: skip
SCHEMALESS = {
    # Without a schema a value may be a default, so nothing shows that a row is whole.
    "a zero that is the primary key": UNSENT,
    "a zero in a whole row": UNSENT,
    "a zero as primary key of a whole row": UNSENT,
    "no message key, and a zero": UNSENT,
    "no message key, and a whole row": UNSENT,
    "an update of a zero in a whole row": UNSENT,
}


@pytest.mark.parametrize("format", [*WITH_SCHEMAS, "schemaless"])
@pytest.mark.parametrize("case", CASES)
def test_which_row_an_event_is_about(format: str, case: str) -> None:
    key, change, expected = CASES[case]
    decoded = read(format, [(key, change)])
    assert outcome(decoded) == (SCHEMALESS.get(case, expected) if format == "schemaless" else expected)
    assert len(decoded.quarantined) == (not len(decoded.changes))


@pytest.mark.parametrize("format", WITH_SCHEMAS)
@pytest.mark.parametrize("connector", ["mysql", "mariadb", "sqlserver", "oracle"])
def test_old_rows_of_other_databases_are_whole(format: str, connector: str) -> None:
    changes = [event("d", None, row(0, 102)), event("u", row(9, 102), row(0, 102)), event("u", row(9, 102))]
    decoded = read(
        format, [({"code": 102}, one | {"source": one["source"] | {"connector": connector}}) for one in changes]
    )
    assert outcome(decoded) == [("d", 0), ("d", 0), ("u", 9), ("u", 9)]


@pytest.mark.parametrize("key", [b"Struct{id=7}", b"7", b'"x"', b"[7]", b"{}", {SHARD_FIELD: "orders_1"}])
def test_a_message_key_that_names_no_fields_says_nothing_about_an_event(key: Any) -> None:
    decoded = read("schemaless", [(key, event("d", None, row(7))), (key, event("u", row(8), None))])
    assert outcome(decoded) == [("d", 7), ("u", 8)]


@pytest.mark.parametrize("format", ["json", "schemaless"])
@pytest.mark.parametrize("key", [{"code": 102}, b"102", None])
def test_a_key_that_is_null_in_the_old_row_is_not_guessed(format: str, key: Any) -> None:
    fields = [FIELDS[0] | {"optional": True}, *FIELDS[1:]]
    assert outcome(read(format, [(key, event("d", None, row(None, 102)))], SHAPE, fields)) == UNSENT


def test_a_bare_message_key_is_the_key_of_a_delete_without_an_old_row_alone() -> None:
    decoded = read("schemaless", [(b"7", event("d")), (b"102", event("d", None, {"code": 102}))])
    assert outcome(decoded) == [("d", 7)]
    assert decoded.quarantined["offset"].to_pylist() == [1]


@pytest.mark.parametrize("format", WITH_SCHEMAS)
def test_the_message_key_of_shards_has_the_key_of_the_table_too(format: str) -> None:
    key = {"id": 7, SHARD_FIELD: "orders_1"}
    assert outcome(read(format, [(key, event("d", None, row(7))), (key, event("u", row(7)))])) == [("d", 7), ("u", 7)]


@pytest.mark.parametrize("format", [*WITH_SCHEMAS, "schemaless"])
@pytest.mark.parametrize(
    ("key", "before", "expected"),
    [
        ({"id": 17, "code": 1}, row(17, 1), [("d", 17, 1)]),
        ({"id": 17, "code": 0}, row(17, 0, None, "x"), [("d", 17, 0)]),  # line 0 of an order
        ({"id": 17, "code": 0}, row(17, 0), [("d", 17, 0)]),
        ({"id": 17}, row(17, 0), None),
        ({"what": "x"}, row(17, 0), None),
    ],
)
def test_a_zero_in_a_key_of_several_columns(format: str, key: Row, before: Row, expected: Any) -> None:
    decoded = read(format, [(key, event("d", None, before))], DecoderSchema(COLUMNS, ("id", "code")))
    found = [(one["_lakebed_op"], one["id"], one["code"]) for one in decoded.changes.to_pylist()]
    assert (found or None) == expected


def test_a_key_column_that_was_renamed_is_the_same_key() -> None:
    shape = DecoderSchema(COLUMNS, ("id",), policy=replace(FIXED, renamed={"nid": "id"}))
    fields = [{"type": "int64", "field": "nid"}, *FIELDS[1:]]
    old = row(0, 102) | {"nid": 2}
    del old["id"]
    for keys_of_message in (False, True):
        named = replace(shape, source=SourceRules(keys_of_message=keys_of_message))
        decoded = read("json", [({"nid": 2}, event("d", None, old)), ({"nid": 2}, event("u", old))], named, fields)
        assert outcome(decoded) == [("d", 2), ("u", 2)]


# -- the order of a delete ---------------------------------------------------------------------------------------------

SEQUENCE_FIELDS = [*FIELDS[:2], {"type": "string", "field": "v"}, *FIELDS[3:]]
UNORDERED = {"unordered_delete": ["code"]}


@pytest.mark.parametrize("format", [*WITH_SCHEMAS, "schemaless"])
@pytest.mark.parametrize(
    ("before", "sequence"),
    [
        (row(7, 0, ""), None),
        (row(7, 5, ""), 5),
        (row(7, 0, "", "new", 3), 0),  # a whole row, whose first version is 0
        (row(7, 0, "x"), None),  # it may be of the replica identity
        (row(7, 0, "", "old"), None),
        (row(7, 0, "", "new", None), None),
    ],
)
def test_a_delete_whose_order_was_filled_in_is_not_an_old_one(format: str, before: Row, sequence: int | None) -> None:
    shape = DecoderSchema(COLUMNS, ("id",), "code")
    decoded = read(format, [({"id": 7}, event("d", None, before))], shape, SEQUENCE_FIELDS)
    if sequence is None or (sequence == 0 and format == "schemaless"):
        assert outcome(decoded) == UNORDERED
        assert "column 'code', which orders the changes" in decoded.quarantined["reason"][0].as_py()
    else:
        assert outcome(decoded) == [("d", 7)] and decoded.changes["code"].to_pylist() == [sequence]


@pytest.mark.parametrize("format", WITH_SCHEMAS)
@pytest.mark.parametrize(
    ("kind", "name", "zero"),
    [
        ("string", "ZonedTimestamp", "1970-01-01T00:00:00.000000Z"),
        ("int64", "MicroTimestamp", 0),
        ("int64", "Timestamp", 0),
    ],
)
def test_a_moment_that_was_filled_in_orders_nothing(format: str, kind: str, name: str, zero: Any) -> None:
    fields = [FIELDS[0], {"type": kind, "field": "code", "name": f"io.debezium.time.{name}"}, *FIELDS[2:]]
    shape = DecoderSchema(COLUMNS.set(1, pa.field("code", pa.timestamp("us", "UTC"))), ("id",), "code")
    decoded = read(format, [({"id": 7}, event("d", None, row(7) | {"code": zero}))], shape, fields)
    assert outcome(decoded) == UNORDERED


@pytest.mark.parametrize("format", [*WITH_SCHEMAS, "schemaless"])
def test_the_old_row_of_a_key_that_moves_goes_with_the_order_of_the_new_one(format: str) -> None:
    changes = [({"what": "x"}, event("u", row(9, 6, "b"), before)) for before in (row(1), row(1, 5, "a"))]
    decoded = read(format, changes, DecoderSchema(COLUMNS, ("id",), "code"))
    assert decoded.changes.select(["id", "code"]).to_pylist() == [
        {"id": 1, "code": 6},
        {"id": 9, "code": 6},
        {"id": 1, "code": 5},
        {"id": 9, "code": 6},
    ]


# -- tables whose keys are those of the message key ----------------------------------------------------------------------


@pytest.mark.parametrize("format", WITH_SCHEMAS)
@pytest.mark.parametrize(
    "change", [event("c", row(1, 5)), event("u", row(1, 5)), event("d", None, row(1, 5, "x", "x"))]
)
@pytest.mark.parametrize("key", [{"code": 5}, {"id": 1, "code": 5}, b"Struct{id=1}"])
def test_another_message_key_ends_the_batch(format: str, change: Row, key: Any) -> None:
    if isinstance(key, bytes) and format != "json":
        pytest.skip("without a registry any bytes are of the schema")
    with pytest.raises(InvalidSchema, match=r"the message key .* had id when the table was made"):
        read(format, [(key, change)], replace(SHAPE, source=SourceRules(keys_of_message=True)))


@pytest.mark.parametrize("format", WITH_SCHEMAS)
def test_a_change_without_a_message_key_is_quarantined_where_others_have_one(format: str) -> None:
    """As a connector sends it that decodes a change when the table, or its primary key, is gone already."""
    changes = [event("c", row(1, 5)), event("u", row(1, 5)), event("d", None, row(1, 5, "x", "x"))]
    decoded = read(
        format, [(None, change) for change in changes], replace(SHAPE, source=SourceRules(keys_of_message=True))
    )
    assert outcome(decoded) == UNSENT and len(decoded.quarantined) == 3


@pytest.mark.parametrize("format", WITH_SCHEMAS)
def test_another_message_key_ends_the_batch_before_it_changes_the_table(format: str) -> None:
    policy = EvolvePolicy(allowed=frozenset({"add"}))
    shape = replace(SHAPE, policy=policy, source=SourceRules(keys_of_message=True))
    with pytest.raises(InvalidSchema, match="the message key has code"):
        read(format, [({"code": 5}, event("c", row(1, 5)))], shape)
    assert read(format, [({"id": 1}, event("c", row(1, 5)))], shape).schema_needed is not None


@pytest.mark.parametrize("format", WITH_SCHEMAS)
def test_what_changes_no_row_needs_no_message_key(format: str) -> None:
    shape = replace(SHAPE, source=SourceRules(keys_of_message=True))
    decoded = read(format, [({"id": 1}, event("c", row(1))), (None, event("m")), (None, event("t"))], shape)
    assert outcome(decoded) == [("u", 1)] and decoded.ignored == 1 and len(decoded.truncates) == 1
