"""Routes that say what tables there are, what each is, what its log says, and what to read of it: read-only."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.log.actions import AddChangePart, AddPart, Commit, RemoveChangePart, RemovePart
from lakebed.log.commit_kind import kind_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.planning.plan import PLANS_SCHEMA, plan_table
from lakebed.schema.column_mapping import ColumnMapping
from lakebed.service.answers import (
    COUNT,
    NAME,
    NAMES,
    TEXT,
    TIME,
    TRUTH,
    VERSION,
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
from lakebed.view import metadata_tables
from lakebed.view.arrow_scan import ScanFile, columns_wanted
from lakebed.view.metadata_tables import PARTITIONS_SCHEMA, SCHEMAS_SCHEMA, partitions, schemas, stats_for_users
from lakebed.view.scan_plan import plan_scan, vector_of
from lakebed.view.time_travel import snapshot_at

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


# -- What to read of a table: files, dead rows and statistics, pruned here (``view.scan_plan``) ----------------------------


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
)  # fmt: skip
