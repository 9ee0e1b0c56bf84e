"""The transaction of each event, in every format; events and records of transactions are PostgreSQL's by Debezium."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode import transaction_ids
from lakebed.decode.decoder import RECORD_SCHEMA, DecoderSchema
from lakebed.decode.formats import SchemaText, decoder, schemas_of
from lakebed.decode.transaction_ids import identity, transaction_ids_of
from lakebed.decode.typed.registry import RegistrySettings
from lakebed.errors import InvalidInput
from lakebed.points.window import JsonTransactions, TypedTransactions
from tests.decode.avro_events import encoded, framed
from tests.decode.schema_registry import SchemaRegistry

LINES = [json.loads(line) for line in Path(__file__).with_name("postgresql.jsonl").read_text().splitlines()]
TABLE = DecoderSchema(pa.schema([pa.field("tid", pa.int64(), False)]), ("tid",))
TRANSACTION = {
    "type": "record",
    "name": "block",
    "namespace": "event",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total_order", "type": "long"},
        {"name": "data_collection_order", "type": "long"},
    ],
}
ROW = {"type": "record", "name": "Value", "fields": [{"name": "tid", "type": "long"}]}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
        {"name": "transaction", "type": ["null", TRANSACTION], "default": None},
    ],
}
COLLECTION = {
    "type": "record",
    "name": "collection",
    "fields": [{"name": "data_collection", "type": "string"}, {"name": "event_count", "type": "long"}],
}
STATUS = {
    "type": "record",
    "name": "TransactionMetadataValue",
    "fields": [
        {"name": "status", "type": "string"},
        {"name": "id", "type": "string"},
        {"name": "event_count", "type": ["null", "long"], "default": None},
        {"name": "data_collections", "type": ["null", {"type": "array", "items": COLLECTION}], "default": None},
        {"name": "ts_ms", "type": "long"},
    ],
}


def table(values: list[bytes | None], first: int = 0) -> pa.Table:
    count = len(values)
    columns = [
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(["t"] * count),
        pa.array([0] * count, pa.int32()),
        pa.array(range(first, first + count), pa.int64()),
        pa.array([1_795_254_750_404] * count, pa.timestamp("ms", "UTC")),
    ]
    return pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)


def events(topic: str) -> list[bytes | None]:
    return [line["value"] and line["value"].encode() for line in LINES if topic in line["topic"]]


def read(values: list[bytes | None], **options: Any) -> list[tuple[str | None, int | None]]:
    found = transaction_ids_of(decoder(options.pop("format", "debezium-json"), TABLE, options)).read(table(values))
    return list(zip(found.ids.to_pylist(), found.orders.to_pylist(), strict=True))


@pytest.mark.parametrize("native", [True, False])
def test_events_in_json_name_their_transaction(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of a snapshot and tombstones have none."""
    if not native:
        monkeypatch.setattr(transaction_ids.ObjectParser, "parse", lambda *_: 1 / 0)
        monkeypatch.setattr(transaction_ids, "MISSES", (ZeroDivisionError,))
    plain = events("pgbench_tellers") + events("pgbench_accounts")
    assert read(plain) == [("755", 2), ("765", 2), (None, None), (None, None), (None, None)]
    inline = [value and b'{"schema": {"type": "struct", "fields": []}, "payload": %s}' % value for value in plain[:3]]
    assert read(inline) == [("755", 2), ("765", 2), (None, None)]


def test_an_event_names_its_table_with_database_and_schema_in_every_format() -> None:
    ids = transaction_ids_of(decoder("debezium-json", TABLE, {}))
    plain = [value for value in events("pgbench_tellers") if value]
    inline = [b'{"schema": {}, "payload": %s}' % value for value in plain]
    for values in (plain, inline):
        assert ids.read(table([None, *values])).table_of(1) == ("bench", "public", "pgbench_tellers")
    strange = [
        b"{}",
        b'{"source": 7}',
        b'{"source": {"table": 7}}',
        b'{"source": {"db": "a", "schema": null, "table": "b"}}',
    ]
    assert [ids.read(table(strange)).table_of(row) for row in range(4)] == [(), (), (), ("a", "b")]
    source = {
        "type": "record",
        "name": "Source",
        "fields": [{"name": n, "type": "string"} for n in ("db", "schema", "table")],
    }
    envelope = {**ENVELOPE, "fields": [*ENVELOPE["fields"], {"name": "source", "type": source}]}
    with SchemaRegistry() as registry:
        row = {"before": None, "after": None, "op": "u", "ts_ms": 1, "transaction": None}
        row["source"] = {"db": "shop", "schema": "public", "table": "a"}
        values = [framed(registry.register(envelope), encoded(envelope, row))]
        typed = transaction_ids_of(decoder("debezium-avro", TABLE, {"registry": RegistrySettings(url=registry.url)}))
        assert typed.read(table(values)).table_of(0) == ("shop", "public", "a")


def test_a_record_that_is_no_event_has_no_transaction() -> None:
    hostile = [
        b"", b"{", b"null", b"[]", b'"transaction"', b'{"transaction": 5}', b'{"transaction": {"id": 7}}',
        b'{"payload": null}', b'{"transaction": {"id": "9:9", "total_order": "x"}}', b'\xff{"transaction"}',
    ]  # fmt: skip
    found = read([*hostile, b'{"transaction": {"id": "1:2", "total_order": 1, "data_collection_order": 1}}'])
    assert [id for id, _ in found] == [None] * 8 + ["9", None, "1"]


def test_events_in_avro_name_their_transaction() -> None:
    with SchemaRegistry() as registry:
        number = registry.register(ENVELOPE)
        block = {"id": "755:39412744", "total_order": 2, "data_collection_order": 1}
        rows = [
            {"before": None, "after": {"tid": 1}, "op": "u", "ts_ms": 1, "transaction": one} for one in (block, None)
        ]
        values: list[bytes | None] = [framed(number, encoded(ENVELOPE, row)) for row in rows]
        values += [None, b"\0\0\0\0\1broken", values[0]]
        found = read(values, format="debezium-avro", registry=RegistrySettings(url=registry.url))
    assert found == [("755", 2), (None, None), (None, None), (None, None), ("755", 2)]


def test_a_transaction_ends_in_json_and_in_avro_alike() -> None:
    values = events("transaction")
    plain = list(JsonTransactions().read(table(values, 40)))
    inline = [b'{"schema": {}, "payload": %s}' % value for value in values if value]
    assert list(JsonTransactions().read(table(inline, 40))) == plain
    with SchemaRegistry() as registry:
        number = registry.register(STATUS)
        binary = [framed(number, encoded(STATUS, json.loads(value))) for value in values if value]
        schemas, _ = schemas_of("debezium-avro", {"registry": RegistrySettings(url=registry.url)})
        assert list(TypedTransactions(schemas).read(table(binary, 40))) == plain
    assert [(one.id, one.offset, one.events) for one in plain] == [
        ("753", 40, None),
        ("756", 41, None),
        ("754", 42, {f"public.pgbench_{name}": 1 for name in ("tellers", "accounts", "branches")}),
        ("758", 43, {f"public.pgbench_{name}": 1 for name in ("tellers", "accounts", "branches")}),
    ]
    assert plain[2].time_ms == 1_795_254_750_108 and plain[2].text == "754:39412448"


@pytest.mark.parametrize(
    "value", [b"{}", b"[]", b"x", b'{"status": "ENDED", "id": "1"}', b'{"status": "END", "id": 1}']
)
def test_another_topic_than_that_of_transactions_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"offset 7 .*transaction_topic"):
        list(JsonTransactions().read(table([value], 7)))


def test_one_schema_for_all_does_not_fit_the_topic_of_transactions() -> None:
    schemas, _ = schemas_of("debezium-avro", {"schema": SchemaText(text=json.dumps(ENVELOPE))})
    with pytest.raises(InvalidInput, match="use a registry"):
        TypedTransactions(schemas)


def test_rows_without_events_have_no_transactions() -> None:
    with pytest.raises(InvalidInput, match="Debezium's"):
        transaction_ids_of(decoder("json", TABLE))


def test_only_the_ids_of_postgresql_have_a_position_behind_them() -> None:
    others = [
        "file=binlog.000003,pos=1234",
        "3e11fa47-71ca-11e1-9e33-c80aa9429562:23",
        "0-1-270",
        "00000025:00000d98:00a2",
    ]
    assert [identity(id) for id in others] == others
    assert identity("755:39412744") == identity("755:39412448") == "755"
