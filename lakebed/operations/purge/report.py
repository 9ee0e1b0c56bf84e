"""What a purge reports: a row a file that had rows it is about, or may have had."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

PURGED_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("where", pa.string()),
        ("bytes", pa.int64()),
        ("rows", pa.int64()),
        ("gone_at", pa.timestamp("ms", "UTC")),
        ("note", pa.string()),
    ]
)
TABLE, VERSION, DETACHED, UNCOMMITTED = "table", "version", "detached", "uncommitted"
LOG, QUARANTINE, VOLATILE, KEY_INDEX, ELSEWHERE = "log", "quarantine", "volatile", "key index", "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedFile:
    """A file. ``where``: which kind; ``rows``: how many of its rows the purge is about, None if its rows were not looked at.

    ``gone_ms``: when it went (epoch milliseconds), None if it has not. ``note``: why, or what is left to do.
    """

    path: str
    where: str
    bytes: int | None = None
    rows: int | None = None
    gone_ms: int | None = None
    note: str = ""


def report_table(files: Iterable[PurgedFile]) -> pa.Table:
    """The report (PURGED_SCHEMA), by kind and path."""
    rows = [
        {"path": f.path, "where": f.where, "bytes": f.bytes, "rows": f.rows, "gone_at": f.gone_ms, "note": f.note}
        for f in sorted(files, key=lambda file: (file.where, file.path))
    ]
    return pa.Table.from_pylist(rows, PURGED_SCHEMA)
