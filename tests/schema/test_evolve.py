"""Changes of a schema, as pure values: what they do to names, types, protocol and properties, and what is refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from lakebed.errors import InvalidSchema, Unsupported
from lakebed.log.snapshot import Snapshot
from lakebed.operations.create import protocol_for
from lakebed.schema.change import SchemaChange, difference, path_of, steps_of
from lakebed.schema.column_mapping import columns_of
from lakebed.schema.conversion import schema_from_json, schema_to_json
from lakebed.schema.evolve import Evolved, evolve, is_compatible
from lakebed.schema.metadata import Metadata, Protocol
from lakebed.schema.widening import widening
from lakebed.settings import TableSettings

ADDRESS = pa.struct([pa.field("zip", pa.int32()), pa.field("town", pa.string())])
ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("qty", pa.int32(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("address", ADDRESS),
        pa.field("tags", pa.list_(pa.field("element", pa.int16()))),
        pa.field("prices", pa.map_(pa.string(), pa.field("value", ADDRESS))),
        pa.field("legacy", pa.float32()),
    ]
)
SETTINGS = TableSettings(keys=("id", "day"), sort_key=("day", "bucket(8, qty)"), sequence_by="qty")


def table(schema: pa.Schema = ORDERS, partition_by: tuple[str, ...] = ("day",), **settings: object) -> Evolved:
    return Evolved(
        metadata=Metadata(
            id="t",
            schema_string=schema_to_json(schema),
            partition_columns=partition_by,
            configuration=TableSettings(**({"keys": ("id",)} | settings)).to_properties(),  # type: ignore[arg-type]
        ),
        protocol=protocol_for(schema),
    )


def changed(before: Evolved, **change: object) -> Evolved:
    return evolve(before.metadata, before.protocol, SchemaChange(**change))  # type: ignore[arg-type]


def snapshot(state: Evolved) -> Snapshot:
    return Snapshot(version=0, timestamp_ms=0, protocol=state.protocol, metadata=state.metadata)


def fields(state: Evolved) -> dict[str, dict[str, object]]:
    return {each["name"]: each for each in json.loads(state.metadata.schema_string)["fields"]}


def test_an_added_column_is_nullable_and_needs_no_feature() -> None:
    before = table()
    after = changed(
        before, add={"coupon": pa.large_string(), "address.land": pa.string(), "prices.value.tax": pa.int8()}
    )
    assert snapshot(after).schema.field("coupon").equals(pa.field("coupon", pa.string()))
    assert [each.name for each in snapshot(after).schema.field("address").type] == ["zip", "town", "land"]
    assert [each.name for each in snapshot(after).schema.field("prices").type.item_type] == ["zip", "town", "tax"]
    assert after.protocol is before.protocol
    assert after.metadata.configuration == before.metadata.configuration
    assert snapshot(after).columns.stored is snapshot(after).columns.logical
    assert not after.notes


def test_the_first_rename_maps_columns_and_keeps_the_stored_names() -> None:
    after = changed(table(), rename={"note": "comment", "address.zip": "code"})
    state = snapshot(after)
    assert state.schema.equals(ORDERS)
    assert "comment" in state.logical_schema.names and "note" not in state.logical_schema.names
    assert [each.name for each in state.logical_schema.field("address").type] == ["code", "town"]
    assert "columnMapping" in after.protocol.reader_features & after.protocol.writer_features
    assert after.metadata.configuration["delta.columnMapping.mode"] == "name"
    ids = sorted(state.columns.field_ids.values())
    assert ids == list(range(1, len(ids) + 1)) and after.metadata.configuration[
        "delta.columnMapping.maxColumnId"
    ] == str(ids[-1])
    assert state.columns.field_ids[("prices", "value", "zip")] > 0
    assert "column mapping" in " ".join(after.notes)
    assert not changed(after, rename={"legacy": "old"}).notes


def test_a_column_that_is_dropped_and_added_again_has_another_stored_name() -> None:
    before = table()
    after = changed(before, drop=("legacy", "address.town"), add={"legacy": pa.float32(), "address.town": pa.string()})
    stored = snapshot(after).columns
    assert after.metadata.configuration["delta.columnMapping.mode"] == "name"
    assert stored.stored_name("legacy") not in ORDERS.names
    inner = {each.name for each in stored.stored.field("address").type}
    assert "zip" in inner and "town" not in inner and len(inner) == 2
    numbers = stored.field_ids
    assert len(set(numbers.values())) == len(numbers)
    assert int(after.metadata.configuration["delta.columnMapping.maxColumnId"]) == max(numbers.values())


def test_a_widening_is_recorded_where_delta_looks_for_it() -> None:
    after = changed(table(), widen={"qty": pa.int64(), "tags.element": pa.int32(), "prices.value.zip": pa.float64()})
    again = changed(after, widen={"qty": pa.decimal128(24, 4)})
    found = fields(again)
    assert found["qty"]["metadata"]["delta.typeChanges"] == [  # type: ignore[index]
        {"toType": "long", "fromType": "integer"},
        {"toType": "decimal(24,4)", "fromType": "long"},
    ]
    assert found["tags"]["metadata"] == {  # type: ignore[comparison-overlap]
        "delta.typeChanges": [{"toType": "integer", "fromType": "short", "fieldPath": "element"}]
    }
    tax = found["prices"]["type"]["valueType"]["fields"][0]  # type: ignore[index]
    assert tax["type"] == "double" and tax["metadata"]["delta.typeChanges"][0]["fromType"] == "integer"
    assert "typeWidening" in after.protocol.reader_features & after.protocol.writer_features
    assert after.metadata.configuration["delta.enableTypeWidening"] == "true"
    assert any("delta-rs" in note and "refuses" in note for note in after.notes)
    assert not again.notes


def test_a_date_widened_to_a_timestamp_needs_two_features() -> None:
    after = changed(table(pa.schema([("id", pa.int64()), ("on", pa.date32())]), ()), widen={"on": pa.timestamp("us")})
    assert {"timestampNtz", "typeWidening"} <= after.protocol.reader_features & after.protocol.writer_features


def test_a_rename_follows_in_every_property_and_in_the_partition_columns() -> None:
    before = table(
        sort_key=("day", "bucket(8, qty) desc", "`legacy` nulls last"), sequence_by="qty", keys=("id", "day")
    )
    before = Evolved(
        metadata=Metadata(
            id="t",
            schema_string=before.metadata.schema_string,
            partition_columns=("day",),
            configuration=dict(before.metadata.configuration)
            | {"delta.dataSkippingStatsColumns": "id, qty,address.zip"},
        ),
        protocol=before.protocol,
    )
    after = changed(before, rename={"id": "order id", "day": "on", "qty": "n", "legacy": "x-y"})
    state = snapshot(after)
    assert state.logical_settings.keys == ("order id", "on")
    assert state.logical_settings.sequence_by == "n"
    assert state.logical_settings.sort_key == ("on", "bucket(8, n) desc", "`x-y` nulls last")
    assert after.metadata.partition_columns == ("on",)
    assert after.metadata.configuration["delta.dataSkippingStatsColumns"] == "order id,n,address.zip"
    inside = snapshot(before)
    assert state.settings.keys == inside.settings.keys and state.settings.sequence_by == inside.settings.sequence_by
    assert [term.name for term in state.order_terms] == [term.name for term in inside.order_terms]
    assert state.partition_columns == inside.partition_columns
    assert state.schema.equals(inside.schema)


def test_names_may_be_swapped_in_one_change() -> None:
    after = changed(table(), rename={"note": "legacy", "legacy": "note"})
    columns = snapshot(after).columns
    assert (columns.stored_name("note"), columns.stored_name("legacy")) == ("legacy", "note")


def test_a_swap_that_was_overtaken_is_refused_as_a_whole() -> None:
    swapped = changed(table(), rename={"note": "legacy", "legacy": "note"})
    overtaken = changed(swapped, rename={"note": "other"})
    with pytest.raises(InvalidSchema, match="no column or field 'note'"):
        changed(overtaken, rename={"note": "legacy", "legacy": "note"})


def test_the_metadata_of_other_tools_stays_as_it_was() -> None:
    value = json.loads(schema_to_json(ORDERS))
    strange = {"comment": "größe ✓", "tool.of.others": {"a": [1, 2.5, 12345678901234567890123, None]}, "x": True}
    value["fields"][2]["metadata"] = strange
    value["fields"][4]["type"]["fields"][0]["metadata"] = strange
    before = table()
    before = Evolved(
        metadata=Metadata(
            id="t", schema_string=json.dumps(value), partition_columns=(), configuration=before.metadata.configuration
        ),
        protocol=before.protocol,
    )
    after = changed(
        before, add={"z": pa.string()}, rename={"note": "n"}, drop=("legacy",), comment={"z": "new", "day": "of order"}
    )
    found = fields(after)
    metadata = dict(found["qty"]["metadata"])  # type: ignore[call-overload]
    kept = {name: each for name, each in metadata.items() if not name.startswith("delta.")}
    assert kept == strange
    assert strange.items() <= found["address"]["type"]["fields"][0]["metadata"].items()  # type: ignore[index]
    assert found["z"]["metadata"]["comment"] == "new" and found["day"]["metadata"]["comment"] == "of order"  # type: ignore[index]
    assert "comment" not in fields(changed(after, comment={"z": ""}))["z"]["metadata"]  # type: ignore[operator]


@pytest.mark.parametrize(
    "change",
    [
        {"add": {"coupon": pa.string()}},
        {"widen": {"qty": pa.int64()}},
        {"relax": ("qty",)},
        {"rename": {"note": "comment"}},
        {"comment": {"note": "text"}},
        {"add": {"coupon": pa.string()}, "rename": {"address.zip": "code"}, "widen": {"tags.element": pa.int64()}},
    ],
    ids=str,
)
def test_the_same_change_again_changes_nothing(change: dict[str, object]) -> None:
    first = changed(table(), **change)
    again = changed(first, **change)
    assert again.metadata is first.metadata and again.protocol is first.protocol


def test_a_narrower_column_that_is_there_already_needs_no_change() -> None:
    before = changed(table(), widen={"qty": pa.int64()})
    assert changed(before, widen={"qty": pa.int32()}).metadata is before.metadata
    assert changed(before, add={"qty": pa.int16()}).metadata is before.metadata


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": ("id",)}, "'id' can't be dropped: it is a key of the table"),
        ({"drop": ("day",)}, "'day' can't be dropped: it is a partition column"),
        ({"drop": ("qty",)}, "'qty' can't be dropped: it orders the changes"),
        ({"drop": ("legacy",)}, "'legacy' can't be dropped: it is in the sort key; give the table another sort key"),
        ({"drop": ("nope",)}, "the table has no column or field 'nope'; did you mean 'note'?"),
        ({"drop": ("tags.element",)}, "only columns and fields can be dropped"),
        ({"drop": ("address.zip",)}, "it is the first field of its struct"),
        ({"drop": ("prices.value.zip",)}, "drop the whole column 'prices'"),
        ({"rename": {"note": "qty"}}, "two columns are named"),
        ({"rename": {"note": "QTY"}}, "two columns are named"),
        ({"rename": {"note": "_lakebed_x"}}, "reserved"),
        ({"rename": {"note": "_metadata"}}, "reserved"),
        ({"rename": {"note": ""}}, "must not be empty"),
        ({"add": {"_metadata": pa.string()}}, "reserved for Spark"),
        ({"add": {"a\0b": pa.string()}}, "NUL"),
        ({"add": {"s": pa.struct([("", pa.string())])}}, "must not be empty"),
        ({"rename": {"address.zip": "z\0"}}, "NUL"),
        ({"add": {"note": pa.int64()}}, "'note' can't be added: there is 'note' of type string already"),
        ({"add": {"NOTE": pa.string()}}, "there is 'note' of type string already"),
        ({"add": {"note.x": pa.string()}}, "'note' is no struct"),
        ({"add": {"x": pa.uint8()}}, "a type that Delta tables do not have"),
        ({"widen": {"note": pa.int64()}}, "'note' is string and can't be widened to long: no type is wider"),
        ({"widen": {"qty": pa.float32()}}, "wider are long, double, decimal"),
        ({"widen": {"address": pa.struct([("zip", pa.int64())])}}, "can't be widened as a whole"),
        ({"widen": {"day": pa.timestamp("us")}}, "'day' is a partition column"),
        ({"widen": {"qty": pa.decimal128(20, 2)}}, "in the sort key as bucket(8, qty)"),
        ({"widen": {"tags.item": pa.int32()}}, "'tags' is of type array and has 'element'"),
        ({"relax": ("id",)}, "'id' is a key of the table"),
        ({"relax": ("prices.key",)}, "the key of a map"),
        ({"comment": {"tags.element": "x"}}, "only columns and fields can be commented on"),
        ({"comment": {"note..x": "x"}}, "is no path"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_refused_says_why(change: dict[str, object], message: str) -> None:
    before = table(keys=("id",), sort_key=("legacy", "bucket(8, qty)"), sequence_by="qty")
    with pytest.raises(InvalidSchema) as caught:
        changed(before, **change)
    assert message in str(caught.value)


def test_a_name_that_orders_events_can_t_become_a_column() -> None:
    before = table(sequence_by="lsn")
    for change in ({"add": {"lsn": pa.int64()}}, {"rename": {"note": "lsn"}}):
        with pytest.raises(InvalidSchema, match="'lsn' of events orders the changes of the table"):
            changed(before, **change)


def test_a_name_that_reads_like_a_term_of_the_sort_key_is_refused() -> None:
    before = table(sort_key=("day desc", "bucket(8, qty)"))
    for name in ("day desc", "bucket(8, qty)"):
        for change in ({"rename": {"note": name}}, {"drop": ("legacy",), "add": {name: pa.string()}}):
            with pytest.raises(InvalidSchema, match="the sort key has a term of that text"):
                changed(before, **change)
    after = changed(before, rename={"note": "bucket(8,qty)"})
    assert snapshot(after).settings.sort_key == ("day desc", "bucket(8, qty)")


def test_a_table_that_maps_by_id_is_refused() -> None:
    after = changed(table(), rename={"note": "n"})
    by_id = dict(after.metadata.configuration) | {"delta.columnMapping.mode": "id"}
    metadata = Metadata(id="t", schema_string=after.metadata.schema_string, partition_columns=(), configuration=by_id)
    with pytest.raises(Unsupported, match="maps columns by 'id'"):
        columns_of(metadata, after.protocol)


def test_a_change_of_type_that_is_no_widening_is_refused() -> None:
    after = changed(table(), widen={"tags.element": pa.int32()})
    strange = after.metadata.schema_string.replace('"fromType":"short"', '"fromType":"string"')
    metadata = Metadata(id="t", schema_string=strange, partition_columns=(), configuration={})
    with pytest.raises(Unsupported, match="the type of 'tags' was changed from string to integer"):
        columns_of(metadata, after.protocol)


def test_a_mode_that_the_protocol_does_not_support_is_not_honoured() -> None:
    after = changed(table(), rename={"note": "n"})
    assert columns_of(after.metadata, Protocol(3, 7)).is_identity


def test_tables_are_renamed_at_every_depth_without_copying() -> None:
    columns = snapshot(changed(table(), rename={"note": "n", "address.zip": "code", "prices.value.town": "t"})).columns
    rows = pa.table(
        {
            "note": ["a", None, "b"],
            "_lakebed_op": [1, 2, 3],
            "address": pa.array([{"zip": 1, "town": "x"}, None, {"zip": None, "town": None}], ADDRESS),
            "prices": pa.array([[("k", {"zip": 5, "town": "y"})], None, []], pa.map_(pa.string(), ADDRESS)),
        }
    ).slice(1)
    logical = columns.to_logical(rows)
    assert logical.column_names == ["n", "_lakebed_op", "address", "prices"]
    assert logical.to_pylist()[1]["address"] == {"code": None, "town": None}
    assert columns.to_logical(rows.slice(0, 0)).schema == logical.schema
    whole = columns.to_stored(logical)
    whole.validate(full=True)
    assert whole.equals(rows)
    assert whole["note"].chunk(0).buffers()[2].address == rows["note"].chunk(0).buffers()[2].address


@pytest.mark.parametrize("path", ["a", "a.b.c", "`a.b`.c", "`x``y`", "größe.ß"])
def test_a_path_is_read_as_it_is_written(path: str) -> None:
    assert path_of(steps_of(path)) == path


def test_a_change_is_the_same_after_json() -> None:
    change = SchemaChange(
        add={"a": pa.decimal128(5, 2), "b.c": ADDRESS},
        widen={"q": pa.int64()},
        relax=("r",),
        rename={"a.b": "c"},
        drop=("d",),
        comment={"x": "y"},
    )
    assert SchemaChange.from_json(json.loads(json.dumps(change.to_json()))) == change
    assert SchemaChange.from_json({}) == SchemaChange() and not SchemaChange()


def test_the_difference_of_two_schemas_makes_rows_of_the_one_fit_the_other() -> None:
    wanted = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("qty", pa.int64()),
            pa.field("note", pa.int64()),
            pa.field("address", pa.struct([("zip", pa.decimal128(12, 2)), ("land", pa.string())])),
            pa.field("tags", pa.list_(pa.int8())),
            pa.field("legacy", pa.int32()),
            pa.field("new", pa.bool_()),
        ]
    )
    found = difference(ORDERS, wanted)
    assert found == SchemaChange(
        add={"address.land": pa.string(), "new": pa.bool_()},
        widen={"qty": pa.int64(), "address.zip": pa.decimal128(12, 2), "legacy": pa.float64()},
        relax=("id", "qty"),
    )
    assert not difference(ORDERS, ORDERS)


def test_what_is_compatible() -> None:
    before = table(sort_key=("day", "qty"))
    compatible = [
        {"add": {"coupon": pa.string(), "address.land": pa.string()}},
        {"widen": {"qty": pa.int64(), "tags.element": pa.int64()}},
        {"relax": ("qty",)},
        {"rename": {"note": "n", "id": "key", "day": "on", "qty": "q", "prices.value.zip": "z"}},
        {"comment": {"note": "text"}},
    ]
    for change in compatible:
        after = changed(before, **change)
        assert is_compatible(before.metadata, after.metadata), change
        if "add" not in change and "comment" not in change and "rename" not in change:
            assert not is_compatible(after.metadata, before.metadata), change
    for change in ({"drop": ("note",)}, {"drop": ("address.town",)}, {"drop": ("note",), "add": {"note": pa.string()}}):
        assert not is_compatible(before.metadata, changed(before, **change).metadata), change
    others = [table(), table(sort_key=("day",)), table(partition_by=()), table(sort_key=("day", "qty"), read_budget=4)]
    for other in others:
        assert not is_compatible(before.metadata, other.metadata)
    strict = pa.schema([*ORDERS, pa.field("must", pa.string(), nullable=False)])
    assert not is_compatible(before.metadata, table(strict, sort_key=("day", "qty")).metadata)


@pytest.mark.parametrize(
    ("narrow", "wide", "may"),
    [
        (pa.int8(), pa.int16(), True), (pa.int8(), pa.int64(), True), (pa.int64(), pa.int32(), False),
        (pa.int32(), pa.float64(), True), (pa.int64(), pa.float64(), False), (pa.int32(), pa.float32(), False),
        (pa.float32(), pa.float64(), True), (pa.date32(), pa.timestamp("us"), True),
        (pa.date32(), pa.timestamp("us", "UTC"), False), (pa.int32(), pa.decimal128(10, 0), True),
        (pa.int8(), pa.decimal128(9, 0), False), (pa.int64(), pa.decimal128(20, 0), True),
        (pa.int64(), pa.decimal128(20, 1), False), (pa.decimal128(10, 2), pa.decimal128(12, 4), True),
        (pa.decimal128(10, 2), pa.decimal128(12, 5), False), (pa.decimal128(10, 2), pa.decimal128(10, 2), False),
        (pa.decimal128(5, 0), pa.int64(), False), (pa.string(), pa.binary(), False),
    ],
    ids=str,
)  # fmt: skip
def test_what_may_be_widened(narrow: pa.DataType, wide: pa.DataType, may: bool) -> None:
    assert widening(narrow, wide) is may


def test_schemas_are_read_as_before() -> None:
    assert schema_from_json(schema_to_json(ORDERS)).equals(ORDERS)
