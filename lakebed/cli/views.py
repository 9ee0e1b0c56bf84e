"""What a terminal shows of the metadata tables: a few columns each, written for people. ``--wide`` shows the tables themselves.

A view lists its columns in the order of importance for each place: those that may be left out on a narrow terminal are the last
ones. Values are written by their names: ``bytes`` as ``1.2 MB``, ``seconds`` as ``1.9 s``, times of today as ``13:49:15``, whole
numbers whole.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from lakebed.cli.logs import shown
from lakebed.cli.text_table import Column
from lakebed.far_times import python_rows
from lakebed.schema.change import SchemaChange

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Shown:
    """A column of a view: the table's column ``of`` (default: ``name``), or what ``text`` makes of a row.

    ``least``, ``optional``: as in Column; ``if_any``: it is left out if no row has a text in it.
    """

    name: str
    text: Callable[[Row], str] | None = None
    of: str | None = None
    right: bool = False
    least: int | None = None
    optional: bool = False
    if_any: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """The columns that are shown; none: all of the table. ``below``: a column whose text comes below each row.

    ``downwards``: a value a line, if there is one row; ``only_json``: columns for programs, which ``--wide`` leaves out too.
    """

    columns: tuple[_Shown, ...] = ()
    below: str | None = None
    downwards: bool = False
    only_json: tuple[str, ...] = ()


def columns_of(rows: pa.Table, view: View, now: datetime.datetime | None = None) -> tuple[list[Column], list[str]]:
    """The view's columns with their cells, and the text below each row."""
    now = now or datetime.datetime.now(datetime.UTC)
    records = python_rows(rows, maps_as_pydicts="lossy")
    chosen = view.columns or tuple(_Shown(name) for name in rows.column_names)
    columns = []
    for one in chosen:
        source = one.of or one.name
        texts = (one.text(row) if one.text else human(source, row[source], now) for row in records)
        cells = [shown(text) for text in texts]
        if any(cells) or not one.if_any:
            columns.append(
                Column(name=shown(one.name), cells=cells, right=one.right, least=one.least, optional=one.optional)
            )
    below = [shown(human(view.below, row[view.below], now)) for row in records] if view.below else []
    return columns, below


def human(name: str, value: Any, now: datetime.datetime) -> str:
    """A value of a metadata table; ``name`` shows its unit."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int() | float() if name.lower().endswith("bytes") or name.startswith("bytes"):
            return bytes_text(int(value))
        case int() | float() if name.endswith("seconds"):
            return seconds_text(float(value))
        case int():
            return f"{value:,}"
        case float():
            return f"{int(value):,}" if value.is_integer() else f"{value:,.3f}".rstrip("0")
        case datetime.datetime():
            return _time_text(value, now)
        case dict():
            return ", ".join(f"{key} {human(str(key), each, now)}" for key, each in value.items())
        case list() | tuple():
            return ", ".join(human(name, each, now) for each in value)
        case _:
            return str(value)


def bytes_text(value: int) -> str:
    """A number of bytes for a person."""
    size = float(value)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def seconds_text(seconds: float) -> str:
    """A duration for a person: ``0.03 s``, ``1.9 s``, ``2.5 min``, ``3.0 hours``, ``2.1 days``."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds:.2f} s"


def _time_text(value: datetime.datetime, now: datetime.datetime) -> str:
    """The time of day; with the date, if that is not today's; both in UTC."""
    if value.date() == now.date():
        return value.strftime("%H:%M:%S")
    return value.strftime("%m-%d %H:%M:%S" if value.year == now.year else "%Y-%m-%d %H:%M:%S")


def _cluster_merges(row: Row) -> str:
    return f"{row['cluster_merges']:,}" if row["cluster_merges"] else ""


def _schema_change(row: Row) -> str:
    return str(SchemaChange.from_json(orjson.loads(row["change"]))) if row["change"] else ""


def _change(before: str, after: str, text: Callable[[int], str] = "{:,}".format) -> Callable[[Row], str]:
    def change(row: Row) -> str:
        known = [text(row[name]) if row[name] is not None else "?" for name in (before, after)]
        return " → ".join(known) if known != ["?", "?"] else ""

    return change


def _versions(row: Row) -> str:
    first, last = row["min_block"], row["max_block"]
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _partition(row: Row) -> str:
    return ", ".join(f"{name}={'null' if value is None else value}" for name, value in (row["partition"] or {}).items())


def _name(row: Row) -> str:
    return str(row["path"]).rsplit("/", 1)[-1]


def _level(row: Row) -> str:
    return "all" if row["level"] is None else str(row["level"])


def _histogram(row: Row) -> str:
    return ", ".join(f"{depth}: {parts:,}" for depth, parts in row["part_depth_histogram"].items())


TIME = _Shown("time_utc", of="timestamp")
RECORD = View(downwards=True)
"""One row, a value a line."""
PARTS = View(
    (
        _Shown("state"),
        _Shown("level", right=True),
        _Shown("rows", right=True),
        _Shown("dead", of="dead_rows", right=True),
        _Shown("size", of="bytes", right=True),
        _Shown("partition", _partition, least=12, if_any=True),
        _Shown("file", _name, least=9),
        _Shown("versions", _versions, optional=True),
        _Shown("sort_key", of="sort_key_version", right=True, optional=True),
    ),
    only_json=("stats",),
)
TIMELINE = View((_Shown("version", right=True), TIME, _Shown("operation"), _Shown("metrics", least=16)))
COMPACTIONS = View(
    (
        _Shown("version", right=True),
        TIME,
        _Shown("kind", of="operation", optional=True),
        _Shown("level", right=True),
        _Shown("parts", _change("parts_in", "parts_out")),
        _Shown("rows", of="rows_out", right=True, optional=True),
        _Shown("size", _change("bytes_in", "bytes_out", bytes_text)),
        _Shown("took", of="seconds", right=True),
        _Shown("replica", least=12, optional=True),
        _Shown("why", least=24, optional=True),
    )
)
CLAIMS = View(
    (
        _Shown("replica", least=12),
        _Shown("state"),
        _Shown("until_utc", of="lease_until"),
        _Shown("level", right=True),
        _Shown("parts", right=True),
        _Shown("size", of="bytes", right=True),
        _Shown("kind", optional=True),
        _Shown("since_utc", of="since", optional=True),
        _Shown("rows", right=True, optional=True),
        _Shown("left", right=True, optional=True),
        _Shown("id", least=8, optional=True),
    ),
    only_json=("sources",),
)
DATABASE = View(
    (
        _Shown("table", least=16),
        _Shown("state"),
        _Shown("settled rows", of="rows", right=True),
        _Shown("changes", of="tail_rows", right=True),
        _Shown("size", of="bytes", right=True),
        _Shown("committed_utc", of="committed_at"),
        _Shown("parked_utc", of="parked_at", if_any=True),
        _Shown("quarantined", right=True, optional=True),
        _Shown("version", right=True, optional=True),
        _Shown("resnapshot", if_any=True),
        _Shown("verified_utc", of="verified_at", if_any=True, optional=True),
    ),
    below="error",
)
FLEET = View(
    (
        _Shown("table", least=16),
        _Shown("to gain", of="gain_bytes", right=True),
        _Shown("to read", of="cost_bytes", right=True),
        _Shown("depth", right=True),
        _Shown("budget", of="read_budget", right=True),
        _Shown("late", of="late_seconds", right=True),
        _Shown("tier", optional=True),
        _Shown("pool", optional=True),
        _Shown("merges", right=True, optional=True),
        _Shown("on cluster", _cluster_merges, right=True, optional=True, if_any=True),
        _Shown("spent", of="spent_bytes", right=True, optional=True),
        _Shown("gained", of="gained_bytes", right=True, optional=True),
        _Shown("parked", of="parked_parts", right=True, optional=True),
    ),
    below="why",
)
CLUSTERING = View(
    (
        _Shown("level", _level, right=True),
        _Shown("parts", of="total_part_count", right=True),
        _Shown("constant", of="constant_part_count", right=True),
        _Shown("unsorted", of="unsorted_part_count", right=True),
        _Shown("overlaps", of="average_overlaps", right=True),
        _Shown("depth", of="average_depth", right=True),
        _Shown("max_depth", right=True),
        _Shown("parts_by_depth", _histogram, least=14, optional=True),
        _Shown("waiting", of="waiting_part_count", right=True, optional=True),
        _Shown("reads", of="waiting_part_reads", right=True, optional=True),
    ),
    only_json=("deepest",),
)
PLAN = View(
    (
        _Shown("what"),
        _Shown("level", right=True),
        _Shown("parts", right=True),
        _Shown("size", _change("bytes_in", "bytes_out", bytes_text)),
        _Shown("depth", _change("depth_before", "depth_after")),
        _Shown("rows", right=True, optional=True),
        _Shown("partition", _partition, least=12, optional=True, if_any=True),
    ),
    below="why",
    only_json=("inputs",),
)
SCHEMAS = View(
    (
        _Shown("version", right=True),
        TIME,
        _Shown("change", _schema_change, least=40),
        _Shown("reason", least=12, if_any=True),
        _Shown("operation", optional=True),
    ),
    only_json=("schema",),
)
POSITIONS = View(
    (
        _Shown("topic"),
        _Shown("partition", right=True),
        _Shown("next_offset", right=True),
        _Shown("topic_id", optional=True, if_any=True),
    )
)
DETACHED = View(
    (
        _Shown("name"),
        _Shown("partition", _partition, least=12),
        _Shown("rows", right=True),
        _Shown("size", of="bytes", right=True),
        _Shown("parts", right=True, optional=True),
        _Shown("detached_utc", of="detached", optional=True),
    )
)
EXPIRED_ROWS = View(
    (
        _Shown("expired_rows", right=True),
        _Shown("rows_left", right=True),
        _Shown("removed"),
        _Shown("size", of="bytes", right=True),
        _Shown("path", least=20),
    )
)
FILES = View(
    (
        _Shown("size", of="bytes", right=True),
        _Shown("reason", least=10),
        _Shown("modified_utc", of="modified", optional=True),
        _Shown("path", least=20),
    )
)
DROPPED = View(
    (
        _Shown("table", least=10),
        _Shown("dropped_utc", of="dropped"),
        _Shown("due_utc", of="due"),
        _Shown("removed"),
        _Shown("files", right=True),
        _Shown("path", least=20),
    )
)
PURGED = View(
    (
        _Shown("where", least=11),
        _Shown("size", of="bytes", right=True),
        _Shown("rows", right=True),
        _Shown("gone_utc", of="gone_at"),
        _Shown("path", least=20),
        _Shown("note", least=10, if_any=True),
    )
)
REASONS = View((_Shown("reason", least=20), _Shown("records", right=True), _Shown("newest_utc", of="newest")))
QUARANTINE = View(
    (
        _Shown("position", least=24),
        _Shown("time_utc", of="time"),
        _Shown("key", least=8, if_any=True),
        _Shown("value", least=20),
    ),
    below="reason",
)
LISTENERS = View(
    (
        _Shown("listener"),
        _Shown("to", least=20),
        _Shown("tables", optional=True),
        _Shown("kinds", optional=True),
        _Shown("behind", of="behind_seconds", right=True),
        _Shown("failing since_utc", of="failing_since", if_any=True),
        _Shown("delivered by", of="delivered_by", least=10),
    ),
    below="error",
)
