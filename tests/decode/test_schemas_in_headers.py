"""Records whose schema is named by a header, as newer serializers write them, become what they become with the schema's id before
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import lakebed
from lakebed.decode.decoder import Decoder, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.metadata import KEY_SCHEMA, NEW_KEY, VALUE_SCHEMA
from lakebed.decode.slices import Record
from lakebed.decode.transaction_ids import transaction_ids_of
from lakebed.decode.typed import registry as registry_module
from lakebed.decode.typed.registry import RegistrySettings
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, QUARANTINE_SUFFIX
from lakebed.pipeline.database.new_tables import rows_of
from lakebed.table import internals_of
from tests.decode.avro_events import avro_type, avro_value, encoded, envelope, envelope_schema, framed
from tests.decode.records import event, records, with_headers
from tests.decode.schema_registry import SchemaRegistry, guid_of
from tests.decode.test_typed_formats import PROTO, messages
from tests.sources.memory_source import KeyedTopics, ingest_of

TABLE = DecoderSchema(pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())]), ("id",))
FIELDS: list[dict[str, Any]] = [
    {"type": "int64", "field": "id"},
    {"type": "string", "field": "name", "optional": True},
]
CHANGES = [
    event("c", {"id": 1, "name": "a"}),
    event("u", {"id": 1, "name": "b"}, {"id": 1, "name": "a"}),
    event("d", None, None),
]
__all__ = ["messages"]

Made = tuple[str, list[bytes], list[bytes]]
"""A format, and the values and keys of records as they are with the id before them."""


def of_avro(registry: SchemaRegistry, _: Any) -> Made:
    schema, key = envelope_schema(FIELDS), avro_type({"type": "struct", "fields": FIELDS[:1]}, "Key")
    value_id, key_id = registry.register(schema), registry.register(key)
    values = [framed(value_id, encoded(schema, avro_value(one, envelope(FIELDS)))) for one in CHANGES]
    return "debezium-avro", values, [framed(key_id, encoded(key, {"id": 1}))] * 3


def of_json_schema(registry: SchemaRegistry, _: Any) -> Made:
    row = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
    both = {"oneOf": [{"type": "null"}, row]}
    schema = {"type": "object", "properties": {"before": both, "after": both, "op": {"type": "string"}}}
    value_id, key_id = registry.register(schema, "JSON"), registry.register(row, "JSON")
    values = [framed(value_id, json.dumps({n: one[n] for n in schema["properties"]}).encode()) for one in CHANGES]
    return "debezium-json-schema", values, [framed(key_id, b'{"id": 1}')] * 3


def of_protobuf(registry: SchemaRegistry, made: Any) -> Made:
    number, message = registry.register(PROTO, "PROTOBUF"), made["Envelope"]
    values = []
    for one in CHANGES:
        rows = {side: message.Value(**one[side]) for side in ("before", "after") if one[side]}
        values.append(framed(number, b"\0" + message(op=one["op"], **rows).SerializeToString()))
    return "debezium-protobuf", values, [framed(number, b"\2\2" + made["Key"](id=1).SerializeToString())] * 3


def in_header(value: bytes, indexes: int, by_guid: bool = True) -> tuple[bytes, bytes]:
    """The record's own bytes, and what a header says. ``indexes``: how many bytes of message indexes there are."""
    rest = value[5 : 5 + indexes]
    name = b"\1" + UUID(guid_of(int.from_bytes(value[1:5]))).bytes if by_guid else value[:5]
    return value[5 + indexes :], name + rest


def moved(values: list[bytes], keys: list[bytes], indexes: tuple[int, int], by_guid: bool = True) -> pa.Table:
    """The records with both schemas in headers."""
    bodies, names = zip(*(in_header(one, indexes[0], by_guid) for one in values), strict=True)
    key_bodies, key_names = zip(*(in_header(one, indexes[1], by_guid) for one in keys), strict=True)
    headers = [{VALUE_SCHEMA: a, KEY_SCHEMA: b} for a, b in zip(names, key_names, strict=True)]
    return with_headers(records(list(bodies), list(key_bodies)), headers)


def of(format: str, registry: SchemaRegistry) -> Decoder:
    return decoder(format, TABLE, {"registry": RegistrySettings(url=registry.url)})


@pytest.mark.parametrize("by_guid", [True, False])
@pytest.mark.parametrize(("make", "indexes"), [(of_avro, (0, 0)), (of_json_schema, (0, 0)), (of_protobuf, (1, 2))])
def test_a_header_names_the_schema_of_a_value_and_of_a_key(
    make: Callable[..., Made], indexes: tuple[int, int], by_guid: bool, request: pytest.FixtureRequest
) -> None:
    with SchemaRegistry() as registry:
        format, values, keys = make(registry, request.getfixturevalue("messages"))
        before = of(format, registry).decode(records(values, keys))
        after = of(format, registry).decode(moved(values, keys, indexes, by_guid))
    assert before.changes.num_rows == 3 and before.quarantined.num_rows == 0
    assert after.changes.equals(before.changes) and after.quarantined.num_rows == 0


def test_records_of_both_kinds_stand_side_by_side_and_the_last_header_of_a_name_counts() -> None:
    with SchemaRegistry() as registry:
        format, values, keys = of_avro(registry, None)
        body, name = in_header(values[1], 0)
        mixed = with_headers(records([values[0], body, values[2]], [keys[0]] * 3), [{}, {VALUE_SCHEMA: name}, {}])
        twice = pa.array([[{"key": VALUE_SCHEMA, "value": b"\1"}, {"key": VALUE_SCHEMA, "value": name}]])
        decoded = of(format, registry).decode(mixed)
        last = of(format, registry).decode(records([body]).append_column("headers", twice))
    assert [row["name"] for row in decoded.changes.to_pylist()] == ["a", "b", None]
    assert [row["name"] for row in last.changes.to_pylist()] == ["b"]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"\1" + b"\2" * 16, r"schema 02020202-0202-0202-0202-020202020202: the schema registry does not have it"),
        (b"\1" + b"\2" * 15, r"its header with the id of its schema can't be read: 0102"),
        (b"", r"can't be read: it is empty"),
        (b"\7" * 17, r"can't be read: 0707"),
    ],
)
def test_a_header_that_names_no_schema_is_a_reason_for_the_quarantine(header: bytes, reason: str) -> None:
    with SchemaRegistry() as registry:
        format, values, _ = of_avro(registry, None)
        decoded = of(format, registry).decode(with_headers(records(values[:1]), [{VALUE_SCHEMA: header}]))
    [found] = decoded.quarantined.to_pylist()
    assert re.search(reason, found["reason"]), found["reason"]
    assert found["headers"] == [{"key": VALUE_SCHEMA, "value": header}]


def test_tables_are_introduced_and_transactions_are_found_by_a_schema_in_a_header() -> None:
    fields = [*FIELDS]
    schema = envelope_schema(fields)
    transaction = {
        "name": "transaction",
        "type": ["null", {"type": "record", "name": "T", "fields": [{"name": "id", "type": "string"}]}],
    }
    schema["fields"].append(transaction)
    with SchemaRegistry() as registry:
        number = registry.register(schema)
        change = avro_value(CHANGES[0], envelope(fields)) | {"transaction": {"id": "7:99"}}
        body, name = in_header(framed(number, encoded(schema, change)), 0)
        options = {"registry": RegistrySettings(url=registry.url)}
        headers = {VALUE_SCHEMA: name}
        record = Record(key=None, value=body, topic="t", partition=0, offset=0, timestamp=0, headers=headers)
        found = rows_of("debezium-avro", options)(record)
        ids = transaction_ids_of(of("debezium-avro", registry)).read(with_headers(records([body]), [headers]))
    assert found is not None and found.columns.names == ["id", "name"]
    assert ids.ids.to_pylist() == ["7"]


def test_a_quarantined_record_keeps_its_header_and_is_replayed_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "UNKNOWN_SECONDS", 0.0)
    table = lakebed.create(tmp_path / "t", TABLE.columns, keys=["id"])
    with SchemaRegistry() as registry:
        format, values, _ = of_avro(registry, None)
        known, registry.schemas = registry.schemas, {}
        source = KeyedTopics()
        body, name = in_header(values[0], 0)
        source.add("t", 0, (None, b"no record"), (None, body, {VALUE_SCHEMA: name}), (None, body))
        reading = of(format, registry)
        ingest_of(table, source, reading)()
        beside = lakebed.open(table.path + QUARANTINE_SUFFIX)
        kept = {row["offset"]: row["headers"] for row in beside.to_arrow().to_pylist()}
        registry.schemas = known
        done = internals_of(table).replay_quarantine(of(format, registry))
    assert kept == {0: None, 1: [{"key": VALUE_SCHEMA, "value": name}], 2: None}
    assert (done.records, table.to_arrow().to_pylist()) == (1, [{"id": 1, "name": "a"}])
    assert sorted(row["offset"] for row in beside.to_arrow().to_pylist()) == [0, 2], "equal bytes, but no schema"


def test_a_quarantine_of_earlier_days_gets_the_column_with_the_first_record_that_needs_it(tmp_path: Path) -> None:
    table, source = lakebed.create(tmp_path / "t", TABLE.columns, keys=["id"]), KeyedTopics()
    beside = lakebed.create(table.path + QUARANTINE_SUFFIX, QUARANTINE_SCHEMA)
    ingest = ingest_of(table, source, decoder("json", TABLE))
    source.add("t", 0, (None, b"no record"))
    ingest()
    assert beside.schema.names == QUARANTINE_SCHEMA.names, "no header, no column"
    source.add("t", 0, (None, b"nor this", {NEW_KEY: b"1"}), (None, b"nor that", {NEW_KEY: b"1"}))
    ingest()
    source.add("t", 0, (None, b"no record again"))
    ingest()
    one = [{"key": NEW_KEY, "value": b"1"}]
    assert [row["headers"] for row in beside.to_arrow().sort_by("offset").to_pylist()] == [None, one, one, None]
    assert not lakebed.open(beside.path).doctor(deep=True).findings
