"""What the service takes and answers, as JSON: tables, schemas and times of Arrow, and the JSON Schemas of all values.

**Errors** are problem documents (RFC 9457, ``application/problem+json``). ``type`` is ``urn:lakebed:problem:`` and the class of
the error in words, such as ``table-not-found``; a client makes the same error of it again (``lakebed.client``). ``detail`` is the
text of the error. Its data (``version``, ``oldest`` …) are members too.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, TypeAlias

import orjson
import pyarrow as pa
from starlette.responses import Response

from lakebed.coordination.jobs import JobState
from lakebed.errors import (
    InvalidInput,
    LakebedError,
    MissingPrerequisite,
    Retry,
    TableExists,
    TableNotFound,
    Unsupported,
    VersionNotFound,
)
from lakebed.schema.type_names import type_text


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a metadata table as objects. A map becomes an object, a time an ISO text in UTC."""
    columns = [[plain(value, field.type) for value in table[field.name].to_pylist()] for field in table.schema]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def plain(value: Any, kind: pa.DataType) -> Any:
    """A value of an Arrow type as JSON has it."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {str(name): plain(each, kind.item_type) for name, each in value}
    if pa.types.is_list(kind):
        return [plain(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    if pa.types.is_timestamp(kind):
        return time_text(int(value.timestamp() * 1000))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return value
    return str(value)


def columns_of(schema: pa.Schema) -> list[dict[str, Any]]:
    """The columns with types as people write them (``decimal(10,2)``, ``array<string>``)."""
    return [{"name": field.name, "type": type_text(field.type), "nullable": field.nullable} for field in schema]


def time_text(milliseconds: int) -> str:
    """An ISO text, UTC."""
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- Schemas of what the service takes and answers -------------------------------------------------------------------------


Schema: TypeAlias = Mapping[str, Any]
"""A JSON Schema (2020-12)."""

TEXT: Schema = {"type": "string", "maxLength": 10_000}
NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 1_000}
WHOLE: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TRUTH: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
VERSION: Schema = {"type": "integer", "minimum": 0, "maximum": 2**53}
TEXTS: Schema = {
    "type": "object",
    "additionalProperties": {"type": "string", "maxLength": 10_000},
    "maxProperties": 2_000,
}
NAMES: Schema = {"type": "array", "items": NAME, "maxItems": 2_000}


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these members and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def listed(items: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    """The schema, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Schema:
    """A reference to one of ``COMPONENTS``."""
    return {"$ref": f"#/components/schemas/{name}"}


def of_arrow(schema: pa.Schema) -> Schema:
    """A list of objects, a row each, as ``answers.rows_of`` makes them."""
    return listed(record({field.name: _of_type(field.type) for field in schema}))


def _of_type(kind: pa.DataType) -> Schema:
    if pa.types.is_map(kind):
        return or_null({"type": "object", "additionalProperties": _of_type(kind.item_type)})
    if pa.types.is_list(kind):
        return or_null(listed(_of_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return or_null(record({field.name: _of_type(field.type) for field in kind}))
    if pa.types.is_boolean(kind):
        return {"type": ["boolean", "null"]}
    if pa.types.is_integer(kind):
        return {"type": ["integer", "null"]}
    if pa.types.is_floating(kind):
        return {"type": ["number", "null"]}
    return {"type": ["string", "null"]}


COLUMN = record({"name": {"type": "string"}, "type": {"type": "string"}, "nullable": TRUTH})
FIGURES = record(
    {
        name: COUNT
        for name in ("rows", "dead_rows", "bytes", "parts", "tail_parts", "tail_rows", "tail_bytes", "unsorted_parts")
    }
)
_PARKED = record({"error": {"type": "string"}, "kind": {"type": "string"}, "since_ms": WHOLE, "failures": WHOLE})
TABLE = record(
    {
        "name": {"type": "string"},
        "root": {"type": "string"},
        "id": {"type": "string"},
        "version": VERSION,
        "committed_at": TIME,
        "columns": listed(COLUMN),
        "keys": listed({"type": "string"}),
        "sort_key": listed({"type": "string"}),
        "sequence_by": or_null({"type": "string"}),
        "partition_by": listed({"type": "string"}),
        "properties": {"type": "object", "additionalProperties": {"type": "string"}},
        "figures": FIGURES,
        "parked": or_null(_PARKED),
        "drop_at": or_null(TIME),
    }
)
_LISTED = record({"name": {"type": "string"}, "root": {"type": "string"}})
_VECTOR = record(
    {
        "storageType": {"enum": ["u", "i", "p"]},
        "pathOrInlineDv": {"type": "string"},
        "sizeInBytes": COUNT,
        "cardinality": COUNT,
    },
    {"offset": COUNT},
)
FILE = record(
    {
        "path": {"type": "string"},
        "bytes": COUNT,
        "rows": WHOLE,
        "partition": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        "deletion_vector": or_null(_VECTOR),
        "stats": {"type": ["object", "null"]},
    }
)
_SCAN = record(
    {
        "name": {"type": "string"},
        "root": {"type": "string"},
        "id": {"type": "string"},
        "version": VERSION,
        "committed_at": TIME,
        "columns": listed(COLUMN),
        "stored_names": {"type": "object", "additionalProperties": {"type": "string"}},
        "files": listed(FILE),
        "files_of_version": COUNT,
        "files_matched": COUNT,
        "rows": or_null({"type": "string", "contentEncoding": "base64"}),
        "next": or_null(COUNT),
    }
)
_PROBLEM: Schema = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail"],
}
_TEXT: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
JOB = record(
    {
        "id": _TEXT, "table": _TEXT, "kind": _TEXT, "arguments": _OBJECT, "by": _TEXT,
        "state": {"enum": [state.value for state in JobState]}, "asked": or_null(TIME), "not_before": or_null(TIME),
        "started": or_null(TIME), "ended": or_null(TIME), "attempts": COUNT, "runner": _TEXT, "cancel_asked": TRUTH,
        "progress": _OBJECT, "result": _OBJECT, "error": _TEXT, "error_kind": _TEXT,
    }
)  # fmt: skip
COMPONENTS: dict[str, Any] = {
    "Job": JOB, "Column": COLUMN, "Figures": FIGURES, "Table": TABLE, "ListedTable": _LISTED, "DeletionVector": _VECTOR,
    "File": FILE, "Scan": _SCAN, "Problem": _PROBLEM,
}  # fmt: skip


MEDIA_TYPE = "application/problem+json"
_PREFIX = "urn:lakebed:problem:"
RETRY_SECONDS = 2
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


class Refused(Exception):
    """A request that gets an error, for a cause that HTTP knows: ``status`` says which."""

    def __init__(self, status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = dict(headers or {})


def status_of(error: LakebedError) -> HTTPStatus:
    """The status code for an error."""
    match error:
        case InvalidInput():
            return HTTPStatus.BAD_REQUEST
        case TableNotFound() | VersionNotFound():
            return HTTPStatus.NOT_FOUND
        case TableExists():
            return HTTPStatus.CONFLICT
        case Unsupported():
            return HTTPStatus.UNPROCESSABLE_ENTITY
        case Retry() | MissingPrerequisite():
            return HTTPStatus.SERVICE_UNAVAILABLE
        case _:
            return HTTPStatus.INTERNAL_SERVER_ERROR


def problem_of(error: LakebedError) -> Response:
    """The answer to a request that raised this error."""
    data = {name: value for name, value in error.data().items() if name != "args"}
    headers = {"Retry-After": str(RETRY_SECONDS)} if isinstance(error, Retry) else {}
    return _response(_PREFIX + slug_of(type(error)), status_of(error), str(error), headers, data)


def problem_of_refusal(refused: Refused) -> Response:
    """The answer to a request that is refused."""
    return _response("about:blank", refused.status, str(refused), refused.headers, {})


def slug_of(kind: type[LakebedError]) -> str:
    """The name of a class of errors in words: ``table-not-found``."""
    return _CAPITAL.sub("-", kind.__name__).lower()


def _response(
    kind: str, status: HTTPStatus, detail: str, headers: Mapping[str, str], data: Mapping[str, Any]
) -> Response:
    body = {**data, "type": kind, "title": status.phrase, "status": status.value, "detail": detail}
    return Response(orjson.dumps(body, default=str), status.value, dict(headers), MEDIA_TYPE)
