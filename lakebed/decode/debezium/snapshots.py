"""Debezium's signal that asks for rows again (an incremental snapshot), and its notifications of how far that is.

The signal: ``{"id": …, "type": "execute-snapshot", "data": {"type": "incremental", "data-collections": [patterns]}}``. A
notification: ``{"id": the signal's, "aggregate_type": "Incremental Snapshot", "type": "IN_PROGRESS", "additional_data":
{"connector_name": …, "current_collection_in_progress": "public.orders", …}, "timestamp": …}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from lakebed.errors import InvalidInput

_PLAIN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_OF_SNAPSHOTS = "Incremental Snapshot"
_GOOD = ("SUCCEEDED", "EMPTY")


def snapshot_signal(signal_id: str, tables: Sequence[str], where: str | None = None) -> bytes:
    """The value of the record that asks for all rows of tables (``schema.table``, of MySQL ``database.table``), or for those
    for which the source's SQL ``where`` is true.
    """
    patterns = [_pattern(table) for table in tables]
    data: dict[str, Any] = {"type": "incremental", "data-collections": patterns}
    if where is not None:
        data["additional-conditions"] = [{"data-collection": pattern, "filter": where} for pattern in patterns]
    return orjson.dumps({"id": signal_id, "type": "execute-snapshot", "data": data})


def _pattern(table: str) -> str:
    """A regular expression that matches one name alone.

    A plain name is one already, since the dot of the pattern can only be that of the name. Debezium takes a text that matches
    no table for a name, so a plain name is also found when the connector has not seen the table yet.
    """
    return table if _PLAIN.fullmatch(table) else re.escape(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """What a connector says of an incremental snapshot. ``kind``: ``STARTED``, ``IN_PROGRESS``, ``COMPLETED`` …"""

    signal_id: str
    connector: str
    kind: str
    data: Mapping[str, str] = field(default_factory=dict)


def read_notification(
    value: bytes | None, typed: Callable[[bytes], Mapping[str, Any]] | None = None
) -> Notification | None:
    """The notification in a record; None for one of anything but incremental snapshots.

    In JSON, with an inline schema or without; else ``typed`` reads it, which raises ``Unreadable``. Raises InvalidInput for a
    record that is no notification.
    """
    if value is None:
        return None
    try:
        document = orjson.loads(value) if typed is None or value.startswith(b"{") else typed(value)
        document = document.get("payload", document)
        if document["aggregate_type"] != _OF_SNAPSHOTS:
            return None
        data = {str(name): str(text) for name, text in dict(document["additional_data"] or {}).items()}
        return Notification(
            signal_id=str(document["id"]),
            connector=data.get("connector_name", ""),
            kind=str(document["type"]),
            data=data,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        form = "in JSON" if typed is None else "in the pipeline's format"
        raise InvalidInput(
            f"a record of database.notification_topic is no notification {form} ({error!r}); it must be the connector's "
            "notification.sink.topic.name, written with the converter that the pipeline's format is for"
        ) from None


class SnapshotProgress:
    """How far the snapshot is that a signal asked for, by the notifications in their order.

    A connector takes one snapshot at a time: a later signal adds its tables to the one that runs, and its id replaces the
    first one's. So from the first notification with the id of the signal on, all those of the connector count.
    """

    def __init__(self, signal_id: str, connector: str, tables: Sequence[str]) -> None:
        self._signal_id = signal_id
        self._connector = connector
        self._tables = tuple(tables)
        self._table: str | None = tables[0] if len(tables) == 1 else None
        self.has_begun = False
        self.is_over = False
        self.was_aborted = False
        self.rows: dict[str, int] = {}
        """Rows that were read of each table whose scan is over."""
        self.failed: dict[str, str] = {}
        """Debezium's reason for each table whose rows it did not send."""

    def take(self, notification: Notification) -> str | None:
        """What the notification says, for people; None if it is of another snapshot, or says nothing."""
        if notification.connector != self._connector:
            return None
        self.has_begun = self.has_begun or notification.signal_id == self._signal_id
        if not self.has_begun:
            return None
        data = notification.data
        match notification.kind:
            case "STARTED":
                return "the connector has begun"
            case "PAUSED":
                return "the snapshot is paused"
            case "RESUMED":
                return "the snapshot goes on"
            case "IN_PROGRESS":
                self._table = data.get("current_collection_in_progress", self._table)
                last, most = data.get("last_processed_key"), data.get("maximum_key")
                return f"{self._table}: up to key {last}" + (f" of {most}" if most else "")
            case "TABLE_SCAN_COMPLETED":
                return self._scanned(data)
            case "COMPLETED":
                self.is_over = True
            case "ABORTED":
                self.is_over = self.was_aborted = True
        return None

    def _scanned(self, data: Mapping[str, str]) -> str:
        table = data.get("scanned_collection") or self._table or data.get("data_collections", "a table")
        status = data.get("status", "SUCCEEDED")
        if status not in _GOOD:
            self.rows.pop(table, None)
            self.failed[table] = status
            return f"{table}: {status}"
        self.failed.pop(table, None)
        self.rows[table] = 0 if status == "EMPTY" else int(data.get("total_rows_scanned", "0"))
        return f"{table}: {self.rows[table]:,} rows"
