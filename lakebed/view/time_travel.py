"""Find the version that a reader asks for, by its number or by a time."""

from __future__ import annotations

import datetime

from lakebed.errors import InvalidInput
from lakebed.log.holds import require_unexpired
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog


def snapshot_at(log: TableLog, version: int | None = None, timestamp: str | float | None = None) -> Snapshot:
    """The newest snapshot, the one of ``version``, or the newest that was committed until ``timestamp``.

    ``timestamp`` is epoch seconds or an ISO text, which is UTC without an offset. Raises VersionNotFound, InvalidInput.
    """
    if version is not None and timestamp is not None:
        raise InvalidInput("give a version or a timestamp, not both")
    newest = log.refresh()
    if timestamp is not None:
        version = log.version_at(epoch_ms(timestamp))
    if version is None:
        return newest
    require_unexpired(newest.domains, version, log.now_ms())
    return log.at_version(version)


def epoch_ms(timestamp: str | float) -> int:
    """Milliseconds of a time: epoch seconds, or an ISO text, which is UTC without an offset. Raises InvalidInput."""
    try:
        if isinstance(timestamp, (int, float)):
            datetime.datetime.fromtimestamp(timestamp, datetime.UTC)  # in the years that messages can show
            return int(timestamp * 1000)
        moment = datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    except (ValueError, OverflowError, OSError):  # an infinity, or a year that Python lacks
        raise InvalidInput(f"{timestamp!r} is not a time; write for example '2026-01-31T12:00:00Z'") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)
