"""Converts schemas between Arrow (which lakebed computes with) and Delta's JSON (which the log holds).

Every Delta primitive type has exactly one Arrow type here, so that a table read back is what was written:
``timestamp`` is ``timestamp[us, UTC]``, ``timestamp_ntz`` is ``timestamp[us]``; strings and binaries of any Arrow layout
become plain ones. Types that Delta lacks (unsigned integers, times, durations) are refused by name, never widened
silently.

Arrow's schemas have names, types and nullability. The metadata of fields (comments, column mapping, changes of types, whatever
other tools keep there) stays in Delta's JSON, which ``evolve`` changes in place: what it does not know, it leaves as it is.

**Names of changes** are what change rows call what they say besides the columns of their table (``parts.change_rows``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import orjson
import pyarrow as pa

from lakebed.errors import InvalidSchema
from lakebed.settings import suggest

RESERVED_PREFIX = "_lakebed_"
_TAKEN_NAMES = {
    "_tmp_metadata_row_index": "Spark's reader of Parquet",
    "_metadata": "Spark, whose Delta reader takes it for a column that it adds itself",
}
_MAPPED_CHARACTERS = frozenset(" ,;{}()\n\t=")
"""A name with one of these can't be a stored name: Delta allows it only with column mapping."""
PRIMITIVES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NAMES = {arrow: name for name, arrow in PRIMITIVES.items()}


class SparkSchema(Protocol):
    """The part of pyspark's StructType that is used, without importing Spark."""

    def json(self) -> str: ...


def canonical_schema(schema: pa.Schema | SparkSchema) -> pa.Schema:
    """The schema of a table from a pyarrow or Spark schema. Raises InvalidSchema naming the column."""
    if not isinstance(schema, pa.Schema):
        if not hasattr(schema, "json"):
            raise InvalidSchema(f"a schema must be a pyarrow.Schema or a Spark StructType, not {type(schema).__name__}")
        return schema_from_json(schema.json())
    out = pa.schema([pa.field(f.name, canonical_type(f.type, f.name), f.nullable) for f in schema])
    _check_names(out)
    return out


def schema_to_json(schema: pa.Schema) -> str:
    """Delta's ``schemaString`` of a canonical schema."""
    return orjson.dumps({"type": "struct", "fields": [_field_to_json(field) for field in schema]}).decode()


def schema_from_json(text: str) -> pa.Schema:
    """The Arrow schema of Delta's ``schemaString``, with the names that it shows. Raises InvalidSchema naming the column."""
    return schema_from_fields(orjson.loads(text)["fields"])


def schema_from_fields(fields: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """The Arrow schema of the fields of Delta's JSON. Raises InvalidSchema naming the column."""
    schema = pa.schema([_field_from_json(field, field["name"]) for field in fields])
    _check_names(schema)
    return schema


def check_new_names(schema: pa.Schema) -> None:
    """For a table that is made or adopted. Raises InvalidSchema naming a column that some reader would take for its own."""
    for name, why in [(name, why_no_name(name)) for name in schema.names]:
        if why is not None:
            raise InvalidSchema(f"column {name!r}: {why}; rename it")
    for name, why in [(name, why_no_field_name(name)) for name in all_names(schema)]:
        if why is not None:
            raise InvalidSchema(f"field {name!r}: {why}; rename it")


def needs_column_mapping(schema: pa.Schema) -> bool:
    """Whether a column, or a field at any depth, has a name that files can't have."""
    return not all(is_storable(name) for name in all_names(schema))


def is_storable(name: str) -> bool:
    """Whether files may have the name: it has neither a character that Delta forbids there nor a control character."""
    return _MAPPED_CHARACTERS.isdisjoint(name) and not any(ord(character) < 32 for character in name)


def uses_timestamp_ntz(schema: pa.Schema) -> bool:
    """Whether a column, at any depth, needs Delta's ``timestampNtz`` table feature."""
    return any(pa.types.is_timestamp(leaf) and leaf.tz is None for field in schema for leaf in _leaves(field.type))


def check_columns(names: Iterable[str], schema: pa.Schema, purpose: str) -> None:
    """Raises InvalidSchema if a named column is missing, listed twice or nested."""
    seen: set[str] = set()
    for name in names:
        index = schema.get_field_index(name)
        if index < 0:
            raise InvalidSchema(
                f"{purpose} names the column {name!r}, which the schema lacks{suggest(name, schema.names)}"
            )
        if pa.types.is_nested(schema.field(index).type):
            raise InvalidSchema(
                f"{purpose} names the column {name!r}, which is {schema.field(index).type}; nested columns can't be used there"
            )
        if name in seen:
            raise InvalidSchema(f"{purpose} names the column {name!r} twice")
        seen.add(name)


def _check_fields(kind: pa.DataType, path: str) -> None:
    """Checks the structs at any depth below a column."""
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise InvalidSchema(f"column {path!r} is a struct without fields, which no Parquet file can hold")
        seen: set[str] = set()
        for child in kind:
            if child.name.lower() in seen:
                raise InvalidSchema(f"two fields of {path!r} are named {child.name!r} (names differ by more than case)")
            seen.add(child.name.lower())
    if pa.types.is_nested(kind):
        for at in range(kind.num_fields):
            child = kind.field(at)
            _check_fields(child.type, f"{path}.{child.name}" if pa.types.is_struct(kind) else path)


def is_reserved(name: str) -> bool:
    """Whether only lakebed may give a column this name."""
    return name.lower().startswith(RESERVED_PREFIX)


def why_no_name(name: str) -> str | None:
    """Why no column of a table can have this name, as a clause; None if one can."""
    if (why := why_no_field_name(name)) is not None:
        return why
    if is_reserved(name):
        return f"names that begin with {RESERVED_PREFIX!r} are reserved for lakebed"
    if (what := _TAKEN_NAMES.get(name.lower())) is not None:
        return f"the name is reserved for {what}"
    return None


def why_no_field_name(name: str) -> str | None:
    """Why no column, and no field of a struct, can have this name, as a clause; None if one can."""
    if not name:
        return "a name must not be empty"
    return "a name must not have a NUL character, where some readers end it" if "\0" in name else None


def _check_names(schema: pa.Schema) -> None:
    seen: set[str] = set()
    if not len(schema):
        raise InvalidSchema("a table needs at least one column")
    for name in schema.names:
        if name.lower() in seen:
            raise InvalidSchema(f"two columns are named {name!r} (names differ by more than case)")
        seen.add(name.lower())
        if is_reserved(name):
            raise InvalidSchema(f"column {name!r}: names that begin with {RESERVED_PREFIX!r} are reserved")
    for field in schema:
        _check_fields(field.type, field.name)
    if "" in all_names(schema):
        raise InvalidSchema("column '': a name must not be empty")


def all_names(schema: pa.Schema) -> Iterator[str]:
    """The names of columns and of fields at any depth."""
    for field in schema:
        yield from _names_within(field)


def _names_within(field: pa.Field) -> Iterator[str]:
    yield field.name
    kind = field.type
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _names_within(child)
    elif pa.types.is_map(kind):
        yield from _names_within(pa.field("key", kind.key_type))
        yield from _names_within(pa.field("value", kind.item_type))
    elif pa.types.is_list(kind):
        yield from _names_within(pa.field("element", kind.value_type))


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves(child.type)
    elif pa.types.is_map(kind):
        yield from _leaves(kind.key_type)
        yield from _leaves(kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(kind.value_type)
    else:
        yield kind


def canonical_type(kind: pa.DataType, column: str) -> pa.DataType:
    """The type that a column of this Arrow type gets. Raises InvalidSchema naming the column."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(c.name, canonical_type(c.type, f"{column}.{c.name}"), c.nullable) for c in kind])
    if pa.types.is_map(kind):
        item = pa.field("value", canonical_type(kind.item_type, f"{column}.value"), kind.item_field.nullable)
        return pa.map_(canonical_type(kind.key_type, f"{column}.key"), item)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(
            pa.field("element", canonical_type(kind.value_type, f"{column}.element"), kind.value_field.nullable)
        )
    if kind in _NAMES:
        return kind
    hint = "; use a signed integer type" if pa.types.is_unsigned_integer(kind) else ""
    raise InvalidSchema(f"column {column!r} is {kind}, a type that Delta tables do not have{hint}")


def type_to_json(kind: pa.DataType) -> Any:
    """A canonical type as Delta's JSON has it: a text, or a dict for a nested type."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field_to_json(child) for child in kind]}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": type_to_json(kind.key_type),
            "valueType": type_to_json(kind.item_type),
            "valueContainsNull": kind.item_field.nullable,
        }
    if pa.types.is_list(kind):
        return {
            "type": "array",
            "elementType": type_to_json(kind.value_type),
            "containsNull": kind.value_field.nullable,
        }
    return _NAMES[kind]


def _field_to_json(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "type": type_to_json(field.type), "nullable": field.nullable, "metadata": {}}


def _field_from_json(field: Mapping[str, Any], column: str) -> pa.Field:
    return pa.field(field["name"], type_from_json(field["type"], column), field.get("nullable", True))


def type_from_json(kind: Any, column: str) -> pa.DataType:
    """The Arrow type of one in Delta's JSON. Raises InvalidSchema naming the column."""
    if isinstance(kind, dict):
        if kind["type"] == "struct":
            return pa.struct([_field_from_json(child, f"{column}.{child['name']}") for child in kind["fields"]])
        if kind["type"] == "map":
            item = pa.field("value", type_from_json(kind["valueType"], column), kind["valueContainsNull"])
            return pa.map_(type_from_json(kind["keyType"], column), item)
        if kind["type"] == "array":
            return pa.list_(pa.field("element", type_from_json(kind["elementType"], column), kind["containsNull"]))
        raise InvalidSchema(f"column {column!r} has the type {kind['type']!r}, which lakebed does not know")
    if kind in PRIMITIVES:
        return PRIMITIVES[kind]
    if decimal := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    raise InvalidSchema(f"column {column!r} has the type {kind!r}, which lakebed does not know")


# -- What change rows call what they say -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeNames:
    """The names beside the columns of one table; the defaults are the usual ones."""

    type: str = "_change_type"
    """``upsert``, ``delete`` or ``truncate``."""
    sequence: str = "_change_sequence"
    """What orders the changes, where it is no column."""
    version: str = "_commit_version"
    time: str = "_commit_timestamp"

    @staticmethod
    def beside(columns: Iterable[str]) -> ChangeNames:
        """The names beside columns of these names: one that a column has gets one more underscore in front."""
        taken = {name.lower() for name in columns}
        names = {}
        for each in fields(ChangeNames):
            name = str(each.default)
            while name in taken:
                name = f"_{name}"
            names[each.name] = name
        return ChangeNames(**names)

    def renamed(self, newer: ChangeNames) -> list[str]:
        """How names differ from newer ones: ``_change_type is __change_type``."""
        both = [(getattr(self, each.name), getattr(newer, each.name)) for each in fields(self)]
        return [f"{old} is {new}" for old, new in both if old != new]


def is_change_name(name: str) -> bool:
    """Whether change rows of some table may call so what they say besides its columns."""
    return name.startswith("_") and f"_{name.lstrip('_').lower()}" in {each.default for each in fields(ChangeNames)}
