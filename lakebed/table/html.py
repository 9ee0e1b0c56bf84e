"""What a notebook shows of a table: where it is, how large, what orders it, its columns."""

from __future__ import annotations

from lakebed.log.snapshot import Snapshot
from lakebed.notebook import html_record, html_table


def table_as_html(path: str, snapshot: Snapshot) -> str:
    """The table at one version, as HTML; taken from the log alone."""
    settings = snapshot.logical_settings
    facts = {
        "version": snapshot.version,
        "settled rows": sum(part.live_rows for part in snapshot.parts.values()),
        "parts": len(snapshot.parts),
        "changes in the tail": sum(part.rows for part in snapshot.tail.values()),
        "keys": ", ".join(settings.keys) or "none: append only",
        "sort key": ", ".join(settings.order_by),
        "sequence by": settings.sequence_by,
        "partitions": ", ".join(snapshot.metadata.partition_columns),
    }
    columns = [(field.name, field.type, "" if field.nullable else "not null") for field in snapshot.logical_schema]
    return html_record(path, facts) + html_table(("column", "type", ""), columns)
