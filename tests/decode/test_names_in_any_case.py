"""A field whose name differs from a column's by case alone is that column's, in every format, fast and one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from lakebed.decode import json_rows
from lakebed.decode.debezium import events as debezium
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.native.library import library
from lakebed.decode.source_order import SourceRules
from lakebed.errors import InvalidSchema
from lakebed.schema.fitting import EvolvePolicy
from tests.decode.avro_events import avro_type, avro_value, encoded
from tests.decode.fuzz import only_one_by_one, without_native_code
from tests.decode.records import event, records, with_schema
from tests.decode.test_typed_records import as_avro, of_avro

PLACE = pa.struct([("zip", pa.string()), ("city", pa.string())])
COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("userid", pa.int64()), ("place", PLACE)])
ROW = {"id": 1, "userid": 5, "place": {"zip": "1", "city": "a"}}
OTHER = {"ID": 2, "userId": 6, "Place": {"ZIP": "2", "city": "b"}}
STRICT = EvolvePolicy(by_schema=True)


def field(name: str, value: Any) -> dict[str, Any]:
    """A field of a schema for such values."""
    if isinstance(value, dict):
        return {"type": "struct", "field": name, "optional": True, "fields": [field(*one) for one in value.items()]}
    kind = "string" if isinstance(value, str) else "int64"
    return {"type": kind, "field": name, "optional": name.lower() != "id"}


def fields_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [field(*one) for one in row.items()]


def decode(
    form: str,
    *rows: dict[str, Any],
    columns: pa.Schema = COLUMNS,
    policy: EvolvePolicy = STRICT,
    keys: list[Any] | None = None,
    options: Any = None,
) -> Decoded:
    """``form``: how the rows come. The fields of the first row are those of the schema, where they have one."""
    shape = DecoderSchema.of_table(columns, ("id",), None, policy)
    if form == "json":
        return decoder("json", shape, options).decode(records(list(rows), keys))
    if form == "rows with a schema":
        values = [{"schema": {"type": "struct", "fields": fields_of(rows[0])}, "payload": row} for row in rows]
        return decoder("json", shape, options).decode(records(values, keys))
    if form == "debezium-json":
        return decoder("debezium-json", shape, options).decode(records([event("c", row) for row in rows], keys))
    if form == "inline":
        values = [with_schema(event("c", row), fields_of(rows[0])) for row in rows]
        return decoder("debezium-json", shape, options).decode(records(values, keys))
    fields = fields_of(rows[0])
    reader = of_avro(fields, shape, events=form == "avro")
    if form == "avro":
        return reader.decode(as_avro([event("c", row) for row in rows], fields))
    schema = {"type": "struct", "fields": fields}
    return reader.decode(records([encoded(avro_type(schema, "Row"), avro_value(row, schema)) for row in rows]))


def rows_in(decoded: Decoded) -> list[dict[str, Any]]:
    assert decoded.schema_needed is None and not decoded.quarantined["reason"].to_pylist()
    return decoded.changes.select(COLUMNS.names).to_pylist()


WITHOUT_SCHEMA = ["json", "debezium-json"]
WITH_SCHEMA = ["rows with a schema", "inline", "avro", "rows of avro"]
FORMS = [*WITHOUT_SCHEMA, *WITH_SCHEMA]


@pytest.fixture(params=["fast", "without native code", "one by one"])
def reading(request: pytest.FixtureRequest) -> Iterator[None]:
    ways: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "fast": nullcontext,
        "without native code": without_native_code,
        "one by one": only_one_by_one,
    }
    with ways[request.param]():
        yield


@pytest.mark.parametrize("form", FORMS)
def test_a_column_takes_the_field_of_its_name_in_any_case(form: str, reading: None) -> None:
    renamed = {name: {"zip": "2", "city": "b"} if name == "place" else value for name, value in ROW.items()}
    expected = renamed | {"id": 2, "userid": 6}
    assert rows_in(decode(form, ROW)) == [ROW]
    assert rows_in(decode(form, OTHER)) == [expected]
    if form in WITHOUT_SCHEMA:
        many = [ROW, OTHER] * 60
        assert rows_in(decode(form, *many)) == [ROW, expected] * 60
        few = [*[ROW] * 300, OTHER, *[ROW] * 300]
        assert rows_in(decode(form, *few)) == [*[ROW] * 300, expected, *[ROW] * 300]


@pytest.mark.parametrize("form", ["json", "debezium-json", "inline", "rows with a schema"])
@pytest.mark.skipif(library() is None, reason="no native code")
def test_records_in_another_case_are_read_by_columns(form: str) -> None:
    flat, other = COLUMNS.remove(2), {"ID": 2, "userId": 6}
    one_by_one = AssertionError("read one by one")
    reader, rows = vars(debezium)["_EventReader"], vars(json_rows)["_RowReader"]
    with (
        patch.object(reader, "read_record", side_effect=one_by_one),
        patch.object(rows, "read_record", side_effect=one_by_one),
    ):
        decoded = decode(form, *[other] * 200, columns=flat)
    assert decoded.changes["userid"].to_pylist() == [6] * 200


LETTERS = {
    "Straße": "STRAßE",
    "ÄÖ": "äÖ",
    "İd": "i̇D",
    "kelvin": "\u212aelvin",
    "ΟΔΟΣ": "οδος",
    "Order Date": "ORDER DATE",
}


@pytest.mark.parametrize("form", ["json", "debezium-json", "inline", "rows with a schema"])
def test_case_is_that_of_any_letter_and_of_no_language(form: str, reading: None) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), False), *((name, pa.int64()) for name in LETTERS)])
    row = {"id": 1} | {name: at for at, name in enumerate(LETTERS.values())}
    decoded = decode(form, row, columns=columns)
    assert decoded.changes.select(list(LETTERS)).to_pylist() == [{name: at for at, name in enumerate(LETTERS)}]
    others = {"id": 1, "STRASSE": 1, "ıd": 2, "AO": 3}
    decoded = decode(form, others, columns=columns, policy=EvolvePolicy())
    assert decoded.remarks == {"unknown_field": {"STRASSE": 1, "ıd": 1, "AO": 1}}


@pytest.mark.parametrize("form", WITHOUT_SCHEMA)
def test_a_record_without_a_schema_with_values_in_two_cases_is_quarantined(form: str, reading: None) -> None:
    both = ROW | {"userId": 6}
    decoded = decode(form, ROW, both, {"id": 3, "userId": 7, "userid": None})
    assert [(row["id"], row["userid"]) for row in decoded.changes.to_pylist()] == [(1, 5), (3, 7)]
    [reason] = decoded.quarantined["reason"].to_pylist()
    assert "'userid' and 'userId' differ by case alone" in reason and "columns" in reason


@pytest.mark.parametrize("form", WITHOUT_SCHEMA)
def test_a_name_that_columns_says_is_no_other_name_of_a_column(form: str, reading: None) -> None:
    policy = EvolvePolicy(renamed={"userId": "user"})
    decoded = decode(form, ROW | {"userId": 6}, policy=policy)
    assert (rows_in(decoded), decoded.remarks) == ([ROW], {"unknown_field": {"userId": 1}})
    columns = COLUMNS.append(pa.field("user", pa.int64()))
    decoded = decode(form, ROW | {"userId": 6}, policy=policy, columns=columns)
    assert decoded.changes.select(["userid", "user"]).to_pylist() == [{"userid": 5, "user": 6}]


@pytest.mark.parametrize("form", ["inline", "avro", "rows of avro"])
@pytest.mark.parametrize("names", [("userid", "userId"), ("userId", "userid")])
def test_of_two_fields_of_a_schema_the_column_takes_its_own_and_the_other_is_left_out(
    form: str, names: tuple[str, str], reading: None
) -> None:
    values = {"userid": 5, "userId": 6}
    row = {"id": 1} | {name: values[name] for name in names} | {"place": ROW["place"]}
    rows = [row, row | {"userid": None}]
    decoded = decode(form, *rows)
    assert [one["userid"] for one in rows_in(decoded)] == [5, None]
    assert decoded.remarks == {"left_out_field": {"userId (only case tells it from 'userid')": 2}}
    refused = decode(form, *rows, policy=EvolvePolicy(by_schema=True, allowed=frozenset(["add"])))
    assert refused.remarks == decoded.remarks


def test_a_message_key_may_be_in_another_case(reading: None) -> None:
    gone = event("d", None, None)
    decoded = decoder("debezium-json", DecoderSchema(COLUMNS, ("id",))).decode(records([gone], [{"ID": 7}]))
    assert [(row["id"], row["_lakebed_op"]) for row in decoded.changes.to_pylist()] == [(7, "d")]
    decoded = decoder("json", DecoderSchema(COLUMNS, ("id",))).decode(records([None], [{"Id": 7}]))
    assert [(row["id"], row["_lakebed_op"]) for row in decoded.changes.to_pylist()] == [(7, "d")]


@pytest.mark.parametrize("form", ["inline", "avro"])
def test_a_message_key_in_another_case_is_not_the_key_of_a_row_that_has_both(form: str, reading: None) -> None:
    """The primary key is ``ID`` now, and ``id`` is any other column."""
    shape = DecoderSchema(COLUMNS, ("id",), source=SourceRules(keys_of_message=True))
    row = {"id": 5, "ID": 2, "userid": 1, "place": ROW["place"]}
    fields = fields_of(row)
    if form == "avro":
        values, reader = as_avro([event("c", row)], fields), of_avro(fields, shape, keys="json")
        values = values.set_column(values.schema.get_field_index("key"), "key", pa.array([b'{"ID":2}'], pa.binary()))
    else:
        values, reader = records([with_schema(event("c", row), fields)], [{"ID": 2}]), decoder("debezium-json", shape)
    with pytest.raises(InvalidSchema, match="another primary key"):
        reader.decode(values)


def test_the_operation_of_a_row_is_no_value_of_a_column(reading: None) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), False), ("op", pa.string())])
    reader = decoder("json", DecoderSchema(columns, ("id",)), {"operation_field": "Op"})
    decoded = reader.decode(records([{"id": 1, "op": "x", "Op": "u"}, {"id": 2, "op": "x", "Op": "d"}]))
    found = [(row["id"], row["op"], row["_lakebed_op"]) for row in decoded.changes.to_pylist()]
    assert found == [(1, "x", "u"), (2, None, "d")]


@pytest.mark.parametrize("form", WITHOUT_SCHEMA)
def test_what_differs_by_case_is_neither_unknown_nor_rescued(form: str, reading: None) -> None:
    columns = COLUMNS.append(pa.field("_rescued", pa.string()))
    rows = [OTHER, OTHER | {"Place": {"ZIP": "2", "more": 1}}]
    decoded = decode(form, *rows, columns=columns, policy=EvolvePolicy(on_mismatch="rescue"))
    assert decoded.changes["_rescued"].to_pylist() == [None, '{"place":{"ZIP":"2","more":1}}']
    decoded = decode(form, *rows, policy=EvolvePolicy(), options={"unknown_fields": "quarantine"})
    assert (decoded.changes["id"].to_pylist(), decoded.quarantined["offset"].to_pylist()) == ([2], [1])
