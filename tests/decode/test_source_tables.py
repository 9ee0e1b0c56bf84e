"""A table takes the events of one table of the source, though two may share a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.debezium.message_key import SHARD_FIELD
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.source_order import SourceRules, table_name
from lakebed.errors import InvalidSchema
from lakebed.positions.positions import SEVERAL, Position, positions_of
from lakebed.positions.remarks import remarks_of
from lakebed.positions.truncates import Cutoff
from lakebed.schema.fitting import EvolvePolicy
from tests.decode.fuzz import assert_same, only_one_by_one, without_native_code
from tests.decode.records import event, records
from tests.decode.test_old_rows import COLUMNS, FIELDS, WITH_SCHEMAS, read, row
from tests.internals import log_of
from tests.sources.memory_source import KeyedTopics, ids, ingest_of, quarantined

TOPIC = "shop.orders"
OWN, OTHER = {"schema": "public", "table": "a b"}, {"schema": "public", "table": "a_b"}
KNOWN = Cutoff(sources=((TOPIC, "public.a b"),))
SHAPE = DecoderSchema(COLUMNS, ("id",))


def of(source: Mapping[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    return change | {"source": {**change["source"], "table": None, **source}}


def decode(changes: list[Any], cutoff: Cutoff = KNOWN, shape: DecoderSchema = SHAPE, keys: Any = None) -> Decoded:
    table = records(changes, keys)
    fast = DebeziumJson(shape).decode(table, cutoff)
    with only_one_by_one():
        assert_same(fast, DebeziumJson(shape).decode(table, cutoff))
    with without_native_code():
        assert_same(DebeziumJson(shape).decode(table, cutoff), fast)
    return fast


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ({"db": "shop", "schema": "public", "table": "orders"}, "shop.public.orders"),  # PostgreSQL, SQL Server, Oracle
        ({"db": "shop", "schema": None, "table": "orders"}, "shop.orders"),  # MySQL, MariaDB
        ({"db": "shop", "table": "日本"}, "shop.日本"),
        ({"schema": "a", "table": "b.c"}, 'a."b.c"'),
        ({"schema": "a.b", "table": "c"}, '"a.b".c'),
        ({"schema": "a", "table": None}, None),
        ({"schema": "a", "table": 7}, None),
        (None, None),
        ("orders", None),
    ],
)
def test_the_name_of_a_table(source: Any, name: str | None) -> None:
    assert table_name(source) == name


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("op", ["c", "r", "u", "d", "t"])
def test_events_of_another_table_are_quarantined(count: int, op: str) -> None:
    change = event(op, None if op in "dt" else row(2), row(2) if op == "d" else None)
    mine = [of(OWN, event("c", row(1, number))) for number in range(count)]
    decoded = decode([*mine, of(OTHER, change), of({}, event("c", row(3)))])
    assert decoded.changes["id"].to_pylist() == [1] * count + [3] and not decoded.truncates
    assert decoded.remarks["source_table"] == {"public.a_b": 1}
    [reason] = decoded.quarantined["reason"].to_pylist()
    assert (
        "the event is of public.a_b, and this table is of public.a b: the connector sends both to the topic" in reason
    )


@pytest.mark.parametrize("known", ["shop.public.a b", "a b", "other"])
def test_another_database_or_schema_is_another_table(known: str) -> None:
    decoded = decode([of({"db": "bank", **OWN}, event("c", row(1)))], Cutoff(sources=((TOPIC, known),)))
    assert decoded.remarks["source_table"] == {"bank.public.a b": 1}


def test_the_settings_may_name_several_tables() -> None:
    rules = SourceRules(tables=(r"public\.a.b", "public.c"))
    changes = [of({"schema": "public", "table": name}, event("c", row(1))) for name in ("a b", "a_b", "c", "cc")]
    decoded = decode(changes, KNOWN, replace(SHAPE, source=rules))
    assert len(decoded.changes) == 3 and decoded.remarks["source_table"] == {"public.cc": 1}
    assert decoded.sources == {}


def test_events_whose_message_key_names_shards_are_of_several_tables() -> None:
    keys = [{"id": 1, SHARD_FIELD: "a_b"}, {"id": 1}]
    decoded = decode([of(OTHER, event("c", row(1)))] * 2, KNOWN, keys=keys)
    assert len(decoded.changes) == 1 and decoded.quarantined["offset"].to_pylist() == [1]
    assert decoded.sources == {TOPIC: {SEVERAL: (3, 0)}}
    assert len(decode([of(OTHER, event("c", row(1)))], Cutoff(sources=((TOPIC, SEVERAL),))).changes) == 1


def test_what_the_log_does_not_know_is_said_with_the_first_place() -> None:
    changes = [
        of(OTHER, event("x")),
        of(OWN, event("c", row(1))),
        of(OTHER, event("c", row(2))),
        of(OWN, event("u", row(1))),
    ]
    decoded = decode(changes, Cutoff())
    assert decoded.sources == {TOPIC: {"public.a b": (3, 1), "public.a_b": (3, 2)}}
    assert decode(changes, KNOWN).sources == {}


@pytest.mark.parametrize("format", [*WITH_SCHEMAS, "schemaless"])
def test_every_format_says_it(format: str) -> None:
    change = event("c", row(1))
    assert read(format, [({"id": 1}, change)]).sources == {TOPIC: {"orders": (3, 0)}}


@pytest.mark.parametrize("more", [[], [{"type": "string", "field": "more"}]])
@pytest.mark.parametrize("parks", [False, True])
def test_another_table_does_not_change_the_schema(parks: bool, more: list[Any]) -> None:
    shape = replace(SHAPE, policy=EvolvePolicy(allowed=frozenset({"add"})), source=SourceRules(parks=parks))
    schema = {"type": "struct", "fields": [*FIELDS, *more]}
    images = [{**schema, "field": side} for side in ("before", "after")]
    value = {"schema": {"type": "struct", "fields": images}, "payload": of(OTHER, event("c", row(1)))}
    if parks:
        with pytest.raises(InvalidSchema, match="name both"):
            decode([value], KNOWN, shape)
    else:
        decoded = decode([value], KNOWN, shape)
        assert decoded.schema_needed is None and len(decoded.quarantined) == 1
        assert DebeziumJson(shape).schema_needed(records([value])) is not None
        own = {**value, "payload": of(OWN, event("c", row(1)))}
        assert decode([value, own], KNOWN, shape).schema_needed is not None


# -- what a table remembers ----------------------------------------------------------------------------------------------


def table_of(path: Path) -> lakebed.Table:
    return lakebed.create(path / "t", COLUMNS, ["id"])


def value(source: Mapping[str, Any], id: int, key: Mapping[str, Any] | None = None) -> tuple[bytes, bytes]:
    return json.dumps(key or {"id": id}).encode(), json.dumps(of(source, event("c", row(id)))).encode()


def sources(table: lakebed.Table) -> dict[str, str | None]:
    return {topic: position.source for topic, position in positions_of(log_of(table).refresh()).items()}


def test_a_table_learns_whose_rows_it_has_from_its_next_batch(tmp_path: Path) -> None:
    table, source = table_of(tmp_path), KeyedTopics()
    batch = ingest_of(table, source, decoder("debezium-json", SHAPE))
    source.add("t", 0, value({}, 1))
    batch()
    assert sources(table) == {"t": None}
    source.add("t", 0, value(OWN, 2))
    batch()
    assert sources(table) == {"t": "public.a b"}
    source.add("t", 0, value(OTHER, 3), value(OWN, 4))
    batch()
    assert (ids(table), quarantined(table)) == ([1, 2, 4], [2])
    assert remarks_of(log_of(table).refresh()).counts["source_table"] == {"public.a_b": 1}
    assert positions_of(log_of(table).refresh()) == {"t": Position(offsets={0: 4}, source="public.a b")}


def test_the_lowest_offset_of_the_first_batch_decides_whatever_comes_beside_it(tmp_path: Path) -> None:
    table, source = table_of(tmp_path), KeyedTopics(piece=1)
    source.add("t", 1, value(OTHER, 1), value(OTHER, 2))
    source.add("t", 0, (b"", b"{"), value(OWN, 3), value(OTHER, 4), value(OWN, 5))
    ingest_of(table, source, decoder("debezium-json", SHAPE))()
    assert ids(table) == [3, 5] and sources(table) == {"t": "public.a b"}


def test_each_topic_of_a_table_has_a_table_of_the_source(tmp_path: Path) -> None:
    table, source = table_of(tmp_path), KeyedTopics()
    source.add("s", 0, value(OWN, 1))
    source.add("t", 0, value(OTHER, 2))
    batch = ingest_of(table, source, decoder("debezium-json", SHAPE))
    batch()
    assert ids(table) == [1, 2] and sources(table) == {"s": "public.a b", "t": "public.a_b"}


def test_shards_are_remembered_as_several_tables(tmp_path: Path) -> None:
    table, source = table_of(tmp_path), KeyedTopics()
    names = [{"schema": "public", "table": f"orders_{n}"} for n in range(4)]
    source.add("t", 0, *(value(one, n, {"id": n, SHARD_FIELD: one["table"]}) for n, one in enumerate(names[:3])))
    batch = ingest_of(table, source, decoder("debezium-json", SHAPE))
    batch()
    assert ids(table) == [0, 1, 2] and sources(table) == {"t": SEVERAL}
    source.add("t", 0, value(names[3], 3))
    batch()
    assert ids(table) == [0, 1, 2, 3] and sources(table) == {"t": SEVERAL}


def test_a_topic_that_is_made_anew_may_be_of_another_table(tmp_path: Path) -> None:
    table, source = table_of(tmp_path), KeyedTopics(ids={"t": "first"}, skips_losses=True)
    source.add("t", 0, value(OWN, 1))
    batch = ingest_of(table, source, decoder("debezium-json", SHAPE))
    batch()
    source.make_anew("t", "second")
    source.records.clear()
    source.add("t", 0, value(OTHER, 2))
    batch()
    assert ids(table) == [1, 2] and sources(table) == {"t": "public.a_b"}


def test_a_table_of_a_database_is_parked_by_the_first_event_of_another_table(tmp_path: Path) -> None:
    table, source = table_of(tmp_path), KeyedTopics()
    table.set_properties({"lakebed.source_topic": "t", "lakebed.source_table": "public.a b"})
    source.add("t", 0, value(OTHER, 1))
    batch = ingest_of(table, source, decoder("debezium-json", replace(SHAPE, source=SourceRules(parks=True))))
    with pytest.raises(InvalidSchema, match=r"of public.a_b, and this table is of public.a b: .* name both"):
        batch()
    assert ids(table) == []
