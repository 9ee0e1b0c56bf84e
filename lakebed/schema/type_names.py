"""Parse column types as people write them: names of Delta and SQL, ``array<…>``, ``map<…, …>``, ``struct<name: …, …>``.

order_id: long not null
lines: array<struct<sku: string, pieces: int>>

The name of a struct's field that is no plain word is quoted with backticks, a backtick in it written twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow as pa

from lakebed.errors import InvalidSchema
from lakebed.quoting import quote_for_spark
from lakebed.schema.conversion import PRIMITIVES, schema_from_json, schema_to_json, type_from_json
from lakebed.settings import suggest

_NAMES = {name: name for name in PRIMITIVES} | {
    "bigint": "long", "int": "integer", "smallint": "short", "tinyint": "byte",
    "text": "string", "varchar": "string", "bool": "boolean", "real": "float",
}  # fmt: skip
_TOKEN = re.compile(r"\s*(decimal\s*\(\s*\d+\s*(?:,\s*\d+\s*)?\)|[A-Za-z0-9_]+|`(?:[^`]|``)+`|[<>,:])")
_WORD = re.compile(r"[A-Za-z0-9_]+")
_NOT_NULL = re.compile(r"\s+not\s+null\s*$", re.IGNORECASE)


def table_schema(columns: Mapping[str, str]) -> pa.Schema:
    """The schema of columns given as name and type. Raises InvalidSchema with the column."""
    return schema_from_json(orjson.dumps({"fields": [_field(name, text) for name, text in columns.items()]}).decode())


def parse_type(column: str, text: str) -> pa.DataType:
    """The type that a text says. Raises InvalidSchema with the column."""
    if _NOT_NULL.search(text):
        raise InvalidSchema(
            f"column {column!r} has the type {text!r}: an added column is null in existing rows, so leave 'not null' out"
        )
    return type_from_json(_TypeText(column, text).whole(), column)


def _field(name: str, text: str) -> dict[str, Any]:
    kind = _NOT_NULL.sub("", text)
    parser = _TypeText(name, kind)
    return {"name": name, "type": parser.whole(), "nullable": kind == text}


def type_text(kind: pa.DataType) -> str:
    """A type of a canonical schema as people write it; the inverse of what ``table_schema`` parses."""
    return _spelled(orjson.loads(schema_to_json(pa.schema([("c", kind)])))["fields"][0]["type"])


def _spelled(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "array":
            return f"array<{_spelled(kind['elementType'])}>"
        case "map":
            return f"map<{_spelled(kind['keyType'])}, {_spelled(kind['valueType'])}>"
        case _:
            members = (f"{_quoted(each['name'])}: {_spelled(each['type'])}" for each in kind["fields"])
            return f"struct<{', '.join(members)}>"


def _quoted(name: str) -> str:
    return name if _WORD.fullmatch(name) else quote_for_spark(name)


class _TypeText:
    """A recursive descent parser of one type."""

    def __init__(self, column: str, text: str) -> None:
        self._column = column
        self._text = text
        self._tokens: list[str] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if not match:
                raise self._wrong(f"{text[position:].strip()!r} is not understood")
            self._tokens.append(match[1])
            position = match.end()
        self._next = 0

    def whole(self) -> Any:
        kind = self._kind()
        if self._next < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._next]!r} is not expected after the type")
        return kind

    def _kind(self) -> Any:
        token = self._take().lower()
        if token.startswith("decimal"):
            digits = re.findall(r"\d+", token)
            return f"decimal({digits[0] if digits else 10},{digits[1] if len(digits) > 1 else 0})"
        match token:
            case "array":
                self._expect("<")
                element = self._kind()
                self._expect(">")
                return {"type": "array", "elementType": element, "containsNull": True}
            case "map":
                self._expect("<")
                key = self._kind()
                self._expect(",")
                value = self._kind()
                self._expect(">")
                return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
            case "struct":
                return {"type": "struct", "fields": self._fields()}
        if token not in _NAMES:
            types = [*_NAMES, "decimal", "array", "map", "struct"]
            raise self._wrong(f"there is no type {token!r}{suggest(token, types)}")
        return _NAMES[token]

    def _fields(self) -> list[dict[str, Any]]:
        self._expect("<")
        out = []
        while True:
            name = self._take()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            self._expect(":")
            out.append({"name": name, "type": self._kind(), "nullable": True})
            if (token := self._take()) == ">":
                return out
            if token != ",":
                raise self._wrong(f"expected ',' or '>', not {token!r}")

    def _take(self) -> str:
        if self._next >= len(self._tokens):
            raise self._wrong("it ends too early")
        self._next += 1
        return self._tokens[self._next - 1]

    def _expect(self, token: str) -> None:
        if (found := self._take()) != token:
            raise self._wrong(f"expected {token!r}, not {found!r}")

    def _wrong(self, reason: str) -> InvalidSchema:
        return InvalidSchema(f"column {self._column!r} has the type {self._text!r}: {reason}")
