"""Report the remarks of a commit: an event for each, and a warning the first time."""

from __future__ import annotations

import logging

from lakebed import events
from lakebed.remarks import KINDS, Counts

_logger = logging.getLogger("lakebed.ingest")
_WARNED_MAX = 10_000
_warned: set[tuple[str, str, str]] = set()


def report_remarks(table: str, remarks: Counts) -> None:
    """Emit the remarks of a commit. The log of this process gets one warning for each name of a table."""
    for kind, names in remarks.items():
        for name, records in names.items():
            events.emit(events.RemarkMade(table=table, kind=kind, name=name, records=records))
            if KINDS[kind].is_finding and _is_new(table, kind, name):
                _logger.warning("%s: %s: %r. What to do: %s", table, KINDS[kind].what, name, KINDS[kind].remedy)


def _is_new(table: str, kind: str, name: str) -> bool:
    if (table, kind, name) in _warned:
        return False
    if len(_warned) >= _WARNED_MAX:
        _warned.clear()
    _warned.add((table, kind, name))
    return True
