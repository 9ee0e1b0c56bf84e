"""What the schema of some records says about their rows, for one table; and the rows and the metadata in such events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.debezium.changes import ChangeRules, Mask, MetadataPath
from lakebed.decode.debezium.old_rows import RowFields
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.json.connect_types import PLAIN, LogicalType
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.record_format import NarrowingReader, ReaderOfDefaults, RecordReader, Wanted
from lakebed.decode.source_order import metadata_type
from lakebed.decode.typed.values import column_field, plain_logical, plain_values
from lakebed.decode.unknown_fields import KnownFields
from lakebed.positions.source_columns import RecordColumns
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import Needed
from lakebed.schema.possible_columns import described

_DIGITS = r"^-?[0-9]{1,18}$"


def members_of(rows: pa.RecordBatch, name: str) -> tuple[dict[str, pa.Array], Mask]:
    """The fields of a struct column, and which structs are not null; nothing if there is no such column."""
    at = rows.schema.get_field_index(name)
    if at < 0 or not pa.types.is_struct(rows.schema.field(at).type):
        return {}, np.zeros(rows.num_rows, bool)
    column = rows.column(at)
    names = [child.name for child in column.type]
    return dict(zip(names, column.flatten(), strict=True)), np.asarray(column.is_valid())


def column_of(rows: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """A column; nulls if there is none of this type."""
    at = rows.schema.get_field_index(name)
    if at < 0 or rows.schema.field(at).type != kind:
        return pa.nulls(rows.num_rows, kind)
    return rows.column(at)


def metadata_of(rows: pa.RecordBatch, path: MetadataPath) -> pa.Array:
    """Metadata of events; null where it is missing, or of another type."""
    parent, name = path
    kind = metadata_type(parent, name)
    given = members_of(rows, parent)[0] if parent else dict(zip(rows.schema.names, rows.columns, strict=True))
    values = given.get(name)
    if values is None or values.null_count == len(values):
        return pa.nulls(rows.num_rows, kind)
    values = plain_values(values)
    if values.type == kind:
        return values
    if kind == pa.int64() and pa.types.is_string(values.type):
        digits = pc.fill_null(pc.match_substring_regex(values, _DIGITS), False)
        values = pc.if_else(digits, values, pa.scalar(None, pa.string()))
    elif kind != pa.int64() or not (_is_whole(values.type) or pa.types.is_integer(values.type)):
        return pa.nulls(rows.num_rows, kind)
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return pa.array(
            [None if value is None or abs(value) >= 1 << 63 else int(value) for value in values.to_pylist()], kind
        )


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and kind.scale == 0)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the schema of a group says about its rows."""

    reader: RecordReader
    narrow: RecordReader
    """The same for what is needed of most records, without what no column takes."""
    decoder_schema: DecoderSchema
    """With the columns of fields whose names differ by case alone."""
    of_row: Mapping[str, LogicalType]
    """The logical types of a row's fields."""
    written: Mapping[str, LogicalType]
    """The same for values that are written as JSON has them."""
    known: KnownFields | None
    """None where fields that no column takes are ignored."""
    unknown: tuple[str, ...]
    """The fields that no column takes."""
    left_out: tuple[str, ...]
    """The fields that no column can be like, each with the reason."""
    needed: SchemaChange | None
    """What the table must become before the rows can be read."""
    said: RowFields | None
    """What the schema says of the fields, by column; None if it does not say which have defaults."""
    columns: RecordColumns | None
    """What the schema of events says of the table's columns."""


def shape_of(
    reader: RecordReader,
    decoder_schema: DecoderSchema,
    options: JsonOptions,
    rules: ChangeRules | None,
    operation_field: str | None,
) -> Shape:
    """``rules``: of events; None if the records are rows."""
    fields, logical = row_of(reader, events=rules is not None)
    columns, policy, unknown_fields = decoder_schema.columns, decoder_schema.policy, options.unknown_fields
    ignored = None if operation_field in columns.names else operation_field
    row = pa.schema([column_field(one, logical.get(one.name, PLAIN)) for one in fields if one.name != ignored])
    if unknown_fields != "warn":  # no column is made of fields that are left out, or sent to the quarantine
        policy = replace(policy, allowed=policy.allowed - {"add"})
    needed = replace(decoder_schema, policy=policy).needed(row) if fields else Needed(None, {})
    left_out = needed.left_out if unknown_fields == "warn" and not policy.rescues else {}
    known = None
    if unknown_fields != "ignore":
        also = [*decoder_schema.kept, *([operation_field] if operation_field else [])]
        known = KnownFields(columns, options.placeholder, also, left_out)
    schema = decoder_schema.reading(row.names, declared=True)
    example = {schema.column_of.get(one.name, one.name): _example(one.type) for one in fields}
    wanted = _wanted(schema, rules, operation_field)
    defaults = None if rules is None else _defaults_of_row(reader)
    # Where a schema can't say which fields have defaults, as in Protobuf, null may be sent as a zero.
    may_be_null = {one.name: one.nullable or defaults is None for one in fields}
    said = RowFields.given(may_be_null, defaults or {}).by_column(schema)
    return Shape(
        reader=reader,
        narrow=reader.narrowed(wanted) if isinstance(reader, NarrowingReader) else reader,
        decoder_schema=schema,
        of_row=logical,
        written={one.name: plain_logical(one.type, logical.get(one.name, PLAIN)) for one in fields},
        known=known,
        unknown=() if known is None else known.unknown_in(example),
        left_out=described(left_out),
        needed=needed.change,
        said=None if defaults is None else said,
        columns=decoder_schema.columns_in(said.names, said.filled) if rules is not None and fields else None,
    )


def row_of(reader: RecordReader, *, events: bool) -> tuple[list[pa.Field], dict[str, LogicalType]]:
    """The fields of the rows in records, with their logical types; none in events of another form."""
    if not events:
        return list(reader.schema), dict(reader.logical_types)
    for side in ("after", "before"):
        at = reader.schema.get_field_index(side)
        if at >= 0 and pa.types.is_struct(reader.schema.field(at).type):
            return list(reader.schema.field(at).type), dict(reader.logical_types.get(side, PLAIN).fields)
    return [], {}


def _defaults_of_row(reader: RecordReader) -> Mapping[str, Any] | None:
    """The defaults of the columns of rows in events; None if the schema does not say them."""
    if not isinstance(reader, ReaderOfDefaults):
        return None
    found = [reader.defaults[side] for side in ("after", "before") if side in reader.defaults]
    return found[0] if found else None


def _example(kind: pa.DataType) -> Any:
    """A value with every field that values of a type can have; None for what has no fields."""
    if pa.types.is_struct(kind):
        return {child.name: _example(child.type) for child in kind}
    if pa.types.is_map(kind):
        return {"": _example(kind.item_type)}
    return [_example(kind.value_type)] if pa.types.is_list(kind) else None


def _wanted(schema: DecoderSchema, rules: ChangeRules | None, operation_field: str | None) -> Wanted:
    """The fields that are looked at."""
    row = [given for name in schema.columns.names for given in schema.names_of(name)]
    if rules is None:
        return dict.fromkeys([*row, *filter(None, [operation_field])])
    before = [given for name in rules.before_names for given in schema.names_of(name)]
    wanted: dict[str, list[str] | None] = {"op": None, "after": row, "before": before}
    for parent, name in rules.metadata:
        if parent:
            wanted.setdefault(parent, []).append(name)  # type: ignore[union-attr]
        else:
            wanted[name] = None
    return wanted
