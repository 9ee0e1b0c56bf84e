"""Whatever a record holds, it becomes rows or a record of the quarantine, and the others go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.json_rows import JsonRows
from lakebed.decode.slices import UNFORESEEN
from lakebed.ingest.batch_writer import WriteTask
from lakebed.parts.changes import WriteSpec
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from tests.decode import fuzz
from tests.decode.records import RecordChanges, event, records, with_schema
from tests.worlds import TIMES

ID = pa.field("id", pa.int64(), False)
TEXT_AND_NUMBER = pa.schema([ID, pa.field("text", pa.string()), pa.field("n", pa.int64())])
SHAPE = DecoderSchema(TEXT_AND_NUMBER, ("id",))
GOOD = event("c", {"id": 7, "text": "a", "n": 1})


def reasons_of(decoded: Decoded) -> list[str]:
    return decoded.quarantined["reason"].to_pylist()


@pytest.mark.slow
@pytest.mark.worlds
def test_hostile_records_never_stop_the_task_and_are_read_the_same_by_columns_and_one_by_one() -> None:
    told = fuzz.run(1_000 * TIMES, seed=1)
    assert told["rows"] and told["quarantined"]


@pytest.mark.parametrize("beside", [[GOOD] * 40, []])
@pytest.mark.parametrize(
    ("number", "written"),
    [
        ("12345678901234567890.123", "12345678901234567890.123"),
        ("1e400", "1e400"),
        ("1.10", "1.10"),
        ("-0", "-0"),
        ("1E+2", "1E+2"),
        ("0.1234567890123456789", "0.1234567890123456789"),
        ("9" * 5000, "9" * 5000),
        ("1e-99999999999999999999", "1e-99999999999999999999"),
    ],
)
def test_a_number_in_a_text_column_is_the_text_as_it_came(number: str, written: str, beside: list[Any]) -> None:
    values = [
        f'{{"op":"c","after":{{"id":1,"text":{number}}}}}',
        f'{{"op":"c","after":{{"id":2,"text":{{"a":[{number}]}}}}}}',
    ]
    changes = DebeziumJson(SHAPE).decode(records([*beside, *values])).changes
    assert changes["text"].to_pylist()[len(beside) :] == [written, f'{{"a":[{written}]}}']
    rows = (
        JsonRows(SHAPE).decode(records([f'{{"id":1,"text":{{"a":[{number},null,true,"é\\n"],"b":1,"a":2}}}}'])).changes
    )
    assert rows["text"].to_pylist() == [f'{{"a":[{written},null,true,"é\\n"],"b":1,"a":2}}']


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r'{"a":"\ud83d"}', "half of a surrogate pair"),
        (r'{"\ud83d":1}', "half of a surrogate pair"),
        ("[" * 150 + "]" * 150, "nested too deep"),
        ("[" * 5000 + "]" * 5000, "nested too deep"),
        ("[NaN]", "NaN is not a JSON number"),
    ],
)
def test_what_a_text_column_can_not_hold_is_quarantined(text: str, reason: str) -> None:
    poison = f'{{"op":"c","after":{{"id":1,"text":{text},"n":1}}}}'
    decoded = DebeziumJson(SHAPE).decode(records([GOOD, poison, GOOD]))
    assert decoded.changes["id"].to_pylist() == [7, 7]
    assert [reason in told for told in reasons_of(decoded)] == [True]


@pytest.mark.parametrize(
    "skipped",
    ["NaN", "-Inf", "1e9999999999999999999999", "9" * 5000, "[" * 5000 + "]" * 5000, r'"\ud800"', '{"a":NaN}'],
)
@pytest.mark.parametrize("beside", [[GOOD] * 40, []])
def test_what_stands_in_a_member_that_no_column_wants_is_no_matter(skipped: str, beside: list[Any]) -> None:
    one = f'{{"op":"c","after":{{"id":1,"text":"a","n":1,"skipped":{skipped}}}}}'
    decoded = DebeziumJson(SHAPE).decode(records([*beside, one]))
    assert decoded.changes["id"].to_pylist() == [7] * len(beside) + [1]


MALFORMED: list[Any] = [
    5,
    [],
    {"fields": 5},
    {"fields": [5]},
    {"fields": [{"field": 5}]},
    {"fields": [{"field": "after", "fields": "x"}]},
    {"fields": [{"field": "after", "fields": [{"field": "n", "type": "array", "items": 5}]}]},
    {
        "fields": [
            {
                "field": "after",
                "fields": [{"field": "n", "name": "org.apache.kafka.connect.data.Decimal", "parameters": 1}],
            }
        ]
    },
]


@pytest.mark.parametrize("schema", MALFORMED)
def test_a_malformed_inline_schema_is_quarantined(schema: Any) -> None:
    decoded = DebeziumJson(SHAPE).decode(records([GOOD, {"schema": schema, "payload": GOOD}, GOOD]))
    assert decoded.changes["id"].to_pylist() == [7, 7]
    assert [told.split(":")[0] for told in reasons_of(decoded)] == ["its inline schema can't be read"]
    key = {
        "schema": schema["fields"][0] if isinstance(schema, dict) and "after" in str(schema) else schema,
        "payload": {"id": 1},
    }
    deletes = DebeziumJson(SHAPE).decode(records([event("d"), event("d")], [key, {"id": 8}]))
    assert deletes.changes["id"].to_pylist() == [8]
    assert reasons_of(deletes)[0].startswith("message key: its inline schema can't be read")


NESTED = [
    (pa.struct([pa.field("x", pa.int64(), False)]), {"x": 1}, {"x": None}),
    (pa.struct([pa.field("x", pa.int64(), False)]), {"x": 1}, {"y": 1}),
    (pa.list_(pa.field("element", pa.int64(), False)), [1], [1, None]),
    (pa.map_(pa.string(), pa.field("value", pa.int64(), False)), {"a": 1}, {"a": None}),
    (pa.list_(pa.field("element", pa.struct([pa.field("x", pa.string(), False)]))), [None, {"x": "a"}], [{}]),
]


@pytest.mark.parametrize(("kind", "good", "bad"), NESTED)
def test_null_where_a_nested_value_takes_none_is_quarantined_and_a_null_around_it_is_written(
    kind: pa.DataType, good: Any, bad: Any, tmp_path: Path
) -> None:
    columns = pa.schema([ID, pa.field("v", kind)])
    values = [event("c", {"id": 1, "v": good}), event("c", {"id": 2, "v": bad}), event("c", {"id": 3, "v": None})]
    decoded = DebeziumJson(DecoderSchema(columns, ("id",))).decode(records(values))
    assert decoded.changes["id"].to_pylist() == [1, 3]
    assert [told.endswith("may not be null") for told in reasons_of(decoded)] == [True]
    parts, aside = write(WriteSpec(schema=columns, keys=("id",)), values, tmp_path)
    assert sorted(pq.read_table(parts[0])["id"].to_pylist()) == [1, 3]
    assert len(aside) == 1


def write(spec: WriteSpec, values: list[Any], folder: Path) -> tuple[list[Path], list[Path]]:
    """What the task of a batch writes: the files of parts, and those of the quarantine."""
    task = WriteTask(spec, str(folder / "t"), RecordChanges(DebeziumJson(DecoderSchema(spec.schema, spec.keys))))
    written = task.write(task.stream(iter(records(values).to_batches())))
    aside = [folder / f"t{QUARANTINE_SUFFIX}" / part.path for part in written.quarantined]
    return [folder / "t" / part.path for part in written.parts], aside


@pytest.mark.parametrize(
    ("kind", "beyond"),
    [
        (pa.date32(), [2_932_897, -719_163, 2**31 - 2]),
        (pa.timestamp("us", "UTC"), [253_402_300_800_000_000, -62_135_596_800_000_001, 2**62]),
        (pa.timestamp("us"), [253_402_300_800_000_000, -9_223_372_022_400_000_000]),
    ],
)
def test_a_partition_beyond_the_calendar_is_quarantined_and_any_other_column_may_be(
    kind: pa.DataType, beyond: list[int], tmp_path: Path
) -> None:
    columns = pa.schema([ID, pa.field("at", kind), pa.field("day", kind)])
    name = "io.debezium.time.Date" if pa.types.is_date(kind) else "io.debezium.time.MicroTimestamp"
    fields = [
        {"field": "id", "type": "int64"},
        *({"field": one, "type": "int64", "name": name} for one in ("at", "day")),
    ]
    rows = [{"id": i, "at": value, "day": 0} for i, value in enumerate(beyond)]
    rows += [{"id": 10 + i, "at": 0, "day": value} for i, value in enumerate(beyond)]
    values = [with_schema(event("c", row), fields) for row in rows]
    parts, aside = write(WriteSpec(schema=columns, keys=("id",), partition_by=("day",)), values, tmp_path)
    assert [pq.read_table(part)["id"].to_pylist() for part in parts] == [list(range(len(beyond)))]
    quarantined = pq.read_table(aside[0]).to_pylist()
    assert sorted(json.loads(record["value"])["id"] for record in quarantined) == [10 + i for i in range(len(beyond))]
    assert all("beyond the years 1 to 9999" in record["reason"] for record in quarantined)


@pytest.mark.parametrize("millis", [-(2**63), 2**63 - 1, 9_300_000_000_000_000])
@pytest.mark.parametrize("value", [{"id": 1, "n": 1}, "broken"])
def test_a_record_of_an_impossible_time_is_read_like_any_other(millis: int, value: Any) -> None:
    some = records([value])
    times = pa.array([millis], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    some = some.set_column(5, some.schema.field("timestamp"), times)
    decoded = JsonRows(SHAPE).decode(some)
    assert decoded.changes["id"].to_pylist() == ([] if value == "broken" else [1])
    assert decoded.quarantined["time"].to_pylist() == ([None] if value == "broken" else [])


def test_a_key_that_the_source_did_not_send_is_not_its_placeholder() -> None:
    spec = DecoderSchema(pa.schema([pa.field("id", pa.string(), False), pa.field("n", pa.int64())]), ("id",))
    placeholder = "__debezium_unavailable_value"
    values = [
        event("u", {"id": "a", "n": 1}, {"id": placeholder, "n": 1}),
        event("d", None, {"id": placeholder}),
        event("u", {"id": placeholder, "n": 2}),
    ]
    changes = DebeziumJson(spec).decode(records(values, [{"id": "a"}, {"id": "b"}, {"id": "c"}])).changes
    assert [(row["id"], row["n"], row["_lakebed_op"]) for row in changes.to_pylist()] == [
        ("a", 1, "u"),
        ("b", None, "d"),
        ("c", 2, "u"),
    ]


def test_even_a_fault_of_the_decoder_stops_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise KeyError("a fault")

    monkeypatch.setattr("lakebed.decode.debezium.events.read_event", fails)
    decoded = DebeziumJson(SHAPE).decode(records([GOOD, "broken", GOOD]))
    assert decoded.changes.num_rows == 2 or decoded.quarantined.num_rows == 3
    assert all(told.startswith(UNFORESEEN) for told in reasons_of(decoded))
