"""What a table is at a version, as the service answers it: made once a version, however often it is asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

import orjson

from lakebed.coordination.jobs import jobs_of
from lakebed.coordination.parked import parked_of
from lakebed.coordination.table_figures import figures_of
from lakebed.jobs.actions import DROP
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.service.answers import columns_of, time_text

_DESCRIBED_MAX = 1_000
_FIGURES = ("rows", "dead_rows", "bytes", "parts", "tail_parts", "tail_rows", "tail_bytes", "unsorted_parts")


class Descriptions:
    """Descriptions of tables, made once a version."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, bytes]] = OrderedDict()  # by root: of which version, and the JSON
        self._lock = threading.Lock()  # of what is kept

    def of(self, name: str, log: TableLog, snapshot: Snapshot) -> bytes:
        """The description of a version of a table, as JSON."""
        tag = tag_of(snapshot)
        kept = self._kept.get(log.root)
        if kept is None or kept[0] != tag:
            kept = tag, orjson.dumps(describe(name, log.root, snapshot))
        with self._lock:
            self._kept[log.root] = kept
            self._kept.move_to_end(log.root)
            if len(self._kept) > _DESCRIBED_MAX:
                self._kept.popitem(last=False)
        return kept[1]


def tag_of(snapshot: Snapshot) -> str:
    """Differs between any two versions of any two tables."""
    return f"{snapshot.metadata.id}-{snapshot.version}-{snapshot.digest}"


def describe(name: str, root: str, snapshot: Snapshot) -> dict[str, Any]:
    """What a table is at a version."""
    settings, figures, parked = snapshot.logical_settings, figures_of(snapshot), parked_of(snapshot)
    dropped = next((job for job in jobs_of(snapshot) if job.kind == DROP and not job.has_ended), None)
    return {
        "name": name,
        "root": root,
        "id": snapshot.metadata.id,
        "version": snapshot.version,
        "committed_at": time_text(snapshot.timestamp_ms),
        "columns": columns_of(snapshot.logical_schema),
        "keys": list(settings.keys),
        "sort_key": list(settings.sort_key),
        "sequence_by": settings.sequence_by,
        "partition_by": list(snapshot.metadata.partition_columns),
        "properties": dict(snapshot.metadata.configuration),
        "figures": {each: getattr(figures, each) for each in _FIGURES},
        "parked": None if parked is None else asdict(parked),
        "drop_at": None if dropped is None else time_text(dropped.not_before_ms),
    }
