"""What Debezium's events become."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.errors import InvalidSchema
from lakebed.positions.truncates import Truncate
from lakebed.remarks import Remark
from tests.decode.records import event, records, with_schema

ORDERS = pa.schema(
    [pa.field("id", pa.int64(), False), pa.field("name", pa.string()), pa.field("qty", pa.int32(), False)]
)
SHAPE = DecoderSchema(ORDERS, ("id",))


def decode(
    values: list[Any], decoder_schema: DecoderSchema = SHAPE, keys: list[Any] | None = None, **options: Any
) -> Decoded:
    return DebeziumJson(decoder_schema).decode(records(values, keys), **options)


def rows(decoded: Decoded) -> list[tuple[Any, ...]]:
    columns = [name for name in decoded.changes.column_names if not name.startswith("_lakebed_time")]
    return [tuple(row[name] for name in columns) for row in decoded.changes.to_pylist()]


def reasons(decoded: Decoded) -> list[str]:
    return decoded.quarantined.column("reason").to_pylist()


def test_creates_reads_and_updates_are_upserts_and_a_delete_keeps_only_its_key() -> None:
    decoded = decode(
        [
            event("r", {"id": 1, "name": 'á\n"q" \\', "qty": 1}),
            event("c", {"id": 2, "name": None, "qty": 2}),
            event("u", {"id": 2, "name": "b", "qty": 3}),
            event("d", None, {"id": 1, "name": "gone", "qty": 1}),
        ]
    )
    assert rows(decoded) == [(1, 'á\n"q" \\', 1, "u"), (2, None, 2, "u"), (2, "b", 3, "u"), (1, None, None, "d")]
    assert decoded.changes.column_names == ["id", "name", "qty", "_lakebed_op"]
    assert decoded.changes.schema.types[:3] == ORDERS.types
    assert decoded.quarantined.num_rows == 0


def test_tombstones_and_messages_are_ignored_and_counted() -> None:
    decoded = decode(
        [None, event("m"), event("c", {"id": 1, "name": "a", "qty": 1}), {"schema": None, "payload": None}]
    )
    assert rows(decoded) == [(1, "a", 1, "u")]
    assert decoded.ignored == 3
    assert decoded.quarantined.num_rows == 0


def test_an_update_to_another_key_deletes_the_old_one_first() -> None:
    decoded = decode(
        [
            event("u", {"id": 1, "name": "a", "qty": 1}, {"id": 1, "name": "z", "qty": 1}),
            event("u", {"id": 9, "name": "b", "qty": 2}, {"id": 2, "name": "b", "qty": 2}),
            event("c", {"id": 2, "name": "c", "qty": 3}),
        ]
    )
    assert [row[:4] for row in rows(decoded)] == [
        (1, "a", 1, "u"),
        (2, None, None, "d"),
        (9, "b", 2, "u"),
        (2, "c", 3, "u"),
    ]


def test_a_delete_without_before_takes_its_key_from_the_message_key() -> None:
    inline = {"schema": {"type": "struct", "fields": [{"type": "int64", "field": "id"}]}, "payload": {"id": 8}}
    decoded = decode([event("d"), event("d")], keys=[{"id": 7}, inline])
    assert rows(decoded) == [(7, None, None, "d"), (8, None, None, "d")]


def test_truncates_are_given_apart_with_where_the_source_stood() -> None:
    decoded = decode([event("c", {"id": 1, "name": "a", "qty": 1}, lsn=5), event("t", lsn=6)])
    assert decoded.truncates == (
        Truncate(topic="shop.orders", partition=3, offset=1, time_us=1_700_000_000_006_000, lsn=6),
    )
    assert rows(decoded) == [(1, "a", 1, "u")]
    assert decoded.truncated == 0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"op": "c", "after": {"id": 1', "not JSON"),
        (b'{"op":"c","after":{"id":1,"name":"\xff","qty":1}}', "not UTF-8: byte"),
        ("", "not JSON"),
        ("[1]", "not a JSON object"),
        ("null5", "not JSON"),
        ('{"a":1}null{"b":2}', "not JSON"),
        ('{"a":1}{"b":2}', "not JSON"),
        ({"status": "BEGIN"}, "no change event: it has no 'op'"),
        (event("x"), 'unknown operation "x"'),
        (event("c"), "operation 'c' without 'after'"),
        (event("c", {"name": "a", "qty": 1}), "key 'id' is null or missing"),
        (event("c", {"id": None, "name": "a", "qty": 1}), "key 'id' is null or missing"),
        (event("d"), "key 'id' is null or missing"),
        (event("c", {"id": 1, "name": "a"}), "column 'qty' may not be null"),
        (event("c", {"id": 1, "name": "a", "qty": 2**31}), "column 'qty': 2147483648 is out of the range of int32"),
        (event("c", {"id": 1, "name": "a", "qty": 1.5}), "column 'qty': 1.5 is not a valid int32"),
        (
            event("c", {"id": 2**63, "name": "a", "qty": 1}),
            "column 'id': 9223372036854775808 is out of the range of int64",
        ),
        (event("c", {"id": True, "name": "a", "qty": 1}), "column 'id': true is not a valid int64"),
        ('{"op":"c","after":{"id":1,"name":"\\ud800","qty":1}}', "half of a surrogate pair"),
    ],
)
def test_a_bad_record_is_quarantined_with_its_reason_and_the_others_go_on(value: Any, reason: str) -> None:
    good = [event("c", {"id": i, "name": "n", "qty": i}) for i in range(100)]
    decoded = decode([*good[:60], value, *good[60:]])
    assert [row[0] for row in rows(decoded)] == list(range(100))
    (bad,) = decoded.quarantined.to_pylist()
    assert reason in bad["reason"]
    assert (bad["topic"], bad["partition"], bad["offset"]) == ("shop.orders", 3, 60)
    assert bad["value"] == records([value]).column("value")[0].as_py()


def test_integers_beyond_two_to_the_53_and_integers_in_strings_are_exact() -> None:
    decoded = decode(
        [event("c", {"id": 2**53 + 1, "name": "a", "qty": 1}), event("c", {"id": str(-(2**63)), "qty": 1})]
    )
    assert [row[0] for row in rows(decoded)] == [2**53 + 1, -(2**63)]


def test_unavailable_values_are_named_and_never_written() -> None:
    columns = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("text", pa.string(), False),
            pa.field("raw", pa.binary()),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("marks", pa.list_(pa.int64())),
        ]
    )
    placeholder = "__debezium_unavailable_value"
    there = {"id": 1, "text": "a", "raw": "AQI=", "tags": ["x"], "marks": [1]}
    gone = {
        "id": 2,
        "text": placeholder,
        "raw": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
        "tags": [placeholder],
        "marks": list(placeholder.encode()),
    }
    text_only = {**there, "id": 3, "text": placeholder}
    decoded = decode([event("u", there), event("u", gone), event("u", text_only)], DecoderSchema(columns, ("id",)))
    assert rows(decoded) == [
        (1, "a", b"\x01\x02", ["x"], [1], "u", None),
        (2, None, None, None, None, "u", ["text", "raw", "tags", "marks"]),
        (3, None, b"\x01\x02", ["x"], [1], "u", ["text"]),
    ]
    fast_only = decode([event("u", there), event("u", text_only)], DecoderSchema(columns, ("id",)))
    assert fast_only.changes.column("_lakebed_unavailable").to_pylist() == [None, ["text"]]


def test_a_table_without_keys_takes_inserts_and_refuses_the_rest() -> None:
    decoded = decode(
        [event("c", {"id": 1, "qty": 1}), event("u", {"id": 1, "qty": 2}), event("d", None, {"id": 1})],
        DecoderSchema(ORDERS),
    )
    assert rows(decoded) == [(1, None, 1, "u")]
    assert all("the table has no keys" in reason for reason in reasons(decoded))
    assert len(reasons(decoded)) == 2


@pytest.mark.parametrize(
    ("sequence_by", "expected"),
    [
        ("source.lsn", [7, 8, 9]),
        ("ts_ms", [1_700_000_000_507, 1_700_000_000_508, 1_700_000_000_509]),
        ("source.ts_ms", [1_700_000_000_007, 1_700_000_000_008, 1_700_000_000_009]),
        ("kafka.offset", [0, 1, 2]),
        ("kafka.timestamp", [0, 1000, 2000]),
    ],
)
def test_metadata_of_an_event_may_order_changes(sequence_by: str, expected: list[int]) -> None:
    values = [
        event("c", {"id": 1, "qty": 1}, lsn=7),
        event("d", None, {"id": 1}, lsn=8),
        event("u", {"id": 3, "qty": 1}, {"id": 3}, lsn=9),
    ]
    decoder_schema = DecoderSchema(ORDERS, ("id",), sequence_by)
    assert decode(values, decoder_schema).changes.column("_lakebed_seq").to_pylist() == expected


def test_an_event_without_what_orders_it_is_quarantined() -> None:
    lacking = {**event("c", {"id": 1, "qty": 1}), "source": {}}
    decoded = decode([lacking, event("c", {"id": 2, "qty": 1})], DecoderSchema(ORDERS, ("id",), "source.lsn"))
    assert reasons(decoded) == ["sequence_by 'source.lsn' is null, missing or not an integer"]
    assert len(rows(decoded)) == 1


@pytest.mark.parametrize(
    ("sequence_by", "remarks"),
    [
        ("source.lns", {"source.lns; did you mean 'lsn'?": 2}),
        ("transaction.total_order", {"transaction.total_order": 2}),
        ("source.lsn", {}),  # the event has it, though it is null
    ],
)
def test_metadata_that_no_event_has_is_a_remark_which_names_what_may_be_meant(
    sequence_by: str, remarks: dict[str, int]
) -> None:
    made = {**event("c", {"id": 1, "qty": 1}), "source": {"lsn": None, "ts_ms": 1}}
    decoded = decode([made, made], DecoderSchema(ORDERS, ("id",), sequence_by))
    assert decoded.remarks.get(Remark.UNORDERED_CHANGE, {}) == remarks
    [reason] = set(reasons(decoded))
    assert sequence_by in reason and ("did you mean 'lsn'?" in reason) == (sequence_by == "source.lns")


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ('["6","8"]', 8),
        ('[null,"7"]', 7),
        ('["7",null]', None),
        ("[]", None),
        ("8", None),
        ("no JSON", None),
        (None, None),
    ],
)
def test_rows_of_an_ad_hoc_snapshot_are_ordered_by_where_the_connector_stood(
    told: str | None, expected: int | None
) -> None:
    again = event("r", {"id": 1, "qty": 1})
    again["source"] |= {"lsn": None, "snapshot": "incremental", "sequence": told}
    decoded = decode([again, event("u", {"id": 2, "qty": 1}, lsn=9)], DecoderSchema(ORDERS, ("id",), "source.lsn"))
    assert sorted(decoded.changes.column("_lakebed_seq").to_pylist()) == ([9] if expected is None else [expected, 9])
    assert len(reasons(decoded)) == (expected is None)


def test_a_delete_keeps_the_column_that_orders_it_where_before_has_it() -> None:
    decoded = decode([event("d", None, {"id": 1, "name": "x", "qty": 5})], DecoderSchema(ORDERS, ("id",), "qty"))
    assert rows(decoded) == [(1, None, 5, "d")]


def test_what_orders_changes_must_exist() -> None:
    with pytest.raises(InvalidSchema, match=r"sequence_by 'lsn' is neither a column of the table nor metadata"):
        DebeziumJson(DecoderSchema(ORDERS, ("id",), "lsn"))


def test_event_times_are_those_of_the_source() -> None:
    decoded = decode(
        [event("c", {"id": 1, "qty": 1}, lsn=5), event("t", lsn=99), event("c", {"id": 2, "qty": 1}, lsn=3)]
    )
    assert decoded.event_time_max == 1_700_000_000_005_000


def test_inline_schemas_are_found_by_record_even_if_they_change_midway() -> None:
    first = [{"type": "int64", "field": "id"}, {"type": "int32", "field": "qty"}]
    second = [*first, {"type": "string", "field": "name"}]
    values = [
        event("c", {"id": 1, "qty": 1}),
        with_schema(event("c", {"id": 2, "qty": 1}), first),
        with_schema(event("c", {"id": 3, "qty": 1, "name": "x"}), second),
        with_schema(event("d", None, {"id": 2, "qty": 1}), first),
        {"payload": event("c", {"id": 4, "qty": 1}), "schema": None},
    ]
    assert rows(decode(values)) == [
        (1, None, 1, "u"),
        (2, None, 1, "u"),
        (3, "x", 1, "u"),
        (2, None, None, "d"),
        (4, None, 1, "u"),
    ]


def test_no_records_give_no_changes() -> None:
    decoded = decode([])
    assert decoded.changes.column_names == ["id", "name", "qty", "_lakebed_op"]
    assert decoded.changes.num_rows == decoded.quarantined.num_rows == 0


def test_a_decoder_can_be_sent_to_a_task_after_use() -> None:
    decoder = DebeziumJson(SHAPE)
    table = records([event("c", {"id": 1, "qty": 1})])
    decoder.decode(table)
    assert pickle.loads(pickle.dumps(decoder)).decode(table).changes.equals(decoder.decode(table).changes)
