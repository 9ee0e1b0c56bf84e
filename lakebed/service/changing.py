"""Routes that make tables and change what they are.

A change of a table needs ``If-Match: "57"``: it is made only while columns and properties are those of version 57. Commits that
bring or merge rows do not stand in its way, so it also works for a table into which rows come all the time. ``If-Match: *``
changes whatever is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from lakebed.errors import InvalidSchema, VersionNotFound
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.operations.alter import alter, set_properties
from lakebed.operations.create import NewTable, create
from lakebed.schema.change import SchemaChange
from lakebed.schema.conversion import canonical_type
from lakebed.schema.type_names import parse_type, table_schema
from lakebed.service.answers import NAME, NAMES, TEXT, TEXTS, TRUTH, VERSION, listed, record, ref
from lakebed.service.problems import Refused
from lakebed.service.routes import Answer, Call, Route
from lakebed.service.tokens import Role
from lakebed.settings import property_texts

_VERSION = re.compile(r'(?:W/)?"?(\d{1,15})"?')


def _create(call: Call) -> Answer:
    asked: dict[str, Any] = call.body
    texts = {
        each["name"]: each["type"] + ("" if each.get("nullable", True) else " not null") for each in asked["columns"]
    }
    if len(texts) < len(asked["columns"]):
        raise InvalidSchema("two columns have the same name")
    table = NewTable(
        schema=table_schema(texts),
        keys=tuple(asked.get("keys", ())),
        sort_key=tuple(asked.get("sort_key", ())),
        sequence_by=asked.get("sequence_by"),
        partition_by=tuple(asked.get("partition_by", ())),
        properties=property_texts(asked.get("properties", {})),
        types=asked.get("types", "given"),
    )
    name = asked["name"]
    root = call.catalog.place_of_new(name)
    log = call.catalog.logs.open(root)
    create(root, log, table)
    call.surveyor.hint(root)
    return Answer(
        value=call.catalog.descriptions.of(name, log, log.refresh()),
        status=HTTPStatus.CREATED,
        etag=str(log.refresh().version),
        headers={"Location": f"/v1/tables/{quote(name, safe='')}"},
    )


def _change(call: Call) -> Answer:
    log, _ = call.catalog.newest(call.name)
    asked: dict[str, Any] = call.body
    require = _unchanged_since(log, call.headers.get("if-match"))
    if "properties" in asked:
        version = set_properties(log, property_texts(asked["properties"]), require=require)
        value: dict[str, Any] = {"version": version, "changed": True, "notes": []}
    else:
        done = alter(log, _schema_change(asked["schema"]), reason=asked.get("reason", ""), require=require)
        value = {"version": done.version, "changed": done.changed, "notes": list(done.notes)}
    return Answer(value=value, etag=str(value["version"]))


def _schema_change(asked: dict[str, Any]) -> SchemaChange:
    types = {
        name: {path: canonical_type(parse_type(path, text), path) for path, text in asked.get(name, {}).items()}
        for name in ("add", "widen")
    }
    return SchemaChange(
        add=types["add"],
        widen=types["widen"],
        relax=tuple(asked.get("relax", ())),
        rename=asked.get("rename", {}),
        drop=tuple(asked.get("drop", ())),
        comment=asked.get("comment", {}),
    )


def _unchanged_since(log: TableLog, condition: str | None) -> Callable[[Snapshot], None]:
    """Refuses a version whose columns or properties are not those of the version in an ``If-Match``. Raises Refused."""
    if condition is None:
        raise Refused(
            HTTPStatus.PRECONDITION_REQUIRED, 'say of which version this is a change: If-Match: "57", or If-Match: *'
        )
    if condition.strip() == "*":
        return lambda snapshot: None
    match = _VERSION.fullmatch(condition.strip())
    if match is None:
        raise Refused(HTTPStatus.BAD_REQUEST, f'If-Match is {condition[:100]!r}; write a version, such as "57", or *')
    try:
        then = log.at_version(int(match[1]))
    except VersionNotFound as error:
        raise Refused(HTTPStatus.PRECONDITION_FAILED, str(error)) from None

    def require(snapshot: Snapshot) -> None:
        if (snapshot.metadata, snapshot.protocol) != (then.metadata, then.protocol):
            raise Refused(
                HTTPStatus.PRECONDITION_FAILED,
                f"columns or properties were changed between version {then.version} and {snapshot.version}; describe the table "
                "again",
            )

    return require


_VALUE = {"type": ["string", "number", "boolean"], "maxLength": 10_000}
_PROPERTIES = {"type": "object", "additionalProperties": _VALUE, "minProperties": 1, "maxProperties": 1_000}
_CHANGED = record({"version": VERSION, "changed": TRUTH, "notes": listed({"type": "string"})})
_PROPERTY_CHANGE = record({"properties": _PROPERTIES})
_COLUMN_CHANGE = record(
    {
        "schema": record(
            {}, {"add": TEXTS, "widen": TEXTS, "rename": TEXTS, "comment": TEXTS, "relax": NAMES, "drop": NAMES}
        )
    },
    {"reason": TEXT},
)
ROUTES = (
    Route(
        method="POST", path="/v1/tables", operation="create_table", role=Role.OPERATOR,
        summary="Create a table below the first root that is not a table itself.",
        body=record(
            {
                "name": NAME,
                "columns": {"type": "array", "minItems": 1, "maxItems": 2_000,
                            "items": record({"name": NAME, "type": TEXT}, {"nullable": TRUTH})},
            },
            {
                "keys": NAMES, "sort_key": NAMES, "sequence_by": NAME, "partition_by": NAMES,
                "properties": {**_PROPERTIES, "minProperties": 0}, "types": {"enum": ["given", "wide"]},
            },
        ),
        answers={201: ref("Table")}, handle=_create,
    ),
    Route(
        method="PATCH", path="/v1/tables/{name}", operation="change_table", role=Role.OPERATOR,
        summary="Set properties, or change columns, if both are still those of the version in If-Match.",
        headers={"If-Match": NAME},
        body={"oneOf": [_PROPERTY_CHANGE, _COLUMN_CHANGE]},
        answers={200: _CHANGED}, handle=_change,
    ),
)  # fmt: skip
