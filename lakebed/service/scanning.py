"""The route that says what to read of a table: files, dead rows and statistics, pruned here (``view.scan_plan``)."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.log.snapshot import Snapshot
from lakebed.schema.column_mapping import ColumnMapping
from lakebed.service.answers import columns_of, time_text
from lakebed.service.describing import LIMIT
from lakebed.service.routes import Answer, Call, Route
from lakebed.service.schemas import COUNT, NAMES, TEXT, VERSION, record, ref
from lakebed.view.arrow_scan import columns_wanted
from lakebed.view.metadata_tables import stats_for_users
from lakebed.view.scan_file import ScanFile
from lakebed.view.scan_plan import plan_scan, vector_of
from lakebed.view.time_travel import snapshot_at

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
                "limit": LIMIT,
            },
        ),
        answers={200: ref("Scan")}, handle=_scan,
    ),
)  # fmt: skip
