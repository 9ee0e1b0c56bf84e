"""How often a resting table is looked after: files deleted that no version needs, rows that are too old removed. Pure."""

from __future__ import annotations

import math

from lakebed.log.snapshot import Snapshot
from lakebed.settings import retention_seconds

_DAY_SECONDS = 86_400.0
_SECONDS = (60.0, 3600.0)


def clean_pause_seconds(snapshot: Snapshot, idle_seconds: float) -> float:
    """Seconds until the next time: an hour at most while the table changes or if its rows expire, else a day.

    ``idle_seconds``: since the table changed last. Infinite when nothing can be left to clean.
    """
    log_seconds = snapshot.settings.log_retention_seconds
    kept_seconds = max(log_seconds, retention_seconds(snapshot.metadata.configuration))
    if snapshot.settings.ttl is not None:
        return _SECONDS[1]
    if idle_seconds > kept_seconds + 2 * _DAY_SECONDS:
        return math.inf
    often = max(_SECONDS[0], min(_SECONDS[1], log_seconds / 2))
    return often if idle_seconds < _SECONDS[1] else max(often, _DAY_SECONDS)
