"""How often the files of a resting table are cleaned up that no version needs any more. Pure."""

from __future__ import annotations

import math

from lakebed.manifest.snapshot import Snapshot
from lakebed.settings import retention_seconds

_DAY_SECONDS = 86_400.0
_SECONDS = (60.0, 3600.0)


def clean_pause_seconds(snapshot: Snapshot, idle_seconds: float) -> float:
    """Seconds until the next cleanup: an hour at most while the table changes, a day when it does not.

    ``idle_seconds``: since the table changed last. Infinite when nothing can be left to clean.
    """
    log_seconds = snapshot.settings.log_retention_seconds
    kept_seconds = max(log_seconds, retention_seconds(snapshot.metadata.configuration))
    if idle_seconds > kept_seconds + 2 * _DAY_SECONDS:
        return math.inf
    often = max(_SECONDS[0], min(_SECONDS[1], log_seconds / 2))
    return often if idle_seconds < _SECONDS[1] else max(often, _DAY_SECONDS)
