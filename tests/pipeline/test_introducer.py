"""A topic that is seen first becomes a table: which columns, keys and order it gets, and what can't become one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.discovery import NoTable
from lakebed.errors import InvalidInput, LakebedError, Retry
from lakebed.pipeline.database.introducer import Introduced, Introducer, NotYet
from lakebed.pipeline.database.new_tables import ASKED_MAX
from lakebed.pipeline.settings import DatabasePipeline, parse_any
from lakebed.positions.truncates import cutoff_of
from lakebed.sources.source import Range
from tests.decode.avro_events import SOURCE, avro_type, avro_value, encoded, envelope, envelope_schema, framed
from tests.decode.records import Value, event, in_log, records
from tests.decode.schema_registry import SchemaRegistry
from tests.internals import log_of

ID = {"type": "int32", "field": "id"}
NAME = {"type": "string", "field": "name", "optional": True}
PRICE = {
    "type": "bytes", "field": "price", "name": "org.apache.kafka.connect.data.Decimal",
    "parameters": {"scale": "2", "connect.decimal.precision": "12"},
}  # fmt: skip
DAY = {"type": "int32", "field": "day", "name": "io.debezium.time.Date", "optional": True}
FIELDS = [ID, NAME, PRICE, DAY]
ROW = {"id": 1, "name": "a", "price": "AQI=", "day": 3}
KEY = {"type": "struct", "fields": [ID]}
TAKEN = {"type": "int32", "field": "_lakebed_op"}
Write = Callable[..., bytes]


class Topic:
    """Records of topics in memory; ``failing``: so many reads fail first."""

    records_lost = 0

    def __init__(self, tables: Mapping[str, pa.Table], failing: int = 0) -> None:
        self.tables, self.failing, self.reads = tables, failing, 0

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        return []

    def impatient(self) -> Topic:
        return self

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        self.reads += 1
        if self.failing:
            self.failing -= 1
            raise Retry("the broker is away")
        for at in range(chosen.start, chosen.end, 7):
            yield self.tables[chosen.topic].slice(at, min(7, chosen.end - at))


def pipeline(
    path: Path, more: str = "", format: str = "debezium-json", registry: str = "", rest: str = ""
) -> DatabasePipeline:
    text = f"""
database:
  path: {path}
{more}
source: {{kind: kafka, topic_pattern: "shop\\\\..*", config: {{bootstrap.servers: "nowhere:1"}}}}
format: {format}
{rest}
"""
    found = parse_any(text + (f'registry: {{url: "{registry}"}}\n' if registry else ""), "shop.yml", {})
    assert isinstance(found, DatabasePipeline)
    return found


def as_json(change: dict[str, Any], fields: Sequence[dict[str, Any]] = FIELDS, **more: Any) -> bytes:
    schema = envelope(fields)
    for member in schema["fields"]:
        if member["field"] == "source":
            member["fields"] = more.get("source", SOURCE)
    return json.dumps({"schema": schema, "payload": change}).encode()


def key_of(fields: Sequence[dict[str, Any]] = (ID,), **values: Any) -> bytes:
    return json.dumps({"schema": {"type": "struct", "fields": list(fields)}, "payload": values}).encode()


def introduced(
    of: DatabasePipeline,
    values: Sequence[Value],
    keys: Sequence[Value] | None = None,
    topic: str = "shop.public.orders",
) -> Introduced | NoTable | NotYet:
    source = Topic({topic: records(values, keys, topic)})
    return Introducer(of, source).table_for(topic, [Range(topic, 3, 0, len(values))])


def table_of(found: object) -> lakebed.Table:
    assert isinstance(found, Introduced), found
    return found.table


def test_a_topic_of_json_with_schemas_becomes_a_table(tmp_path: Path) -> None:
    found = introduced(pipeline(tmp_path), [as_json(event("c", ROW))], [key_of(id=1)])
    table = table_of(found)
    assert isinstance(found, Introduced) and found.created
    assert table.path == f"{tmp_path}/public/orders"
    assert table.schema == pa.schema(
        [
            pa.field("id", pa.int32(), False), ("name", pa.string()), ("price", pa.decimal128(12, 2)), ("day", pa.date32()),
        ]
    )  # fmt: skip
    [detail] = table.inspect.detail().to_pylist()
    assert (detail["keys"], detail["sequence_by"]) == (["id"], "source.lsn")
    assert table.properties["lakebed.source_topic"] == "shop.public.orders"


def test_a_topic_of_avro_becomes_a_table(tmp_path: Path) -> None:
    with SchemaRegistry() as registry:
        number, of_key = registry.register(envelope_schema(FIELDS)), registry.register(avro_type(KEY, "Key"))
        value = framed(number, encoded(envelope_schema(FIELDS), avro_value(event("c", ROW), envelope(FIELDS))))
        key = framed(of_key, encoded(avro_type(KEY, "Key"), {"id": 1}))
        table = table_of(introduced(pipeline(tmp_path, "", "debezium-avro", registry.url), [value], [key]))
        assert [str(one.type) for one in table.schema] == ["int32", "string", "decimal128(38, 2)", "date32[day]"]
        [detail] = table.inspect.detail().to_pylist()
        assert (detail["keys"], detail["sequence_by"]) == (["id"], "source.lsn")


@pytest.mark.parametrize("day", [-2_147_472_692, 6_666_479])
def test_a_topic_whose_first_event_has_a_far_date_becomes_a_table(day: int, tmp_path: Path) -> None:
    fields = [ID, {**DAY, "name": "org.apache.kafka.connect.data.Date"}]
    with SchemaRegistry() as registry:
        number, of_key = registry.register(envelope_schema(fields)), registry.register(avro_type(KEY, "Key"))
        change = avro_value(event("c", {"id": 1, "day": day}), envelope(fields))
        value = framed(number, encoded(envelope_schema(fields), change))
        key = framed(of_key, encoded(avro_type(KEY, "Key"), {"id": 1}))
        table = table_of(introduced(pipeline(tmp_path, "", "debezium-avro", registry.url), [value], [key]))
        assert [str(one.type) for one in table.schema] == ["int32", "date32[day]"]


def test_rows_of_avro_become_a_table_whose_keys_are_those_of_the_message(tmp_path: Path) -> None:
    row = {"type": "struct", "fields": [ID, NAME, {"type": "string", "field": "op"}]}
    with SchemaRegistry() as registry:
        number, of_key = registry.register(avro_type(row, "Row")), registry.register(avro_type(KEY, "Key"))
        value = framed(number, encoded(avro_type(row, "Row"), {"id": 1, "name": "a", "op": "u"}))
        key = framed(of_key, encoded(avro_type(KEY, "Key"), {"id": 1}))
        of = pipeline(tmp_path, "", "{kind: avro, operation_field: op}", registry.url)
        table = table_of(introduced(of, [None, value], [key, key], "orders"))
        assert (table.path, table.schema.names) == (f"{tmp_path}/default/orders", ["id", "name"])
        assert table.inspect.detail().to_pylist()[0]["keys"] == ["id"]


@pytest.mark.parametrize(
    ("first", "keys"),
    [
        ([], []),
        ([None, None], [key_of(id=1), key_of(id=2)]),
        ([as_json(event("t"))], [None]),
        ([as_json(event("m"))], [None]),
        ([b"not JSON", b"{}", b"[]", b"\xff", b'{"payload": null, "schema": null}'], [None] * 5),
        ([json.dumps(event("c", ROW)).encode()], [key_of(id=1)]),
        ([None] * 50, [None] * 50),
    ],
    ids=["nothing", "tombstones", "a truncate", "a message", "what can't be read", "an event without a schema", "many"],
)
@pytest.mark.parametrize("op", ["c", "u", "d", "r"])
def test_what_says_nothing_is_passed_over_and_any_change_says_it(
    tmp_path: Path, first: list[Value], keys: list[Value], op: str
) -> None:
    change = as_json(event(op, None if op == "d" else ROW, ROW if op == "d" else None))
    table = table_of(introduced(pipeline(tmp_path), [*first, change], [*keys, key_of(id=1)]))
    assert table.schema.names == ["id", "name", "price", "day"]
    assert table.inspect.detail().to_pylist()[0]["keys"] == ["id"]


def test_a_change_of_the_schema_in_between_is_left_to_the_stream(tmp_path: Path) -> None:
    later = as_json(event("c", {**ROW, "extra": 1}), [*FIELDS, {"type": "int64", "field": "extra", "optional": True}])
    table = table_of(introduced(pipeline(tmp_path), [as_json(event("c", ROW)), later], [key_of(id=1)] * 2))
    assert "extra" not in table.schema.names


def test_a_table_remembers_where_the_rows_of_its_initial_snapshot_are(tmp_path: Path) -> None:
    row = in_log(event("r", ROW, lsn=700), '[null,"700"]')
    row["source"]["snapshot"] = "first"
    members = [*SOURCE, {"type": "string", "field": "snapshot", "optional": True}]
    made = table_of(introduced(pipeline(tmp_path), [as_json(row, source=members)], [key_of(id=1)]))
    assert made.properties["lakebed.source_begin"] == "700"
    assert cutoff_of(log_of(made).refresh()).begin == 700
    later = as_json(in_log(event("c", ROW, lsn=700), '[null,"700"]'))
    other = table_of(introduced(pipeline(tmp_path), [later], [key_of(id=1)], "shop.public.later"))
    assert "lakebed.source_begin" not in other.properties


def test_without_a_message_key_a_table_is_only_appended_to(tmp_path: Path) -> None:
    [detail] = table_of(introduced(pipeline(tmp_path), [as_json(event("c", ROW))])).inspect.detail().to_pylist()
    assert (detail["keys"], detail["sequence_by"]) == ([], None)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (b"Struct{id=1}", "names no fields (not JSON"),
        (b"42", "names no fields (it is the value 42)"),
        (b'{"schema":{"type":"int64"},"payload":42}', "names no fields (it is the value 42)"),
        (b'["id"]', "names no fields (it is the value"),
        (b'{"id":1,"__dbz__physicalTableIdentifier":"orders_1"}', "several tables of the source were routed"),
    ],
)
def test_where_the_message_key_does_not_say_the_keys_the_settings_do(tmp_path: Path, key: bytes, why: str) -> None:
    value = as_json(event("c", ROW))
    try:
        found: object = introduced(pipeline(tmp_path), [value], [key])
    except InvalidInput as error:
        found = error
    assert why in str(found) and "set keys" in str(found)
    named = introduced(pipeline(tmp_path, "  tables: {public.orders: {keys: [id]}}"), [value], [key])
    assert table_of(named).inspect.detail().to_pylist()[0]["keys"] == ["id"]


def test_a_table_remembers_of_which_table_of_the_source_it_is(tmp_path: Path) -> None:
    def of(name: str) -> bytes:
        change = event("c", ROW)
        return as_json({**change, "source": {**change["source"], "schema": "public", "table": name}})

    values, keys = [of("a b"), of("a_b")], [key_of(id=1)] * 2
    for number, (rules, remembered) in enumerate(
        [("", "public.a b"), ("  tables: {public.a_b: {sources: [.*]}}", None)]
    ):
        table = table_of(introduced(pipeline(tmp_path / str(number), rules), values, keys, "shop.public.a_b"))
        assert table.properties.get("lakebed.source_table") == remembered
        assert dict(cutoff_of(log_of(table).refresh()).sources).get("shop.public.a_b") == remembered
    unnamed = pipeline(tmp_path / "no", "  tables: {public.a_b: {sources: [other]}}")
    found = introduced(unnamed, values, keys, "shop.public.a_b")
    assert isinstance(found, NotYet) and "it is of public.a_b, which sources does not name" in found.reason


def test_the_settings_have_the_last_word(tmp_path: Path) -> None:
    more = """  properties: {lakebed.tombstone_retention: 3 days}
  tables:
    "public\\\\..*": {types: wide}
    public.orders: {keys: [id, name], sort_key: [day desc], sequence_by: ts_ms, partition_by: [day]}
    public.audit: {keys: []}"""
    change = [as_json(event("c", ROW))], [key_of(id=1)]
    table = table_of(introduced(pipeline(tmp_path, more), *change))
    [detail] = table.inspect.detail().to_pylist()
    assert (detail["keys"], detail["sort_key"], detail["sequence_by"]) == (["id", "name"], ["day desc"], "ts_ms")
    assert detail["partition_by"] == ["day"]
    assert table.properties["lakebed.tombstone_retention"] == "interval 259200 seconds"
    assert (table.schema.field("id").type, table.schema.field("name").nullable) == (pa.int64(), False)
    audit = table_of(introduced(pipeline(tmp_path, more), *change, topic="shop.public.audit"))
    assert audit.inspect.detail().to_pylist()[0]["keys"] == []


PLACE = {"lsn": 39419360, "sequence": '["39419152","39419360"]'}
IN_BINLOG = {"server_id": 1, "gtid": None, "file": "binlog.000007", "pos": 4}
TIDB = {**IN_BINLOG, "server_id": 0, "file": "", "pos": 0}
LSN = "00000027:00000ac0:0002"
DB2 = {"change_lsn": "00000000:00000000:000000000446140f", "commit_lsn": "00000000:00001e36:000000000004a1b4"}
COCKROACH = {"mvcc_timestamp": "1745506768962755000.0000000000", "job_id": "1066445522313740289", "primary_keys": "[]"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PLACE, "source.lsn"),
        ({"lsn": None, "sequence": '[null,"39419360"]'}, "source.lsn"),  # of an ad hoc snapshot
        ({"lsn": None, "sequence": None}, None),
        ({"lsn": 0, "sequence": None}, None),
        ({"lsn": "1:4::0:0", "sequence": '[null,"1:4::0:0"]', "txId": ""}, None),  # YugabyteDB's own connector
        (IN_BINLOG, "source.pos"),
        ({"pos": 4}, None),
        (TIDB, None),
        ({**TIDB, "commit_ts": 447_984_087_285_923_841, "cluster_id": "default"}, "source.commit_ts"),
        ({"scn": "2122185", "commit_scn": None}, "source.scn"),
        ({"scn": None, "commit_scn": None}, None),
        ({"change_lsn": LSN, "commit_lsn": LSN, "event_serial_no": 2}, "source.commit_lsn"),
        ({"change_lsn": None, "commit_lsn": None, "event_serial_no": None}, None),
        (DB2, None),
        ({"change_lsn": "4294967296", "commit_lsn": "4294967300", "begin_lsn": "4294967290"}, None),  # Informix
        ({"ord": 1, "collection": "orders"}, None),  # MongoDB
        ({"vgtid": "[{}]", "shard": "0"}, None),  # Vitess
        ({"low_watermark": 1, "mod_number": 0, "server_transaction_id": "x"}, None),  # Spanner
        (COCKROACH, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("declared", [True, False], ids=["in the schema", "not in the schema"])
def test_the_order_is_that_of_the_source_if_its_events_have_values_for_it(
    tmp_path: Path, source: dict[str, Any], expected: str | None, declared: bool
) -> None:
    """``declared``: TiCDC's schema lacks the members that it adds."""
    kinds = {name: "int64" if isinstance(value, int) else "string" for name, value in source.items()}
    kinds |= {"lsn": "int64"} if source.get("lsn", 0) is None else {}
    members = [{"type": kind, "field": name, "optional": True} for name, kind in kinds.items()]
    change = {**event("c", ROW), "source": {"connector": "TiCDC", "ts_ms": 1, **source}}
    of, value = pipeline(tmp_path), as_json(change, source=members if declared else [])
    table = table_of(introduced(of, [value], [key_of(id=1)]))
    [detail] = table.inspect.detail().to_pylist()
    if not declared and source.get("lsn", 0) is None:
        return  # neither says what it is
    assert detail["sequence_by"] == expected
    found = [one for one in table.status().findings if one.check == "order_of_arrival"]
    assert [one.what.rpartition(": ")[2] for one in found] == ([] if expected else ["TiCDC"])


def test_an_order_in_which_a_later_event_has_no_place_is_not_taken(tmp_path: Path) -> None:
    members = [{"type": "int64", "field": "lsn", "optional": True}, {"type": "string", "field": "connector"}]
    some = [event("c", ROW, lsn=5), event("t"), {**event("u", ROW), "source": {"lsn": None, "connector": "other"}}]
    values = [None, *(as_json(one, source=members) for one in some), b"{"]
    table = table_of(introduced(pipeline(tmp_path), values, [key_of(id=1)] * 5))
    assert table.inspect.detail().to_pylist()[0]["sequence_by"] is None
    assert "order_of_arrival" in [one.check for one in table.status().findings]


def test_a_table_without_keys_or_with_an_order_of_its_own_has_no_remark_on_its_order(tmp_path: Path) -> None:
    more = "  tables: {public.own: {sequence_by: source.ts_ms}}"
    change = {**event("c", ROW), "source": {"connector": "vitess", "ts_ms": 1}}
    for topic, keys in (("shop.public.own", [key_of(id=1)]), ("shop.public.appended", None)):
        table = table_of(introduced(pipeline(tmp_path, more), [as_json(change)], keys, topic))
        assert not table.status().findings


@pytest.mark.parametrize(
    ("changes", "older"),
    [
        ("c1 u1 d1 c2", ""),
        ("r1 u1 r2 d2", ""),
        ("u1", "u at offset 0"),
        ("d1 c1", "d at offset 0"),
        ("c1 u1 d2 u3", "d at offset 2"),
        ("- t u1", "u at offset 2"),
        ("c1 d1 - u1", ""),
        ("? u1", ""),
        ("c2 ? u1", ""),
    ],
)
def test_a_table_whose_first_changes_are_of_rows_that_were_there_before_lacks_others(
    tmp_path: Path, changes: str, older: str
) -> None:
    values: list[bytes | None] = []
    for op, *_ in (words := changes.split()):
        row = ROW if op != "d" else None
        if op == "?":
            values.append(b"{")
            continue
        values.append(None if op == "-" else as_json(event(op, row, None if row else ROW)))
    table = table_of(introduced(pipeline(tmp_path), values, [key_of(id=int(one[1:] or 1)) for one in words]))
    found = [one for one in table.status().findings if one.check == "began_without_rows"]
    assert [one.what.rpartition(": ")[2] for one in found] == ([f"{older} of partition 3"] if older else [])
    assert table.maintenance.resume() == bool(older) and not table.status().findings


def test_a_key_that_is_renamed_by_case_names_the_same_rows(tmp_path: Path) -> None:
    renamed = {name.upper(): value for name, value in ROW.items()}
    values = [as_json(event("c", ROW)), as_json(event("u", renamed)), as_json(event("d", None, renamed))]
    table = table_of(introduced(pipeline(tmp_path), values, [key_of(id=1), key_of(ID=1), key_of(ID=1)]))
    assert not table.status().findings


def test_a_compacted_topic_shows_no_rows_that_were_there_before(tmp_path: Path) -> None:
    topic = "shop.public.orders"
    left = records([as_json(event("c", ROW)), as_json(event("u", ROW))], [key_of(id=1)] * 2, topic).slice(1)
    source = Topic({topic: pa.concat_tables([left, left])})
    table = table_of(Introducer(pipeline(tmp_path), source).table_for(topic, [Range(topic, 3, 0, 2)]))
    assert not table.status().findings


def test_documents_of_mongodb_make_no_table_and_the_reason_says_what_to_do(tmp_path: Path) -> None:
    text = {"type": "string", "optional": True}
    members = [{"type": "string", "field": "connector"}, {"type": "string", "field": "collection"}]
    fields = [{**text, "field": side} for side in ("before", "after")]
    fields += [{"type": "struct", "fields": members, "field": "source"}, {**text, "field": "op"}]
    schema = {"type": "struct", "fields": fields, "name": "shop.orders.Envelope"}
    source = {"connector": "mongodb", "collection": "orders"}
    change = {"before": None, "after": '{"_id": 1}', "source": source, "op": "c"}
    with SchemaRegistry() as registry:
        number = registry.register(avro_type(schema, "Envelope"))
        typed = framed(number, encoded(avro_type(schema, "Envelope"), change))
        json_record = json.dumps({"schema": schema, "payload": change}).encode()
        for format, value in (("debezium-json", json_record), ("debezium-avro", typed)):
            url = registry.url if format == "debezium-avro" else ""
            found = introduced(pipeline(tmp_path, "", format, url), [value])
            assert isinstance(found, NotYet) and "ExtractNewDocumentState" in found.reason


@pytest.mark.parametrize("format", ["debezium-json", "debezium-avro"])
def test_the_topic_of_messages_is_no_table_but_a_table_may_have_its_name(tmp_path: Path, format: str) -> None:
    with SchemaRegistry() as registry:
        number = registry.register(envelope_schema(FIELDS))

        def record(change: dict[str, Any]) -> bytes:
            if format == "debezium-json":
                return as_json(change)
            return framed(number, encoded(envelope_schema(FIELDS), avro_value(change, envelope(FIELDS))))

        of = pipeline(tmp_path, "", format, registry.url if format == "debezium-avro" else "")
        messages = [None, record(event("m"))]
        found = introduced(of, messages, topic="shop.message")
        assert isinstance(found, NoTable) and "messages" in found.reason
        assert isinstance(introduced(of, messages, topic="shop.public.message"), NotYet)
        table_of(introduced(of, [record(event("c", ROW))], topic="shop.message"))


def test_records_that_say_nothing_yet_leave_no_table_and_say_why(tmp_path: Path) -> None:
    reasons = {
        "no record has a value yet": [None],
        "no record changes a row yet": [as_json(event("t"))],
        "offset 0 of partition 3: it carries no schema; set value.converter.schemas.enable": [
            json.dumps(event("c", ROW)).encode()
        ],
        "offset 1 of partition 3: no change event": [None, b'{"id": 1}'],
    }
    for reason, values in reasons.items():
        found = introduced(pipeline(tmp_path), values)
        assert isinstance(found, NotYet) and reason in found.reason
    assert not (tmp_path / "public").exists()


def test_each_call_asks_a_bounded_number_of_records_and_the_next_one_goes_on(tmp_path: Path) -> None:
    topic = "shop.public.orders"
    bad = 2 * ASKED_MAX + 30
    source = Topic({topic: records([*[b"no"] * bad, as_json(event("c", ROW))], None, topic)})
    introducer = Introducer(pipeline(tmp_path), source)
    whole = [Range(topic, 3, 0, bad + 1)]
    assert isinstance(introducer.table_for(topic, whole[:]), NotYet)
    assert isinstance(introducer.table_for(topic, whole[:]), NotYet)
    assert isinstance(introducer.table_for(topic, whole[:]), Introduced)


def test_what_could_not_be_read_is_asked_again(tmp_path: Path) -> None:
    """A schema that the registry does not know yet may come later."""
    topic = "shop.public.orders"
    with SchemaRegistry() as registry:
        value = framed(1, encoded(envelope_schema(FIELDS), avro_value(event("c", ROW), envelope(FIELDS))))
        source = Topic({topic: records([value], None, topic)})
        whole = [Range(topic, 3, 0, 1)]
        of = pipeline(tmp_path, "", "debezium-avro", registry.url)
        found = Introducer(of, source).table_for(topic, whole)
        assert isinstance(found, NotYet) and "schema id 1" in found.reason
        registry.register(envelope_schema(FIELDS))
        of = pipeline(tmp_path, "", "debezium-avro", registry.url.replace("127.0.0.1", "localhost"))
        assert isinstance(Introducer(of, source).table_for(topic, whole), Introduced)


def test_a_read_that_fails_leaves_no_table_and_the_next_one_makes_it(tmp_path: Path) -> None:
    topic = "shop.public.orders"
    source = Topic({topic: records([as_json(event("c", ROW))], [key_of(id=1)], topic)}, failing=1)
    introducer = Introducer(pipeline(tmp_path, "  max_tables: 1"), source)
    whole = [Range(topic, 3, 0, 1)]
    with pytest.raises(Retry):
        introducer.table_for(topic, whole)
    assert isinstance(introducer.table_for(topic, whole), Introduced)


@pytest.mark.parametrize(
    ("more", "fields", "key", "said"),
    [
        ("", [{"type": "struct", "fields": [], "field": "odd"}], [], "no field of its rows can be a column: odd (no column can"),
        ("", [ID, TAKEN], [TAKEN], "the message key has the field '_lakebed_op', which is no column (names that begin with"),
        ("", [NAME], [ID], "the message key has the field 'id', which is no column; the columns are name; set keys"),
        ("  tables: {public.orders: {keys: [ident]}}", [ID], [ID], "has the key 'ident', which is no column"),
        ("  tables: {public.orders: {sort_key: [nope]}}", [ID], [ID], "nope"),
        ("  tables: {public.orders: {sequence_by: nope}}", [ID], [ID], "sequence_by 'nope' is neither a column"),
        ("  tables: {public.orders: {sequence_by: source.lns}}", [ID], [ID], "did you mean 'lsn'?"),
        ("\n  tables: {'public.*': {sort_key: [nope]}}", [ID], [ID], "shop.yml, line 5: database.tables.public.*: table"),
    ],
)  # fmt: skip
def test_rows_that_no_table_can_have_are_refused_by_name(
    tmp_path: Path, more: str, fields: list[dict[str, Any]], key: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        introduced(pipeline(tmp_path, more), [as_json(event("c", {"id": 1}), fields)], [key_of(key, id=1)])
    assert said in str(raised.value)
    assert not (tmp_path / "public").exists()


VECTOR = {
    "type": "struct", "field": "emb", "optional": True, "fields": [
        {"type": "int16", "field": "dimensions"},
        {"type": "map", "keys": {"type": "int16"}, "values": {"type": "double"}, "field": "vector"},
    ],
}  # fmt: skip
"""As Debezium sends the type sparsevec of pgvector."""
VECTOR_TYPE = pa.struct([pa.field("dimensions", pa.int16(), False)])


@pytest.mark.parametrize("unknown_fields", ["warn", "ignore", "quarantine"])
def test_a_table_is_made_without_what_can_not_be_a_column_and_its_log_says_so(
    tmp_path: Path, unknown_fields: str
) -> None:
    twin, reserved = {**NAME, "field": "Name"}, {**NAME, "field": "_lakebed_op"}
    order = {"type": "int64", "field": "source.lsn", "optional": True}
    fields = [ID, NAME, twin, VECTOR, reserved, order, {"type": "struct", "fields": [], "field": "odd"}]
    of = pipeline(tmp_path, "", f"{{kind: debezium-json, unknown_fields: {unknown_fields}}}")
    table = table_of(introduced(of, [as_json(event("c", {"id": 1}), fields)], [key_of(id=1)]))
    assert table.schema == pa.schema([pa.field("id", pa.int32(), False), ("name", pa.string()), ("emb", VECTOR_TYPE)])
    texts = [one.what for one in table.status().findings]
    told = [
        "Name (only case tells it from ",
        "emb.vector (no column",
        "_lakebed_op (",
        "source.lsn (",
        "odd (no column",
    ]
    assert len(texts) == (unknown_fields == "warn")
    assert all(word in text for text in texts for word in told)


def test_any_name_of_a_field_is_that_of_a_column(tmp_path: Path) -> None:
    names = ["Order Date", "unit,price", "Ship (To)", "a;{}=\t\n", "_change_type", "_commit_version", "日本"]
    fields = [{"type": "int32", "field": "Order Id"}, *({**NAME, "field": name} for name in names)]
    more = "  tables: {public.orders: {partition_by: ['Ship (To)'], sort_key: ['`unit,price` desc']}}"
    row = {"Order Id": 1} | dict.fromkeys(names, "x")
    table = table_of(
        introduced(pipeline(tmp_path, more), [as_json(event("c", row), fields)], [key_of(fields[:1], **row)])
    )
    assert table.schema.names == ["Order Id", *names]
    [detail] = table.inspect.detail().to_pylist()
    assert (detail["keys"], detail["partition_by"]) == (["Order Id"], ["Ship (To)"])


def test_the_settings_name_the_columns_of_a_new_table(tmp_path: Path) -> None:
    more = """  tables:
    public.orders: {renamed_columns: {Order Id: order_id, Name: name_2, _lakebed_op: op, comment: note, remark: comment}}"""
    fields = [
        {"type": "int32", "field": "Order Id"},
        NAME,
        *({**NAME, "field": x} for x in ("Name", "_lakebed_op", "remark")),
    ]
    change = as_json(event("c", {"Order Id": 1}), fields)
    table = table_of(introduced(pipeline(tmp_path, more), [change], [key_of(fields[:1], **{"Order Id": 1})]))
    assert table.schema.names == ["order_id", "name", "name_2", "op", "note"]
    assert table.inspect.detail().to_pylist()[0]["keys"] == ["order_id"]


def test_the_key_of_a_message_may_be_in_another_case_than_the_row(tmp_path: Path) -> None:
    upper = {**ID, "field": "ID"}
    table = table_of(introduced(pipeline(tmp_path), [as_json(event("c", ROW))], [key_of([upper], ID=1)]))
    assert table.inspect.detail().to_pylist()[0]["keys"] == ["id"]


@pytest.mark.parametrize(("key", "more"), [("ID", ""), ("id", ""), ("id", "  tables: {public.orders: {keys: [ID]}}")])
def test_of_two_fields_that_differ_by_case_the_key_is_the_column(tmp_path: Path, key: str, more: str) -> None:
    fields, row = [NAME, ID, {**ID, "field": "ID"}], {"name": "a", "id": 1, "ID": 2}
    keys = [key_of([{**ID, "field": key}], **{key: row[key]})]
    table = table_of(introduced(pipeline(tmp_path, more), [as_json(event("c", row), fields)], keys))
    column = "ID" if more else key
    assert (table.schema.names, table.inspect.detail().to_pylist()[0]["keys"]) == (["name", column], [column])


def test_a_key_of_two_fields_that_differ_by_case_needs_a_name_for_one_of_them(tmp_path: Path) -> None:
    fields = [ID, {**ID, "field": "ID"}]
    change, keys = [as_json(event("c", {"id": 1, "ID": 2}), fields)], [key_of(fields, id=1, ID=2)]
    with pytest.raises(InvalidInput, match=r"only case tells it from 'id'.*columns\)"):
        introduced(pipeline(tmp_path), change, keys)
    more = "  tables: {public.orders: {renamed_columns: {ID: id_2}}}"
    table = table_of(introduced(pipeline(tmp_path, more), change, keys))
    assert table.inspect.detail().to_pylist()[0]["keys"] == ["id", "id_2"]


def test_a_table_that_is_there_is_opened_without_reading_a_record(tmp_path: Path) -> None:
    introduced(pipeline(tmp_path), [as_json(event("c", ROW))], [key_of(id=1)])
    found = Introducer(pipeline(tmp_path), Topic({})).table_for("shop.public.orders", [])
    assert isinstance(found, Introduced) and not found.created


def test_without_a_record_and_a_table_there_is_none_yet(tmp_path: Path) -> None:
    assert Introducer(pipeline(tmp_path), Topic({})).table_for("shop.public.orders", []) == NotYet(
        "there is no table yet"
    )


def test_a_table_that_was_made_for_another_topic_is_refused(tmp_path: Path) -> None:
    """Such as on a file system for which Orders and orders are one folder."""
    introduced(pipeline(tmp_path), [as_json(event("c", ROW))])
    (tmp_path / "public" / "orders").rename(tmp_path / "public" / "Orders")
    with pytest.raises(
        InvalidInput, match=r"was made for the topic shop\.public\.orders, not for shop\.public\.Orders"
    ):
        introduced(pipeline(tmp_path), [as_json(event("c", ROW))], topic="shop.public.Orders")


@pytest.mark.parametrize(
    "rules",
    [
        "{keys: []}",
        "{keys: [name]}",
        "{sort_key: [name]}",
        "{sequence_by: ts_ms}",
        "{properties: {lakebed.read_budget: 3}}",
    ],
)
def test_a_table_that_differs_from_the_file_is_refused_with_what_to_do(tmp_path: Path, rules: str) -> None:
    change = [as_json(event("c", ROW))], [key_of(id=1)]
    introduced(pipeline(tmp_path), *change)
    with pytest.raises(InvalidInput, match=r"differs from shop\.yml: .* Change the file, or "):
        introduced(pipeline(tmp_path, f"  tables: {{public.orders: {rules}}}"), *change)


def test_no_more_tables_are_made_than_the_file_allows(tmp_path: Path) -> None:
    topics = [f"shop.public.t{number}" for number in range(20)]
    source = Topic({topic: records([as_json(event("c", ROW))], None, topic) for topic in topics})
    introducer = Introducer(pipeline(tmp_path, "  max_tables: 7"), source)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda topic: introducer.table_for(topic, [Range(topic, 3, 0, 1)]), topics))
    refused = [one for one in found if isinstance(one, NoTable)]
    assert len(refused) == 13 and "raise database.max_tables" in refused[0].reason
    assert len(list((tmp_path / "public").iterdir())) == 7
    again = [one.name.text for one in found if isinstance(one, Introduced)]
    assert all(isinstance(introducer.table_for(f"shop.{name}", []), Introduced) for name in again)


def test_many_processes_that_introduce_a_table_at_once_agree_on_one(tmp_path: Path) -> None:
    """Each begins with another record, so each would make another table."""
    topic, count = "shop.public.orders", 6
    starts, found = threading.Barrier(count), list[Introduced | LakebedError]()

    def introduce(number: int) -> None:
        fields = [ID, {"type": "string", "field": f"c{number}", "optional": True}]
        source = Topic({topic: records([as_json(event("c", {"id": 1}), fields)], [key_of(id=1)], topic)})
        introducer = Introducer(pipeline(tmp_path), source)
        starts.wait()
        one = introducer.table_for(topic, [Range(topic, 3, 0, 1)])
        assert isinstance(one, Introduced)
        found.append(one)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(introduce, range(count)))
    assert sum(1 for one in found if isinstance(one, Introduced) and one.created) == 1
    assert len({tuple(table_of(one).schema.names) for one in found}) == 1
    assert {table_of(one).version for one in found} == {0}


@pytest.mark.parametrize(
    "name", ["_lakebed.x", "..", "../../x", "public.a/b", "public.orders_quarantine", "x" * 249, "é.ü"]
)
def test_hostile_names_stay_below_the_database(tmp_path: Path, name: str) -> None:
    topic = f"shop.{name}"
    table = table_of(introduced(pipeline(tmp_path / "lake"), [as_json(event("c", ROW))], topic=topic))
    assert Path(table.path).resolve().is_relative_to(tmp_path / "lake")
    assert len(Path(table.path).relative_to(tmp_path / "lake").parts) == 2
    assert [one.name for one in tmp_path.iterdir()] == ["lake"]


def test_a_topic_that_is_no_table_is_not_read(tmp_path: Path) -> None:
    source = Topic({})
    introducer = Introducer(pipeline(tmp_path, '  exclude: ["public\\\\.tmp_.*"]'), source)
    for topic in ("shop", "shop.transaction", "shop.public.tmp_1", "store.x"):
        assert isinstance(introducer.table_for(topic, [Range(topic, 0, 0, 5)]), NoTable)
    assert source.reads == 0


def test_tables_that_are_there_are_read_however_many_there_are_and_a_topic_that_gets_none_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics = [f"shop.public.t{number}" for number in range(4)]
    source = Topic({topic: records([as_json(event("c", ROW))], None, topic) for topic in topics})
    introducer = Introducer(pipeline(tmp_path), source)
    for topic in topics[:3]:
        introducer.table_for(topic, [Range(topic, 3, 0, 1)])
    later = Introducer(pipeline(tmp_path, "  max_tables: 2"), source)
    assert all(isinstance(later.table_for(topic, []), Introduced) for topic in topics[:3])
    for _ in range(2):
        assert isinstance(later.table_for(topics[3], [Range(topics[3], 3, 0, 1)]), NoTable)
    [warning] = [one.getMessage() for one in caplog.records if "becomes no table" in one.getMessage()]
    assert topics[3] in warning and "raise database.max_tables" in warning
