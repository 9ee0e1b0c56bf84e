"""Routes about one table: what it is, what its log says, what to read of it; and which tables there are.

**Changes.** Tables are made, and what they are is changed. A change of a table needs ``If-Match: "57"``: it is made only while
columns and properties are those of version 57. Commits that bring or merge rows do not stand in its way, so it also works for a
table into which rows come all the time. ``If-Match: *`` changes whatever is there.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from http import HTTPStatus
from itertools import islice
from typing import Any
from urllib.parse import quote

import orjson
import pyarrow as pa

from lakebed.errors import InvalidInput, InvalidSchema, VersionNotFound
from lakebed.log.actions import AddChangePart, AddPart, Commit, RemoveChangePart, RemovePart
from lakebed.log.commit_kind import kind_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.operations.alter import alter, set_properties
from lakebed.operations.create import NewTable, create
from lakebed.planning.plan import PLANS_SCHEMA, plan_table
from lakebed.schema.change import SchemaChange
from lakebed.schema.column_mapping import ColumnMapping
from lakebed.schema.type_names import table_schema
from lakebed.service.answers import (
    COUNT,
    NAME,
    NAMES,
    TEXT,
    TEXTS,
    TIME,
    TRUTH,
    VERSION,
    Refused,
    columns_of,
    listed,
    of_arrow,
    or_null,
    record,
    ref,
    rows_of,
    time_text,
)
from lakebed.service.routes import Answer, Call, Route
from lakebed.service.tokens import Role
from lakebed.settings import property_texts
from lakebed.view import metadata_tables
from lakebed.view.arrow_scan import ScanFile, columns_wanted, snapshot_at
from lakebed.view.merge_on_read import plan_scan, vector_of
from lakebed.view.metadata_tables import PARTITIONS_SCHEMA, SCHEMAS_SCHEMA, partitions, schemas, stats_for_users

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
        done = alter(log, SchemaChange.of(**asked["schema"]), reason=asked.get("reason", ""), require=require)
        value = {"version": done.version, "changed": done.changed, "notes": list(done.notes)}
    return Answer(value=value, etag=str(value["version"]))


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
_CHANGES = (
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


_LIMIT = {"type": "integer", "minimum": 1, "maximum": 10_000}
_LAST = {"type": "integer", "minimum": 1, "maximum": 1_000}
_TOUCHED_MAX = 1_000


def _list(call: Call) -> Answer:
    found = call.catalog.tables()
    wanted = str(call.query.get("search", "")).lower()
    after, limit = call.query.get("after", ""), call.query.get("limit", 1_000)
    names = [name for name in found if wanted in name.lower() and name > after]
    tables = [{"name": name, "root": root} for name in names[:limit] for root in found[name]]
    return Answer(value={"tables": tables, "next": names[limit - 1] if len(names) > limit else None})


def _describe(call: Call) -> Answer:
    log, snapshot = call.catalog.newest(call.name)
    return Answer(value=call.catalog.descriptions.of(call.name, log, snapshot), etag=str(snapshot.version))


def _partitions(call: Call) -> Answer:
    _, snapshot = call.catalog.newest(call.name)
    found = partitions(snapshot, call.query.get("where"))
    after, limit = call.query.get("after", 0), call.query.get("limit", 1_000)
    page = found.slice(after, limit)
    end = after + limit if after + limit < len(found) else None
    return Answer(value={"version": snapshot.version, "partitions": rows_of(page), "next": end})


def _timeline(call: Call) -> Answer:
    log, snapshot = call.catalog.newest(call.name)
    newest = min(snapshot.version, call.query.get("before", snapshot.version + 1) - 1)
    oldest = max(0, newest - call.query.get("last", 100) + 1)
    commits = []
    for version in range(newest, oldest - 1, -1):
        commit = log.read_commit(version)
        if commit is None:  # older ones are cleaned up
            break
        commits.append(_commit(commit, call.query.get("files", False)))
    return Answer(value={"version": snapshot.version, "commits": commits})


def _commit(commit: Commit, with_files: bool) -> dict[str, Any]:
    info, files = commit.info, list(_touched(commit))
    touched = list(dict.fromkeys(orjson.dumps(each[2]) for each in files if each[2]))
    return {
        "version": commit.version,
        "timestamp": time_text(commit.timestamp_ms),
        "kind": kind_of(commit).value,
        "operation": info.operation if info else None,
        "engine": info.engine if info else None,
        "metrics": dict(info.metrics) if info else {},
        "files_added": sum(each[1] == "added" for each in files),
        "files_removed": sum(each[1] == "removed" for each in files),
        "partitions": [orjson.loads(each) for each in touched[:_TOUCHED_MAX]],
        "files": [
            {"path": path, "change": change, "partition": partition}
            for path, change, partition in islice(files, _TOUCHED_MAX)
        ]
        if with_files
        else [],
    }


def _touched(commit: Commit) -> Iterable[tuple[str, str, dict[str, str | None]]]:
    for action in commit.actions:
        match action:
            case AddPart(part):
                yield part.path, "added", dict(part.partition_values)
            case AddChangePart(change):
                yield change.path, "added", dict(change.partition_values)
            case RemovePart():
                yield action.path, "removed", dict(action.partition_values or {})
            case RemoveChangePart(domain):
                yield domain, "settled", {}
            case _:
                pass


def _of_log(member: str, found: Callable[[TableLog, Call], pa.Table]) -> Callable[[Call], Answer]:
    def handle(call: Call) -> Answer:
        log, snapshot = call.catalog.newest(call.name)
        return Answer(value={"version": snapshot.version, member: rows_of(found(log, call))})

    return handle


def _compactions(log: TableLog, call: Call) -> pa.Table:
    return metadata_tables.compactions(metadata_tables.newest_commits(log, call.query.get("last", 100)))


def _parts(call: Call) -> Answer:
    log, newest = call.catalog.newest(call.name)
    snapshot = log.at_version(call.query["version"]) if "version" in call.query else newest
    after, limit = call.query.get("after", 0), call.query.get("limit", 1_000)
    found = rows_of(metadata_tables.parts(snapshot, slice(after, after + limit)))
    end = after + limit if after + limit < len(snapshot.parts) + len(snapshot.tail) else None
    return Answer(value={"version": snapshot.version, "parts": found, "next": end})


def _plan(call: Call) -> Answer:
    internals, snapshot = call.catalog.opened(call.name)
    found = plan_table(internals.compaction.plan(), snapshot.columns)
    return Answer(value={"version": snapshot.version, "plans": rows_of(found)})


def _page(member: str, rows: pa.Schema) -> dict[int, Any]:
    return {200: record({"version": VERSION, member: of_arrow(rows), "next": or_null(COUNT)})}


def _whole(member: str, rows: pa.Schema) -> dict[int, Any]:
    return {200: record({"version": VERSION, member: of_arrow(rows)})}


_COMMIT = record(
    {
        "version": VERSION,
        "timestamp": TIME,
        "kind": {"type": "string"},
        "operation": or_null({"type": "string"}),
        "engine": or_null({"type": "string"}),
        "metrics": {"type": "object"},
        "files_added": COUNT,
        "files_removed": COUNT,
        "partitions": listed({"type": "object"}),
        "files": listed(
            record(
                {
                    "path": {"type": "string"},
                    "change": {"enum": ["added", "removed", "settled"]},
                    "partition": {"type": "object"},
                }
            )
        ),
    }
)


# -- What to read of a table: files, dead rows and statistics, pruned here (``view.merge_on_read``) ------------------------


_ROWS_BYTES_MAX = 8 << 20


def _scan(call: Call) -> Answer:
    internals, newest = call.catalog.opened(call.name)
    asked: dict[str, Any] = call.body
    snapshot = newest
    if "version" in asked or "timestamp" in asked:
        snapshot = snapshot_at(internals.log, asked.get("version"), asked.get("timestamp"))
    wanted = columns_wanted(snapshot.logical_schema, asked.get("columns"))
    plan = plan_scan(
        internals.view,
        snapshot,
        asked.get("where"),
        settled=asked.get("read", "fresh") == "settled",
        statistics=internals.log.statistics,
    )
    after, limit = asked.get("after", 0), asked.get("limit", 1_000)
    mapping = snapshot.columns
    value = {
        "name": call.name,
        "root": internals.path,
        "id": snapshot.metadata.id,
        "version": snapshot.version,
        "committed_at": time_text(snapshot.timestamp_ms),
        "columns": columns_of(wanted),
        "stored_names": dict(zip(wanted.names, mapping.stored_names(wanted.names), strict=True)),
        "files": [_file(each, mapping, wanted) for each in plan.files[after : after + limit]],
        "files_of_version": plan.files_of_version,
        "files_matched": len(plan.files),
        "rows": _rows(plan.completed, snapshot, wanted) if after == 0 else None,
        "next": after + limit if after + limit < len(plan.files) else None,
    }
    return Answer(value=value, etag=str(snapshot.version))


def _file(file: ScanFile, mapping: ColumnMapping, wanted: pa.Schema) -> dict[str, Any]:
    vector = vector_of(file)
    return {
        "path": file.path,
        "bytes": file.bytes,
        "rows": file.rows,
        "partition": {mapping.logical_name(name): value for name, value in file.partition_values.items()},
        "deletion_vector": None if vector is None else vector.to_json(),
        "stats": _stats(stats_for_users(file.stats, mapping)),
    }


def _stats(text: str | None) -> orjson.Fragment | None:
    """Statistics as they are in the log: numbers keep all their digits."""
    try:
        return orjson.Fragment(text) if text and isinstance(orjson.loads(text), dict) else None
    except orjson.JSONDecodeError:  # another writer's
        return None


def _rows(completed: pa.Table | None, snapshot: Snapshot, wanted: pa.Schema) -> str | None:
    """Rows that are in no file, as an Arrow IPC stream in base 64."""
    if completed is None or not len(completed):
        return None
    rows = snapshot.columns.to_logical(completed.select(snapshot.schema.names)).select(wanted.names)
    if rows.nbytes > _ROWS_BYTES_MAX:
        raise InvalidInput(
            f"{len(rows)} rows of the tail are in no file yet, because values that their source did not send were filled in; "
            "that is too much for an answer: settle the table, or scan it with read = settled"
        )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return base64.b64encode(sink.getvalue()).decode()


ROUTES = (
    Route(
        method="GET", path="/v1/tables", operation="list_tables", summary="The tables, by name.",
        query={"search": NAME, "after": NAME, "limit": _LIMIT},
        answers={200: record({"tables": listed(ref("ListedTable")), "next": or_null({"type": "string"})})},
        handle=_list,
    ),
    Route(
        method="GET", path="/v1/tables/{name}", operation="describe_table",
        summary="What a table is at its newest version: columns, keys, properties, figures.",
        answers={200: ref("Table")}, handle=_describe,
    ),
    Route(
        method="GET", path="/v1/tables/{name}/partitions", operation="list_partitions",
        summary="The partitions with their rows, bytes and last change. A condition with constants leaves some out.",
        query={"where": TEXT, "after": COUNT, "limit": _LIMIT},
        answers=_page("partitions", PARTITIONS_SCHEMA), handle=_partitions,
    ),
    Route(
        method="GET", path="/v1/tables/{name}/timeline", operation="list_commits",
        summary="The newest commits, newest first, with the partitions and files that each touched.",
        query={"last": _LAST, "before": VERSION, "files": TRUTH},
        answers={200: record({"version": VERSION, "commits": listed(_COMMIT)})}, handle=_timeline,
    ),
    Route(
        method="GET", path="/v1/tables/{name}/schemas", operation="list_schemas",
        summary="The schemas that the table has had, oldest first.",
        answers=_whole("schemas", SCHEMAS_SCHEMA), handle=_of_log("schemas", lambda log, call: schemas(log)),
    ),
    Route(
        method="GET", path="/v1/tables/{name}/claims", operation="list_claims",
        summary="Who merges which parts until when.",
        answers=_whole("claims", metadata_tables.CLAIMS_SCHEMA),
        handle=_of_log("claims", lambda log, call: metadata_tables.claims(log.refresh(), log.now_ms())),
    ),
    Route(
        method="GET", path="/v1/tables/{name}/compactions", operation="list_compactions",
        summary="The merges among the newest commits, and what each cost.", query={"last": _LAST},
        answers=_whole("compactions", metadata_tables.COMPACTIONS_SCHEMA), handle=_of_log("compactions", _compactions),
    ),
    Route(
        method="GET", path="/v1/tables/{name}/parts", operation="list_parts",
        summary="The parts of a version, base and tail.", query={"version": VERSION, "after": COUNT, "limit": _LIMIT},
        answers=_page("parts", metadata_tables.PARTS_SCHEMA), handle=_parts,
    ),
    Route(
        method="GET", path="/v1/tables/{name}/plan", operation="plan_table",
        summary="What maintenance would do now, and what it leaves alone and why.",
        answers=_whole("plans", PLANS_SCHEMA), handle=_plan,
    ),
    Route(
        method="POST", path="/v1/tables/{name}/scan", operation="scan_table",
        summary="The files to read for a predicate at a version, with their dead rows and statistics. "
        "fresh: with the tail; settled: what every Delta reader reads. The condition leaves files out; the reader filters rows.",
        body=record(
            {},
            {
                "where": TEXT,
                "columns": NAMES,
                "version": VERSION,
                "timestamp": {"type": ["string", "number"], "maxLength": 100},
                "read": {"enum": ["fresh", "settled"]},
                "after": COUNT,
                "limit": _LIMIT,
            },
        ),
        answers={200: ref("Scan")}, handle=_scan,
    ),
    *_CHANGES,
)  # fmt: skip
