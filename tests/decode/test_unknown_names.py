"""Members that no column takes, and operations that nobody knows, are counted by name; nothing is dropped unseen."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.decode.decoder import Decoded, Decoder, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.metadata import Operations
from lakebed.decode.row_changes import RowChanges
from lakebed.decode.slices import UNFORESEEN
from lakebed.decode.unknown_fields import SAMPLE_MIN, sample_of
from lakebed.errors import InvalidInput
from lakebed.health.status import Observer
from lakebed.ingest.changes_frame import unknown_columns
from lakebed.log.actions import CommitInfo, Domain
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import REMARKS
from lakebed.monitoring.metrics import Metrics
from lakebed.parts.changes import write_spec_of
from lakebed.positions.remarks import KEPT_SECONDS, Remarks, remarks_of
from lakebed.remarks import CHARACTERS_MAX, NAMES_MAX, OTHERS, Names
from tests.decode.fuzz import only_one_by_one
from tests.decode.records import event, records, with_schema
from tests.internals import log_of

ADDRESS = pa.struct([("city", pa.string())])
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("name", pa.string()),
        pa.field("address", ADDRESS),
        pa.field("lines", pa.list_(pa.struct([("sku", pa.string())]))),
    ]
)
SHAPE = DecoderSchema(COLUMNS, ("id",))
FIELDS = [{"type": "int64", "field": "id"}, {"type": "string", "field": "name"}]


def both_ways(of: Decoder, values: list[Any]) -> Decoded:
    """What the records become; read by columns and one by one, which agree."""
    fast = of.decode(records(values))
    with only_one_by_one():
        slow = pickle.loads(pickle.dumps(of)).decode(records(values))
    assert fast.remarks.get("unknown_field", {}) == slow.remarks.get("unknown_field", {})
    assert fast.remarks.get("unknown_operation", {}) == slow.remarks.get("unknown_operation", {})
    assert fast.changes.to_pylist() == slow.changes.to_pylist()
    assert fast.quarantined["reason"].to_pylist() == slow.quarantined["reason"].to_pylist()
    return fast


@pytest.mark.parametrize("format", ["json", "debezium-json", "with schema"])
def test_members_that_no_column_takes_are_counted_by_name(format: str) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "name": "a", "colour": "red"},
        {"id": 2, "name": "b", "colour": None, "address": {"city": "x", "zip": "1"}},
        {"id": 3, "lines": [{"sku": "s", "pieces": 1}, {"sku": "t", "pieces": 2}, None]},
        {"id": 4, "name": "d"},
    ]
    values = rows
    if format != "json":
        values = [event("c", row) for row in rows] + [event("d", None, {"id": 1, "colour": "red"})]
    if format == "with schema":
        values = [with_schema(value, FIELDS) for value in values]
    decoded = both_ways(decoder("json" if format == "json" else "debezium-json", SHAPE), values)
    assert decoded.remarks.get("unknown_field", {}) == {
        "colour": 2 if format == "json" else 3,
        "address.zip": 1,
        "lines.pieces": 1,
    }
    assert len(decoded.changes) == len(values) and not len(decoded.quarantined)


def test_unknown_members_are_not_looked_for_where_the_settings_ignore_them() -> None:
    decoded = both_ways(decoder("json", SHAPE, {"unknown_fields": "ignore"}), [{"id": 1, "colour": "red"}])
    assert decoded.remarks.get("unknown_field", {}) == {} and len(decoded.changes) == 1


@pytest.mark.parametrize("format", ["json", "debezium-json"])
def test_each_record_with_an_unknown_member_is_quarantined_where_the_settings_say_so(format: str) -> None:
    rows: list[dict[str, Any]] = [{"id": number, "name": "x" * 50} for number in range(1000)]
    rows[777] = {"id": 777, "u": 1}  # short, and at no regular place
    values = rows if format == "json" else [event("c", row) for row in rows]
    decoded = both_ways(decoder(format, SHAPE, {"unknown_fields": "quarantine"}), values)
    assert decoded.quarantined["reason"].to_pylist() == [
        'no column takes its fields "u" (unknown_fields: quarantine is set)'
    ]
    assert decoded.quarantined["offset"].to_pylist() == [777]
    assert decoded.remarks == {"refused_field": {"u": 1}} and len(decoded.changes) == 999


def test_a_member_more_in_one_of_many_records_is_seen() -> None:
    rows: list[dict[str, Any]] = [{"id": number, "name": "x"} for number in range(10_000)]
    rows[4321] = {**rows[4321], "colour": "red"}
    assert decoder("json", SHAPE).decode(records(rows)).remarks.get("unknown_field", {}) == {"colour": 1}
    assert len(sample_of(pa.array([b"{}"] * 10_000))) <= 10_000 // SAMPLE_MIN


@pytest.mark.parametrize("value", [1, "x", [1], {"k": 1}, {"k": [1]}, [{"k": 1}]])
def test_members_are_looked_for_in_values_of_any_form(value: Any) -> None:
    point = pa.struct([("x", pa.int64())])
    kinds = {"struct": point, "list": pa.list_(point), "map": pa.map_(pa.string(), point)}
    shape = DecoderSchema(pa.schema([("id", pa.int64()), *kinds.items()]), ("id",))
    decoded = decoder("json", shape).decode(records([{"id": 1, name: value} for name in kinds]))
    assert not [reason for reason in decoded.quarantined["reason"].to_pylist() if UNFORESEEN in reason]


def test_the_placeholder_of_an_unavailable_value_is_no_unknown_member() -> None:
    unavailable = {"__debezium_unavailable_value": "__debezium_unavailable_value"}
    decoded = both_ways(decoder("debezium-json", SHAPE), [event("u", {"id": 1, "address": unavailable})])
    assert decoded.remarks == {}


def test_operations_are_known_whatever_their_case_and_never_guessed() -> None:
    values = ["delete", "DELETE", "Delete", "d", "D", "update", "UPDATE", "I", None]
    rows = [{"id": number, "op": op} for number, op in enumerate([*values, "DELTE", "truncate", "DELTE", ""])]
    decoded = both_ways(decoder("json", SHAPE, {"operation_field": "op"}), [*rows, {"id": 99}])
    operations = dict(zip(decoded.changes["id"].to_pylist(), decoded.changes["_lakebed_op"].to_pylist(), strict=True))
    assert operations == {0: "d", 1: "d", 2: "d", 3: "d", 4: "d", 5: "u", 6: "u", 7: "u", 8: "u", 99: "u"}
    assert decoded.remarks.get("unknown_operation", {}) == {"DELTE": 2, "truncate": 1, "": 1}
    assert decoded.quarantined["reason"][0].as_py() == (
        'unknown operation "DELTE": it is neither among delete_values nor among upsert_values'
    )
    assert decoded.remarks.get("unknown_field", {}) == {}


def test_an_upper_case_delete_deletes_where_only_the_lower_case_one_is_named() -> None:
    options = {"operation_field": "op", "delete_values": ["delete"]}
    decoded = both_ways(decoder("json", SHAPE, options), [{"id": 1, "op": "DELETE"}, {"id": 2, "op": "d"}])
    assert decoded.changes["_lakebed_op"].to_pylist() == ["d"] and decoded.remarks.get("unknown_operation", {}) == {
        "d": 1
    }


def test_case_decides_between_two_values_that_differ_in_nothing_else() -> None:
    operations = Operations.given(["X"], ["x", "Xy"])
    assert [operations.of(value) for value in ("X", "x", "XY")] == ["d", "u", "u"]
    assert Operations.given(["ab"], ["AB"]).of("Ab") is None
    assert Operations.given(["r"]).of("R") == "d", "a value among delete_values is no upsert by default"
    with pytest.raises(InvalidInput, match="'x' is in both delete_values and upsert_values"):
        Operations.given(["x"], ["x"])


def test_unknown_operations_of_debezium_are_counted_by_name() -> None:
    decoded = both_ways(decoder("debezium-json", SHAPE), [event("z", {"id": 1}), event("c", {"id": 2})])
    assert decoded.remarks.get("unknown_operation", {}) == {"z": 1} and len(decoded.changes) == 1


def test_hostile_names_are_bounded_in_number_and_length() -> None:
    rows = [{"id": 1, **{f"n{number}" + "x" * 1000: 1 for number in range(5 * NAMES_MAX)}}, '{"id":2,"\\ud800":1}']
    counted = decoder("json", SHAPE).decode(records(rows)).remarks.get("unknown_field", {})
    assert len(counted) == NAMES_MAX + 1 and counted[OTHERS] >= 400
    assert all(len(name) <= CHARACTERS_MAX for name in counted)
    Names(counted).add("\ud800")


def test_counts_of_several_batches_are_summed() -> None:
    of = decoder("json", SHAPE)
    parts = [of.decode(records([{"id": 1, "a": 1}])), of.decode(records([{"id": 1, "a": 1, "b": 1}]))]
    assert Decoded.concat(parts).remarks.get("unknown_field", {}) == {"a": 2, "b": 1}


@pytest.fixture
def orders(tmp_path: Path) -> lakebed.Table:
    return lakebed.create(tmp_path / "orders", pa.schema([("id", pa.int64()), ("v", pa.int64())]), keys=["id"])


def test_columns_that_a_table_lacks_are_counted_and_warned_of_once(
    orders: lakebed.Table, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    stop = events.listen(metrics)
    for _ in range(2):
        orders.apply(
            pa.table({"id": [1, 2], "v": [1, 2], "op": ["x", "y"], "seen": [1, 2], "colour": ["red", "blue"]}),
            apply_as_deletes="op = 'd'",
            except_column_list=["seen"],
        )
    stop()
    assert [record.getMessage().partition(":")[2] for record in caplog.records if record.name == "lakebed.ingest"] == [
        " records have fields that no column takes: 'colour'. What to do: add columns, or have the fields ignored "
        "(format.unknown_fields: ignore, or except_column_list)"
    ]
    labels = {"table": orders.path, "kind": "unknown_field", "name": "colour"}
    assert metrics.registry.get_sample_value("lakebed_remarks_total", labels) == 4
    status = Observer(orders.path).look()
    assert status.remarks.get("unknown_field", {}) == {"colour": 4}
    assert [finding.what for finding in status.findings] == ["records have fields that no column takes: colour in 4"]
    tomorrow = Observer(orders.path, clock=lambda: time.time() + 90_000).look()
    assert "unknown_field" not in [finding.check for finding in tomorrow.findings], "the finding passes"


def test_a_batch_with_unknown_names_stays_an_append_that_conflicts_with_nobody(orders: lakebed.Table) -> None:
    version = orders.apply(pa.table({"id": [1], "v": [1], "colour": ["red"]}))
    lines = Path(orders.path, "_delta_log", f"{version:020}.json").read_text().splitlines()
    [info] = [json.loads(line)["commitInfo"] for line in lines if "commitInfo" in json.loads(line)]
    assert info["isBlindAppend"] is True
    assert any(REMARKS in line for line in lines)


def test_names_in_dicts_that_a_table_lacks_are_counted(orders: lakebed.Table) -> None:
    orders.apply([{"id": 1, "v": 1}, {"id": 2, "v": 2, "size": 3}])
    assert Observer(orders.path).look().remarks.get("unknown_field", {}).keys() == {"size"}


def test_columns_of_a_stream_that_a_table_lacks_are_counted_by_rows(orders: lakebed.Table) -> None:
    spec = write_spec_of(log_of(orders).refresh())
    unknown = unknown_columns(["id", "v", "op", "_change_type", "size"], spec, "OP = 'd'", [])
    assert unknown == ("size",)
    rows = pa.RecordBatch.from_pydict({"row": [{"id": 1, "v": 1, "_lakebed_op": "u"}] * 3})
    [decoded] = RowChanges(spec, unknown_columns=unknown)(iter([rows]))
    assert decoded.remarks.get("unknown_field", {}) == {"size": 3}


def test_the_labels_of_a_metric_are_bounded() -> None:
    metrics = Metrics()
    for number in range(3 * NAMES_MAX):
        metrics(events.RemarkMade(table="t", kind="unknown_operation", name=f"op{number}", records=1))
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    counted = {sample.labels["name"]: sample.value for sample in samples if sample.name.endswith("remarks_total")}
    assert len(counted) == NAMES_MAX + 1 and counted[OTHERS] == 2 * NAMES_MAX


def test_an_entry_of_another_form_is_read_as_empty_and_replaced(orders: lakebed.Table) -> None:
    log = log_of(orders)
    info = CommitInfo(operation="x", commit_id="", engine="test")
    log.commit(log.refresh(), [Domain(REMARKS, '{"fields": 7}')], info, ReadWriteSet())
    assert remarks_of(log.refresh()).kinds == {}
    orders.apply(pa.table({"id": [1], "v": [1], "colour": ["red"]}))
    assert remarks_of(log.refresh()).counts == {"unknown_field": {"colour": 1}}


def test_names_in_the_log_are_bounded_and_forgotten_after_a_week() -> None:
    kept = Remarks().plus({"unknown_field": {f"n{number}": 1 for number in range(3 * NAMES_MAX)}}, 0)
    assert len(kept.kinds["unknown_field"]) == NAMES_MAX + 1
    later = kept.plus({"unknown_field": {"new": 2}}, KEPT_SECONDS * 1000 + 1)
    assert later.counts == {"unknown_field": {"new": 2}}
