"""From a JSON Schema to the columns of a row. Drafts 4 to 2020-12.

    object        struct, or map if only ``additionalProperties`` or one pattern says what is in it
    array         list
    string        string; with format date-time timestamp[us, UTC], date date32; with contentEncoding base64 binary
    integer       int64, or what ``connect.type`` or an ``int32`` format says; number double; boolean bool
    anything      string with the JSON text: no type, several types, objects and arrays without a schema of their members
    null          ``type`` with null, and oneOf or anyOf with a null branch, make a field nullable; so does not being required

A schema that contains itself has no type. What a schema demands beyond types (patterns, ranges, conditions) is not checked.
Kafka Connect's hints (``title`` is the schema's name, ``connect.type``, ``connect.parameters``) give logical types.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import pyarrow as pa

from lakebed.decode.debezium.inline_schemas import ANY_VALUE, is_zero
from lakebed.decode.decoder import LEVELS_MAX
from lakebed.decode.json.connect_types import INTEGER, KIND_OF_NAME, PLAIN, Kind, LogicalType
from lakebed.decode.json.text import Unreadable

SCHEMA_BYTES_MAX = 8 * 2**20
_FIELDS_MAX = 10_000
_REFERENCES_MAX = 64
"""How many references may lead from one to the next."""
_ANYTHING = pa.string()
_INTEGERS = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64()}
_FLOATS = {"float32": pa.float32(), "float64": pa.float64(), "float": pa.float32(), "double": pa.float64()}
_SIMPLE = (pa.string(), pa.bool_(), *_INTEGERS.values())
_TEXTS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}
_DECIMAL_NAME = "org.apache.kafka.connect.data.Decimal"


@dataclass(frozen=True, slots=True)
class JsonColumn:
    """The type of a value. ``read_as``: the logical type by which JSON is read; ``logical_type``: what is not in ``type``."""

    type: pa.DataType
    nullable: bool = False
    logical_type: LogicalType = PLAIN
    read_as: LogicalType = PLAIN
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Of a struct: those of its fields (``ReaderOfDefaults``)."""


def _is_simple(column: JsonColumn) -> bool:
    """Whether JSON has values of the column as it has defaults."""
    return column.type in _SIMPLE and column.logical_type == PLAIN


def columns_of(schema_text: str, references: Mapping[str, str]) -> tuple[dict[str, JsonColumn], bool]:
    """The columns of a record, and whether a record is an object of them; else it is the one column ``value``.

    Raises ``Unreadable``.
    """
    documents = _Documents(schema_text, references)
    compiler = _Compiler(documents)
    root = compiler.resolved(documents.main, "the root")
    if compiler.is_struct(root):
        return compiler.members(root, "", (id(documents.main[1]),)), True
    column = compiler.column(documents.main, "value", ())
    return {"value": column}, False


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """A schema that was merged into one of another document, whose references are relative to another URI."""

    schema: tuple[str, Any]


class _Documents:
    """The schema and those that it refers to. A schema is a pair: the URI of its document, and what stands there."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        if len(text) + sum(len(other) for other in references.values()) > SCHEMA_BYTES_MAX:
            raise Unreadable(f"the JSON Schema has more than {SCHEMA_BYTES_MAX} bytes with its references")
        main = _parsed(text, "the JSON Schema")
        base = _id_of(main) or "main.lakebed.json"
        self.main = base, main
        self._named: dict[str, tuple[str, Any]] = {}
        for name, other in references.items():
            document = _parsed(other, f"the referenced JSON Schema {name!r}")
            self._add(name, document)
            self._named[urljoin(base, name)] = (name, document)
        self._add(base, main)

    def _add(self, uri: str, document: Any) -> None:
        self._named[uri] = (uri, document)
        for base, schema in _subschemas(document, uri):
            if identifier := _id_of(schema):
                self._named.setdefault(urljoin(base, identifier), (urljoin(base, identifier), schema))
            if isinstance(schema, Mapping) and isinstance(schema.get("$anchor"), str):
                self._named.setdefault(f"{base}#{schema['$anchor']}", (base, schema))

    def find(self, base: str, reference: Any, path: str) -> tuple[str, Any]:
        if not isinstance(reference, str):
            raise Unreadable(f"the JSON Schema's $ref at {path} is not a string")
        for uri in (urljoin(base, reference), reference):
            if uri in self._named:
                return self._named[uri]
            document, fragment = urldefrag(uri)
            if document in self._named and (not fragment or fragment.startswith("/")):
                return self._pointed(self._named[document], fragment, reference, path)
        raise Unreadable(
            f"the JSON Schema refers to {reference[:200]!r} at {path}, which is neither in it nor a reference of it"
        )

    def _pointed(self, found: tuple[str, Any], pointer: str, reference: str, path: str) -> tuple[str, Any]:
        base, schema = found
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(schema, list) and key.isdecimal() and int(key[:9]) < len(schema):
                schema = schema[int(key)]
            elif isinstance(schema, Mapping) and key in schema:
                schema = schema[key]
            else:
                raise Unreadable(f"the JSON Schema refers to {reference[:200]!r} at {path}, where nothing is")
            base = urljoin(base, _id_of(schema) or "")
        return base, schema


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Unreadable(f"{what} is not JSON: {reason}") from error


def _id_of(schema: Any) -> str:
    """The schema's ``$id`` (``id`` in draft 4), without an empty fragment."""
    found = schema.get("$id", schema.get("id")) if isinstance(schema, Mapping) else None
    return found.removesuffix("#") if isinstance(found, str) else ""


def _subschemas(document: Any, uri: str) -> Iterator[tuple[str, Any]]:
    """Everything in the document, each with the URI that its references are relative to."""
    waiting = [(uri, document)]
    while waiting:
        base, value = waiting.pop()
        if isinstance(value, Mapping):
            yield base, value
            base = urljoin(base, _id_of(value))
            waiting += [(base, inner) for inner in value.values()]
        elif isinstance(value, list):
            waiting += [(base, inner) for inner in value]


class _Compiler:
    def __init__(self, documents: _Documents) -> None:
        self._documents = documents
        self._left = _FIELDS_MAX

    def resolved(self, schema: tuple[str, Any], path: str, level: int = 0) -> tuple[str, Any]:
        """The schema with what its ``$ref`` and ``allOf`` lead to, beside its own words."""
        own: dict[str, Any] = {}
        for _ in range(_REFERENCES_MAX):
            base, words = schema
            if not isinstance(words, Mapping):
                if words is False:
                    raise Unreadable(f"the JSON Schema allows no value at {path}")
                if words is not True:
                    raise Unreadable(f"the JSON Schema is not a schema at {path}")
                words = {}
            own = {**words, **own}
            if "$ref" not in words:
                return self._with_all_of((base, own), path, level)
            del own["$ref"]
            schema = self._documents.find(base, words["$ref"], path)
        raise _endless(path)

    def _with_all_of(self, schema: tuple[str, Any], path: str, level: int) -> tuple[str, Any]:
        base, words = schema
        parts = words.get("allOf")
        if not isinstance(parts, list):
            return schema
        if level == LEVELS_MAX:
            raise _endless(path)
        merged = {name: value for name, value in words.items() if name != "allOf"}
        for part in parts:
            self._spend(path)
            inner_base, inner = self.resolved((base, part), path, level + 1)
            others = {name: _elsewhere(inner_base, one) for name, one in _mapping(inner, "properties").items()}
            properties = {**_mapping(merged, "properties")}
            properties |= {name: one for name, one in others.items() if name not in properties}
            required = [*_strings(merged, "required"), *_strings(inner, "required")]
            merged = {**inner, **merged}
            if properties:
                merged["properties"] = properties
            if required:
                merged["required"] = required
        return base, merged

    def is_struct(self, schema: tuple[str, Any]) -> bool:
        words = schema[1]
        return bool(_mapping(words, "properties")) and words.get("type", "object") in ("object", ["object"])

    def members(self, schema: tuple[str, Any], path: str, inside: tuple[int, ...]) -> dict[str, JsonColumn]:
        base, words = schema
        required = set(_strings(words, "required"))
        out = {}
        for name, member in _mapping(words, "properties").items():
            column = self.column(_elsewhere(base, member).schema, f"{path}{name}", inside)
            nullable = column.nullable or name not in required
            out[name] = replace(column, nullable=nullable)
        return out

    def column(self, schema: tuple[str, Any], path: str, inside: tuple[int, ...]) -> JsonColumn:
        """``inside``: the schemas that this one is in, by identity."""
        self._spend(path)
        base, words = self.resolved(schema, path)
        inside = self._entered(schema, inside, path)
        kinds = [kind for kind in _kinds(words) if kind != "null"]
        nullable = "null" in _kinds(words)
        branches = words.get("oneOf", words.get("anyOf"))
        if isinstance(branches, list) and not kinds:
            return self._union([(base, branch) for branch in branches], path, inside, nullable)
        column = self._of_kinds((base, words), kinds, path, inside)
        return replace(column, nullable=nullable or column.nullable)

    def _entered(self, schema: tuple[str, Any], inside: tuple[int, ...], path: str) -> tuple[int, ...]:
        found = schema
        for _ in range(_REFERENCES_MAX):
            if not isinstance(found[1], Mapping) or "$ref" not in found[1]:
                break
            found = self._documents.find(found[0], found[1]["$ref"], path)
        if id(found[1]) in inside:
            raise Unreadable(
                f"the JSON Schema of {path!r} contains itself, and columns nest only so deep as their type says"
            )
        if len(inside) >= LEVELS_MAX:
            raise Unreadable(f"the JSON Schema of {path[:200]!r} is nested more than {LEVELS_MAX} deep")
        return (*inside, id(found[1])) if isinstance(found[1], Mapping) else inside

    def _union(self, branches: list[tuple[str, Any]], path: str, inside: tuple[int, ...], nullable: bool) -> JsonColumn:
        columns = []
        for branch in branches:
            _, words = self.resolved(branch, path)
            if _kinds(words) == ["null"]:
                nullable = True
            else:
                columns.append(self.column(branch, path, inside))
        nullable = nullable or any(column.nullable for column in columns)
        same = {(column.type, column.logical_type, column.read_as) for column in columns}
        if len(same) == 1:
            return replace(columns[0], nullable=nullable)
        return JsonColumn(_ANYTHING, nullable)

    def _of_kinds(self, schema: tuple[str, Any], kinds: list[str], path: str, inside: tuple[int, ...]) -> JsonColumn:
        words = schema[1]
        match sorted(set(kinds)):
            case ["object"]:
                return self._object(schema, path, inside)
            case ["array"]:
                return self._array(schema, path, inside)
            case ["boolean"]:
                return JsonColumn(pa.bool_())
            case ["string"]:
                return _string(words)
            case ["integer"]:
                return _number(words, pa.int64())
            case ["number"] | ["integer", "number"]:
                return _number(words, pa.float64())
            case []:
                return JsonColumn(_ANYTHING, nullable=True)
        return JsonColumn(_ANYTHING)

    def _object(self, schema: tuple[str, Any], path: str, inside: tuple[int, ...]) -> JsonColumn:
        base, words = schema
        if _mapping(words, "properties"):
            members = self.members(schema, f"{path}.", inside)
            kind = pa.struct([pa.field(name, one.type, one.nullable) for name, one in members.items()])
            if KIND_OF_NAME.get(_title(words)) is Kind.DECIMAL_VARIABLE and set(members) == {"scale", "value"}:
                return JsonColumn(kind, logical_type=LogicalType(Kind.DECIMAL_VARIABLE))
            logical = {name: one.logical_type for name, one in members.items() if one.logical_type != PLAIN}
            read_as = {name: one.read_as for name, one in members.items() if one.read_as != PLAIN}
            found = {
                name: self._default(_elsewhere(base, one).schema, path) for name, one in words["properties"].items()
            }
            defaults = {
                name: one if is_zero(one) or _is_simple(members[name]) else ANY_VALUE
                for name, one in found.items()
                if one is not None
            }
            return JsonColumn(kind, False, _struct_type(logical), _struct_type(read_as), defaults)
        patterns = _mapping(words, "patternProperties")
        rest = words.get("additionalProperties")
        if len(patterns) == 1 and rest in (None, False):
            rest = next(iter(patterns.values()))
        elif patterns:
            return JsonColumn(_ANYTHING)
        if not isinstance(rest, Mapping):
            return JsonColumn(_ANYTHING)
        value = self.column((base, rest), f"{path}.value", inside)
        if _has_decimals(value.read_as):
            return JsonColumn(_ANYTHING)  # as before maps were read by logical types, so that columns keep their type
        of_values = LogicalType(item=value.logical_type) if value.logical_type != PLAIN else PLAIN
        values_read_as = LogicalType(item=value.read_as) if value.read_as != PLAIN else PLAIN
        of_map = pa.map_(pa.string(), pa.field("value", value.type, value.nullable))
        return JsonColumn(of_map, False, of_values, values_read_as)

    def _default(self, schema: tuple[str, Any], path: str) -> Any:
        """The default of a member, which Kafka Connect's converter writes beside the type of a value that may be null."""
        base, words = self.resolved(schema, path)
        branches = words.get("oneOf", words.get("anyOf"))
        several = (
            [words, *(self.resolved((base, one), path)[1] for one in branches)]
            if isinstance(branches, list)
            else [words]
        )
        return next((one["default"] for one in several if one.get("default") is not None), None)

    def _array(self, schema: tuple[str, Any], path: str, inside: tuple[int, ...]) -> JsonColumn:
        base, words = schema
        items = words.get("items")
        if not isinstance(items, Mapping) or "prefixItems" in words:
            return JsonColumn(_ANYTHING)
        item = self.column((base, items), f"{path}.element", inside)
        logical = LogicalType(item=item.logical_type) if item.logical_type != PLAIN else PLAIN
        read_as = LogicalType(item=item.read_as) if item.read_as != PLAIN else PLAIN
        return JsonColumn(pa.list_(pa.field("element", item.type, item.nullable)), False, logical, read_as)

    def _spend(self, path: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise Unreadable(
                f"the JSON Schema has more than {_FIELDS_MAX} fields, counting those of its nested objects ({path[:200]})"
            )


def _endless(path: str) -> Unreadable:
    return Unreadable(f"the JSON Schema's references at {path} lead to each other, or never end")


def _elsewhere(base: str, schema: Any) -> _Elsewhere:
    return schema if isinstance(schema, _Elsewhere) else _Elsewhere((base, schema))


def _struct_type(fields: Mapping[str, LogicalType]) -> LogicalType:
    return LogicalType(fields=tuple(fields.items())) if fields else PLAIN


def _has_decimals(read_as: LogicalType) -> bool:
    """Whether values are decimals, or hold some."""
    within = [read_as.of_item()] if read_as.item else [one for _, one in read_as.fields]
    return read_as.kind is Kind.DECIMAL_BYTES or any(map(_has_decimals, within))


def _string(words: Mapping[str, Any]) -> JsonColumn:
    if words.get("connect.type") == "bytes" or words.get("contentEncoding") == "base64":
        if _title(words) == _DECIMAL_NAME:
            return _decimal(words)
        return JsonColumn(pa.binary())
    given = "date-time" if KIND_OF_NAME.get(_title(words)) is Kind.TIMESTAMP_TEXT else words.get("format")
    if isinstance(given, str) and given in _TEXTS:
        return JsonColumn(_TEXTS[given], read_as=LogicalType(Kind.TEXT))
    return JsonColumn(pa.string())


def _number(words: Mapping[str, Any], otherwise: pa.DataType) -> JsonColumn:
    if _title(words) == _DECIMAL_NAME:
        return _decimal(words)
    given = words.get("connect.type", words.get("format"))
    known = _INTEGERS if pa.types.is_integer(otherwise) else _FLOATS
    found = known.get(given, otherwise) if isinstance(given, str) else otherwise
    kind = KIND_OF_NAME.get(_title(words))
    return JsonColumn(found, logical_type=LogicalType(kind) if kind is not None else PLAIN)


def _title(words: Mapping[str, Any]) -> str:
    """The name of Kafka Connect's schema, if it is one of its converter."""
    title = words.get("title")
    return title if isinstance(title, str) else ""


def _decimal(words: Mapping[str, Any]) -> JsonColumn:
    """Connect's decimal: base64 of the unscaled bytes, or a number, as its converter is set."""
    parameters = _mapping(words, "connect.parameters")
    scale, precision = str(parameters.get("scale")), str(parameters.get("connect.decimal.precision", 38))
    if INTEGER.fullmatch(scale) is None or INTEGER.fullmatch(precision) is None:
        raise Unreadable("the JSON Schema has a decimal of Kafka Connect without a scale")
    digits = min(38, int(precision))
    if not 0 <= int(scale) <= digits or digits < 1:
        raise Unreadable(
            f"the JSON Schema has a decimal of precision {precision} and scale {scale}, which no column can hold"
        )
    return JsonColumn(pa.decimal128(digits, int(scale)), read_as=LogicalType(Kind.DECIMAL_BYTES, scale=int(scale)))


def _kinds(words: Mapping[str, Any]) -> list[str]:
    """The words of ``type``; of a schema without them, what its other words say; else none."""
    kinds = words.get("type")
    if isinstance(kinds, str):
        kinds = [kinds, "null"] if words.get("nullable") is True else [kinds]  # as in OpenAPI
    if isinstance(kinds, list):
        return [kind for kind in kinds if isinstance(kind, str)]
    if "oneOf" in words or "anyOf" in words:
        return []
    if "properties" in words or isinstance(words.get("additionalProperties"), Mapping):
        return ["object"]
    return ["array"] if "items" in words else _kinds_of_values(words)


def _kinds_of_values(words: Mapping[str, Any]) -> list[str]:
    """The types of the values that a schema lists."""
    values = words.get("enum", [words["const"]] if "const" in words else [])
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    kinds = (
        {names.get(type(value), "null" if value is None else "any") for value in values}
        if isinstance(values, list)
        else set()
    )
    return sorted(kinds)


def _mapping(words: Any, name: str) -> Mapping[str, Any]:
    found = words.get(name) if isinstance(words, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _strings(words: Mapping[str, Any], name: str) -> list[str]:
    found = words.get(name)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
