"""How a database is: its tables, a row each, the topics that its pipeline does not read, and what is wrong with all of it.

Tables are looked at as in any list (``glance``): their newest snapshots, whether their files are there, their quarantines. What
only the pipeline knows, it says beside the database (``runs``).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa

from lakebed.coordination.parked import parked_of
from lakebed.coordination.table_figures import figures_of
from lakebed.errors import LakebedError
from lakebed.health.finding import Severity
from lakebed.health.glance import Glance
from lakebed.health.run_report import Waiting
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.positions.resnapshots import recent

THREADS = 16
_TIME = pa.timestamp("ms", "UTC")
STATUS_SCHEMA = pa.schema(
    [
        ("table", pa.string()), ("state", pa.string()), ("rows", pa.int64()), ("tail_rows", pa.int64()), ("bytes", pa.int64()),
        ("version", pa.int64()), ("committed_at", _TIME), ("parked_at", _TIME), ("error", pa.string()), ("path", pa.string()),
        ("resnapshot", pa.string()), ("quarantined", pa.int64()),
    ]
)  # fmt: skip
"""``state``: the first of these that is true: unreadable; parked (its pipeline leaves it alone); critical (rows may be lost,
wrong or unreadable); waiting (its pipeline can't read it now); new (a topic that is no table yet); warning; live. ``error``: what
is wrong, null if nothing is. ``rows`` of the base, and beside them ``tail_rows`` that are not settled; ``bytes`` of the files of
both. ``resnapshot``: how far the rows are that the connector was asked to send again; null: none were asked for in the last day.
``quarantined``: records in its quarantine.
"""
_STATES = ("unreadable", "parked", "critical", "waiting", "new", "warning", "live")


def database_status(tables: Mapping[str, str], waiting: Mapping[str, Waiting] | None = None) -> pa.Table:
    """A row for each table (``STATUS_SCHEMA``): the worst first, then by name.

    Args:
        tables: Their roots, by name.
        waiting: The topics that their pipeline does not read, by name; those that are no table get a row too.
    """
    waiting = waiting or {}
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(partial(_row, waiting), tables.items()))
    found += [
        {"table": name, "state": one.state, "error": one.error or None, "quarantined": 0}
        for name, one in waiting.items()
        if name not in tables
    ]
    found.sort(key=lambda row: (_STATES.index(row["state"]), row["table"]))
    return pa.Table.from_pylist(found, STATUS_SCHEMA)


def _row(waiting: Mapping[str, Waiting], table: tuple[str, str]) -> dict[str, Any]:
    name, root = table
    row: dict[str, Any] = {"table": name, "path": root}
    try:
        log = TableLog(open_store(root))
        snapshot, now_ms = log.refresh(), log.now_ms()
        figures, parked, again = figures_of(snapshot), parked_of(snapshot), recent(snapshot, now_ms)
        seen = Glance(root, alone=False).look(snapshot, now_ms)
    except LakebedError as error:
        return {**row, "state": "unreadable", "error": str(error)}
    errors = [parked.error] if parked else []
    errors += [one.what for one in seen.findings if one.check not in ("parked", "waiting")]
    if name in waiting and not parked:
        errors.insert(0, waiting[name].error)
    worst = seen.findings[0].severity if seen.findings else Severity.OK
    state = (
        "critical" if seen.critical else "waiting" if name in waiting else "live" if worst is Severity.OK else "warning"
    )
    return row | {
        "state": "parked" if parked else state,
        "rows": figures.rows,
        "tail_rows": figures.tail_rows,
        "bytes": figures.bytes,
        "version": figures.version,
        "committed_at": int(figures.committed_at * 1000),
        "resnapshot": again or None,
        "quarantined": seen.quarantined,
        "parked_at": parked.since_ms if parked else None,
        "error": "; ".join(filter(None, errors)) or None,
    }
