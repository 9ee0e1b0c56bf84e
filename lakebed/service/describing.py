"""Routes that say what tables there are, what each is, and what its log says: read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa

from lakebed.log.actions import AddChangePart, AddPart, Commit, RemoveChangePart, RemovePart
from lakebed.log.commit_kind import kind_of
from lakebed.log.table_log import TableLog
from lakebed.planning.plan_table import PLANS_SCHEMA, plan_table
from lakebed.service.answers import rows_of, time_text
from lakebed.service.routes import Answer, Call, Route
from lakebed.service.schemas import COUNT, NAME, TEXT, TIME, TRUTH, VERSION, listed, of_arrow, or_null, record, ref
from lakebed.view import metadata_tables
from lakebed.view.partitions import PARTITIONS_SCHEMA, partitions
from lakebed.view.schema_history import SCHEMAS_SCHEMA, schemas

LIMIT = {"type": "integer", "minimum": 1, "maximum": 10_000}
LAST = {"type": "integer", "minimum": 1, "maximum": 1_000}
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
ROUTES = (
    Route(
        method="GET", path="/v1/tables", operation="list_tables", summary="The tables, by name.",
        query={"search": NAME, "after": NAME, "limit": LIMIT},
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
        summary="The partitions with their rows, bytes and last change. A condition leaves out by comparing with constants.",
        query={"where": TEXT, "after": COUNT, "limit": LIMIT},
        answers=_page("partitions", PARTITIONS_SCHEMA), handle=_partitions,
    ),
    Route(
        method="GET", path="/v1/tables/{name}/timeline", operation="list_commits",
        summary="The newest commits, newest first, with the partitions and files that each touched.",
        query={"last": LAST, "before": VERSION, "files": TRUTH},
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
        summary="The merges among the newest commits, and what each cost.", query={"last": LAST},
        answers=_whole("compactions", metadata_tables.COMPACTIONS_SCHEMA), handle=_of_log("compactions", _compactions),
    ),
    Route(
        method="GET", path="/v1/tables/{name}/parts", operation="list_parts",
        summary="The parts of a version, base and tail.", query={"version": VERSION, "after": COUNT, "limit": LIMIT},
        answers=_page("parts", metadata_tables.PARTS_SCHEMA), handle=_parts,
    ),
    Route(
        method="GET", path="/v1/tables/{name}/plan", operation="plan_table",
        summary="What maintenance would do now, and what it leaves alone and why.",
        answers=_whole("plans", PLANS_SCHEMA), handle=_plan,
    ),
)  # fmt: skip
