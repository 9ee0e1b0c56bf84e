"""Report the names in a batch that its table has no place for: an event for each, and a warning the first time."""

from __future__ import annotations

import logging

from lakebed import events
from lakebed.ingest.batch_writer import Written

_logger = logging.getLogger("lakebed.ingest")
_WARNED_MAX = 10_000
_warned: set[tuple[str, str, str]] = set()


def report_unknown(table: str, written: Written) -> None:
    """Emit the events of a batch that was committed. The log of this process gets one warning for each name of a table."""
    for name, records in written.unknown_fields.items():
        events.emit(events.NameUnknown(table=table, kind="field", name=name, records=records))
        if _is_new(table, "field", name):
            _logger.warning(
                "%s: records have the field %r, which no column takes: add a column, or have it ignored "
                "(unknown_fields: ignore; except_column_list)", table, name,
            )  # fmt: skip
    for name, records in written.unknown_operations.items():
        events.emit(events.NameUnknown(table=table, kind="operation", name=name, records=records))
        if _is_new(table, "operation", name):
            _logger.warning(
                "%s: records have the operation %r, which is not known: they are in the quarantine. If it is one, add it to "
                "delete_values or to upsert_values of the format", table, name,
            )  # fmt: skip


def _is_new(table: str, kind: str, name: str) -> bool:
    if (table, kind, name) in _warned:
        return False
    if len(_warned) >= _WARNED_MAX:
        _warned.clear()
    _warned.add((table, kind, name))
    return True
