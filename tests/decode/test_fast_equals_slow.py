"""The reading by columns and the reading one by one agree, whatever the records are."""

from __future__ import annotations

from copy import copy
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.decode import json_rows
from lakebed.decode.debezium import events as debezium
from lakebed.decode.debezium.message_key import SHARD_FIELD
from lakebed.decode.decoder import Decoded, Decoder, DecoderSchema
from lakebed.positions.truncates import NO_CUTOFF, Cutoff, Truncate
from tests.decode.fuzz import assert_same, only_one_by_one, without_native_code
from tests.decode.records import event, in_log, records, with_schema
from tests.worlds import examples

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("small", pa.int16()),
        pa.field("ratio", pa.float64()),
        pa.field("flag", pa.bool_()),
        pa.field("text", pa.string(), False),
        pa.field("raw", pa.binary()),
        pa.field("money", pa.decimal128(12, 2)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("point", pa.struct([("x", pa.int64())])),
    ]
)
FIELDS = [
    {"type": "int64", "field": "id"},
    {"type": "int16", "field": "small", "default": 2},
    {"type": "boolean", "field": "flag", "optional": True},
    {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}, "field": "money"},
    {"type": "int64", "name": "io.debezium.time.NanoTimestamp", "field": "at"},
    {"type": "int32", "name": "io.debezium.time.Date", "field": "day"},
]
TEXTS = st.one_of(
    st.text(max_size=8), st.sampled_from(["__debezium_unavailable_value", "AQI=", "12.50", "NaN", "", "1e2"])
)
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-100, 100),
    st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63), 2**31, 1_700_000_000_000, 1_700_000_000_000_000, 10**18]),
    st.floats(allow_nan=False, allow_infinity=False),
)
ANY = st.one_of(
    st.none(), st.booleans(), NUMBERS, TEXTS, st.lists(TEXTS, max_size=2), st.fixed_dictionaries({"x": NUMBERS})
)
LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(0, 3),
    "small": st.integers(-(2**15), 2**15 - 1),
    "ratio": st.floats(allow_nan=False, allow_infinity=False),
    "flag": st.booleans(),
    "text": st.text(max_size=8),
    "raw": st.sampled_from(["AQI=", "", "AAAA", "/w=="]),
    "money": st.sampled_from(["12.50", "-0.01", "AQI=", "/w==", 5, 0.25, -1]),
    "day": st.one_of(st.integers(-10_000, 30_000), st.sampled_from(["2024-02-29", "1969-12-31"])),
    "at": st.one_of(
        st.integers(-(10**18), 2 * 10**18), st.sampled_from(["2024-02-29T12:00:00Z", "2024-02-29T12:00:00.5+01:00"])
    ),
    "local": st.one_of(st.integers(-(10**15), 2 * 10**15), st.sampled_from(["2024-02-29T12:00:00", "2024-02-29"])),
    "tags": st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=3),
    "point": st.fixed_dictionaries({"x": st.integers(-5, 5)}),
}
MOSTLY_GOOD = st.fixed_dictionaries(
    {"id": LIKELY["id"], "text": LIKELY["text"]},
    optional={name: st.one_of(st.none(), likely) for name, likely in LIKELY.items() if name not in ("id", "text")},
)
WILD = st.dictionaries(st.sampled_from(COLUMNS.names), ANY, max_size=6)
ROWS = st.one_of(MOSTLY_GOOD, MOSTLY_GOOD, MOSTLY_GOOD, WILD)
EVENTS = st.builds(
    in_log,
    st.builds(
        event,
        st.sampled_from(["c", "u", "u", "d", "r", "m", "t", "x"]),
        st.one_of(ROWS, st.none()),
        st.one_of(st.none(), ROWS),
        st.integers(0, 1000),
    ),
    st.sampled_from([None, '["500","1"]', '["9","1"]', "", '[null,"7"]', 7]),
)
KEYS = st.sampled_from([("id",), ("id",), ("id", "small"), ()])
BROKEN = st.sampled_from(
    [None, "", "{", "null", '{"op":"c"} {"op":"c"}', '{"op":null}', b"\xff", '{"op":"c"}null{"op":"d"}']
)
VALUES = st.lists(
    st.one_of(EVENTS, EVENTS, EVENTS, EVENTS.map(lambda change: with_schema(change, FIELDS)), BROKEN),
    min_size=1,
    max_size=60,
)

ID_KEY = {"schema": {"type": "struct", "fields": [{"type": "int64", "field": "id"}]}}
IDS = st.integers(0, 3)
MESSAGE_KEYS = st.one_of(
    st.none(),
    st.builds(lambda id: {"id": id}, IDS),
    st.builds(lambda id: {**ID_KEY, "payload": {"id": id}}, IDS),
    st.builds(lambda id, small: {"small": small, "id": id}, IDS, IDS),
    st.builds(lambda text: {"text": text}, TEXTS),
    st.builds(lambda id: {"id": id, SHARD_FIELD: "x"}, st.one_of(IDS, TEXTS)),
    IDS.map(str),
    st.builds(lambda id: {"payload": {"id": id}, **ID_KEY}, IDS),
    st.sampled_from(
        ["Struct{id=1}", "", "{}", "null", ' {"id": 1}', "[1]", '{"id":1}{', '{"schema":', '{"\\u0069d":1}']
    ),
    st.just({**ID_KEY, "payload": 2}),
)

CUT = Cutoff((Truncate(topic="shop.orders", partition=9, offset=0, time_us=1_700_000_000_500_000, lsn=500),), begin=600)


def check(decoder: Decoder, table: pa.Table) -> None:
    cutoff = CUT if table.num_rows % 2 else NO_CUTOFF
    fast = decoder.decode(table, cutoff)
    with only_one_by_one():
        slow = decoder.decode(table, cutoff)
    assert_same(fast, slow)
    with without_native_code():
        assert_same(copy(decoder).decode(table, cutoff), slow)


@pytest.mark.slow
@examples(60)
@given(VALUES, st.sampled_from([None, "source.lsn", "small", "kafka.offset"]), KEYS, st.data())
def test_events_are_read_the_same_by_columns_and_one_by_one(
    values: list[Any], sequence_by: str | None, keys: tuple[str, ...], data: st.DataObject
) -> None:
    decoder = debezium.DebeziumJson(DecoderSchema(COLUMNS, keys, sequence_by))
    given_keys = data.draw(st.lists(MESSAGE_KEYS, min_size=len(values), max_size=len(values)))
    check(decoder, records(values, given_keys))


@pytest.mark.slow
@examples(60)
@given(
    st.lists(st.one_of(MOSTLY_GOOD, MOSTLY_GOOD, WILD, BROKEN), min_size=1, max_size=60),
    KEYS,
    st.sampled_from([None, "small"]),
    st.lists(MESSAGE_KEYS, min_size=60, max_size=60),
)
def test_flat_objects_are_read_the_same_by_columns_and_one_by_one(
    values: list[Any], keys: tuple[str, ...], sequence_by: str | None, given_keys: list[Any]
) -> None:
    rows = json_rows.JsonRows(
        DecoderSchema(COLUMNS, keys, sequence_by if keys else None),
        operation_field="text" if keys else None,
        delete_values=("", "a"),
        upsert_values=("b", "0"),
    )
    check(rows, records(values, given_keys[: len(values)]))


@pytest.mark.slow
@examples(40)
@given(st.lists(MOSTLY_GOOD.map(lambda row: event("c", row)), min_size=1, max_size=20), st.integers(1, 7))
def test_where_a_batch_is_cut_does_not_matter(values: list[Any], cutoff: int) -> None:
    decoder = debezium.DebeziumJson(DecoderSchema(COLUMNS, ("id",)))
    table = records(values)
    pieces = [decoder.decode(table.slice(start, cutoff)) for start in range(0, len(values), cutoff)]
    whole = debezium.DebeziumJson(DecoderSchema(COLUMNS, ("id",))).decode(table)
    assert_same(Decoded.concat(pieces), whole)


UNIFORM = {
    "money": st.sampled_from(
        [st.sampled_from(["12.50", "-0.01"]), st.sampled_from(["AQI=", "/w=="]), st.integers(-9, 9)]
    ),
    "day": st.sampled_from([st.integers(-10_000, 30_000), st.just("2024-02-29")]),
    "at": st.sampled_from([st.integers(-(10**18), 2 * 10**18), st.just("2024-02-29T12:00:00.5+01:00")]),
    "local": st.sampled_from([st.integers(-(10**15), 2 * 10**15), st.just("2024-02-29T12:00:00")]),
}


@st.composite
def uniform_events(draw: st.DrawFn) -> list[Any]:
    """Events of one source: a column has one form in all of them. No key or order is a zero, which is looked at alone."""
    forms = {name: draw(UNIFORM[name]) if name in UNIFORM else likely for name, likely in LIKELY.items()}
    forms |= {"id": st.integers(1, 3), "small": st.integers(1, 2**15 - 1)}
    forms["text"] = st.one_of(forms["text"], st.just("__debezium_unavailable_value"))
    row = st.fixed_dictionaries(
        {name: forms[name] for name in ("id", "text", "small")},
        optional={
            name: st.one_of(st.none(), form) for name, form in forms.items() if name not in ("id", "text", "small")
        },
    )
    upserts = st.builds(event, st.sampled_from(["c", "u", "r"]), row, st.one_of(st.none(), row), st.integers(0, 99))
    deletes = st.builds(event, st.just("d"), st.none(), row, st.integers(0, 99))
    return draw(st.lists(st.one_of(upserts, upserts, deletes), min_size=1, max_size=40))


@pytest.mark.slow
@examples(60)
@given(uniform_events(), st.sampled_from([None, "source.lsn", "small", "kafka.offset"]))
def test_events_of_one_source_are_read_by_columns_alone(values: list[Any], sequence_by: str | None) -> None:
    decoder = debezium.DebeziumJson(DecoderSchema(COLUMNS, ("id",), sequence_by))
    with patch.object(debezium, "read_event", side_effect=AssertionError("read one by one")):
        fast = decoder.decode(records(values), CUT)
    with only_one_by_one():
        assert_same(fast, decoder.decode(records(values), CUT))
