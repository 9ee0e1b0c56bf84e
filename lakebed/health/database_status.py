"""How all tables of a database are, a row each, by their newest snapshots alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from lakebed.errors import LakebedError
from lakebed.manifest.parked import parked_of
from lakebed.manifest.remarks import wrong_rows
from lakebed.manifest.resnapshots import recent
from lakebed.manifest.stores import open_store
from lakebed.manifest.table_figures import figures_of
from lakebed.manifest.table_log import TableLog

THREADS = 16
_TIME = pa.timestamp("ms", "UTC")
STATUS_SCHEMA = pa.schema(
    [
        ("table", pa.string()), ("state", pa.string()), ("rows", pa.int64()), ("tail_rows", pa.int64()), ("bytes", pa.int64()),
        ("version", pa.int64()), ("committed_at", _TIME), ("parked_at", _TIME), ("error", pa.string()), ("path", pa.string()),
        ("resnapshot", pa.string()),
    ]
)  # fmt: skip
"""``state``: live, parked (its pipeline leaves it alone; ``error`` says why) or unreadable. ``error`` also says that rows are
wrong until they are sent again. ``rows`` of the base, and beside them ``tail_rows`` that are not settled; ``bytes`` of the
files of both. ``resnapshot``: how far the rows are that the connector was asked to send again; null: none were asked for in
the last day.
"""


def database_status(tables: Mapping[str, str]) -> pa.Table:
    """``tables``: their roots, by name. Returns a row for each (``STATUS_SCHEMA``): the parked ones first, then by name."""
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(_row, tables.items()))
    found.sort(key=lambda row: (row["state"] == "live", row["table"]))
    return pa.Table.from_pylist(found, STATUS_SCHEMA)


def _row(table: tuple[str, str]) -> dict[str, Any]:
    name, root = table
    row: dict[str, Any] = {"table": name, "path": root}
    try:
        snapshot = TableLog(open_store(root)).refresh()
        figures, parked, again = figures_of(snapshot), parked_of(snapshot), recent(snapshot, int(time.time() * 1000))
    except LakebedError as error:
        return {**row, "state": "unreadable", "error": str(error)}
    row |= {
        "state": "parked" if parked else "live",
        "rows": figures.rows,
        "tail_rows": figures.tail_rows,
        "bytes": figures.bytes,
        "version": figures.version,
        "committed_at": int(figures.committed_at * 1000),
        "resnapshot": again or None,
    }
    why = parked.error if parked else "; ".join(wrong_rows(snapshot).values())
    return row | {"parked_at": parked.since_ms if parked else None, "error": why or None}
