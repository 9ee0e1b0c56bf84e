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

from lakebed.cli.display.text_table import Column
from lakebed.cli.escapes import shown
from lakebed.far_times import python_rows
from lakebed.schema.change import SchemaChange

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
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

    columns: tuple[Shown, ...] = ()
    below: str | None = None
    downwards: bool = False
    only_json: tuple[str, ...] = ()


def columns_of(rows: pa.Table, view: View, now: datetime.datetime | None = None) -> tuple[list[Column], list[str]]:
    """The view's columns with their cells, and the text below each row."""
    now = now or datetime.datetime.now(datetime.UTC)
    records = python_rows(rows, maps_as_pydicts="lossy")
    chosen = view.columns or tuple(Shown(name) for name in rows.column_names)
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
            return time_text(value, now)
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


def time_text(value: datetime.datetime, now: datetime.datetime) -> str:
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


TIME = Shown("time_utc", of="timestamp")
RECORD = View(downwards=True)
"""One row, a value a line."""
PARTS = View(
    (
        Shown("state"),
        Shown("level", right=True),
        Shown("rows", right=True),
        Shown("dead", of="dead_rows", right=True),
        Shown("size", of="bytes", right=True),
        Shown("partition", _partition, least=12, if_any=True),
        Shown("file", _name, least=9),
        Shown("versions", _versions, optional=True),
        Shown("sort_key", of="sort_key_version", right=True, optional=True),
    ),
    only_json=("stats",),
)
TIMELINE = View((Shown("version", right=True), TIME, Shown("operation"), Shown("metrics", least=16)))
COMPACTIONS = View(
    (
        Shown("version", right=True),
        TIME,
        Shown("kind", of="operation", optional=True),
        Shown("level", right=True),
        Shown("parts", _change("parts_in", "parts_out")),
        Shown("rows", of="rows_out", right=True, optional=True),
        Shown("size", _change("bytes_in", "bytes_out", bytes_text)),
        Shown("took", of="seconds", right=True),
        Shown("replica", least=12, optional=True),
        Shown("why", least=24, optional=True),
    )
)
CLAIMS = View(
    (
        Shown("replica", least=12),
        Shown("state"),
        Shown("until_utc", of="lease_until"),
        Shown("level", right=True),
        Shown("parts", right=True),
        Shown("size", of="bytes", right=True),
        Shown("kind", optional=True),
        Shown("since_utc", of="since", optional=True),
        Shown("rows", right=True, optional=True),
        Shown("left", right=True, optional=True),
        Shown("id", least=8, optional=True),
    ),
    only_json=("sources",),
)
DATABASE = View(
    (
        Shown("table", least=16),
        Shown("state"),
        Shown("settled rows", of="rows", right=True),
        Shown("changes", of="tail_rows", right=True),
        Shown("size", of="bytes", right=True),
        Shown("committed_utc", of="committed_at"),
        Shown("parked_utc", of="parked_at", if_any=True),
        Shown("quarantined", right=True, optional=True),
        Shown("version", right=True, optional=True),
        Shown("resnapshot", if_any=True),
    ),
    below="error",
)
FLEET = View(
    (
        Shown("table", least=16),
        Shown("to gain", of="gain_bytes", right=True),
        Shown("to read", of="cost_bytes", right=True),
        Shown("depth", right=True),
        Shown("budget", of="read_budget", right=True),
        Shown("late", of="late_seconds", right=True),
        Shown("tier", optional=True),
        Shown("pool", optional=True),
        Shown("merges", right=True, optional=True),
        Shown("on cluster", _cluster_merges, right=True, optional=True, if_any=True),
        Shown("spent", of="spent_bytes", right=True, optional=True),
        Shown("gained", of="gained_bytes", right=True, optional=True),
        Shown("parked", of="parked_parts", right=True, optional=True),
    ),
    below="why",
)
CLUSTERING = View(
    (
        Shown("level", _level, right=True),
        Shown("parts", of="total_part_count", right=True),
        Shown("constant", of="constant_part_count", right=True),
        Shown("unsorted", of="unsorted_part_count", right=True),
        Shown("overlaps", of="average_overlaps", right=True),
        Shown("depth", of="average_depth", right=True),
        Shown("max_depth", right=True),
        Shown("parts_by_depth", _histogram, least=14, optional=True),
        Shown("waiting", of="waiting_part_count", right=True, optional=True),
        Shown("reads", of="waiting_part_reads", right=True, optional=True),
    ),
    only_json=("deepest",),
)
PLAN = View(
    (
        Shown("what"),
        Shown("level", right=True),
        Shown("parts", right=True),
        Shown("size", _change("bytes_in", "bytes_out", bytes_text)),
        Shown("depth", _change("depth_before", "depth_after")),
        Shown("rows", right=True, optional=True),
        Shown("partition", _partition, least=12, optional=True, if_any=True),
    ),
    below="why",
    only_json=("inputs",),
)
SCHEMAS = View(
    (
        Shown("version", right=True),
        TIME,
        Shown("change", _schema_change, least=40),
        Shown("reason", least=12, if_any=True),
        Shown("operation", optional=True),
    ),
    only_json=("schema",),
)
POSITIONS = View(
    (
        Shown("topic"),
        Shown("partition", right=True),
        Shown("next_offset", right=True),
        Shown("topic_id", optional=True, if_any=True),
    )
)
DETACHED = View(
    (
        Shown("name"),
        Shown("partition", _partition, least=12),
        Shown("rows", right=True),
        Shown("size", of="bytes", right=True),
        Shown("parts", right=True, optional=True),
        Shown("detached_utc", of="detached", optional=True),
    )
)
EXPIRED_ROWS = View(
    (
        Shown("expired_rows", right=True),
        Shown("rows_left", right=True),
        Shown("removed"),
        Shown("size", of="bytes", right=True),
        Shown("path", least=20),
    )
)
FILES = View(
    (
        Shown("size", of="bytes", right=True),
        Shown("reason", least=10),
        Shown("modified_utc", of="modified", optional=True),
        Shown("path", least=20),
    )
)
PURGED = View(
    (
        Shown("where", least=11),
        Shown("size", of="bytes", right=True),
        Shown("rows", right=True),
        Shown("gone_utc", of="gone_at"),
        Shown("path", least=20),
        Shown("note", least=10, if_any=True),
    )
)
REASONS = View((Shown("reason", least=20), Shown("records", right=True), Shown("newest_utc", of="newest")))
QUARANTINE = View(
    (
        Shown("position", least=24),
        Shown("time_utc", of="time"),
        Shown("key", least=8, if_any=True),
        Shown("value", least=20),
    ),
    below="reason",
)
LISTENERS = View(
    (
        Shown("listener"),
        Shown("to", least=20),
        Shown("tables", optional=True),
        Shown("kinds", optional=True),
        Shown("behind", of="behind_seconds", right=True),
        Shown("failing since_utc", of="failing_since", if_any=True),
        Shown("delivered by", of="delivered_by", least=10),
    ),
    below="error",
)
