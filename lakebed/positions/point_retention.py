"""What the points of a database need of one of its tables: no cleanup of the table may delete it.

A point says at which version a table is in it. A table that has read nothing since is the same at later versions too, as the
digest of its positions shows, and any of these will do (``database.warehouse``). Points grow with versions. So all kept points
can be read if the table keeps the version of the oldest kept point, or a later one that has read the same, and all that follow.
The versions at which other readers see a settled point are needed as they are.

A cleanup asks for that before it decides, and a point that is taken meanwhile is of a later version than it deletes.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.errors import TableNotFound, VersionNotFound
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.positions.point_log import FOLDER, PointLog, TableAt, point_of, position_digest, settled_of, tables_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needed:
    """By the oldest kept point, taken at ``taken_ms``. ``settled``: the version that other readers need; None: none."""

    at: TableAt
    taken_ms: int
    settled: int | None


def oldest_for_points(log: TableLog, newest: Snapshot, version: int) -> int:
    """The oldest version that a table must keep if it need not keep those before ``version`` for itself.

    Raises StoreUnavailable, and Retry if the log of points is being cleaned up at this moment.
    """
    needed = _needed(log.root, newest) if newest.settings.source_topic is not None else None
    if needed is None:
        return version
    if isinstance(needed, int):
        return min(version, needed)
    if needed.settled is not None:
        version = min(version, needed.settled)
    if version <= needed.at.version or _is_as_of(log, version, needed.at):
        return version
    try:
        then = log.version_at(needed.taken_ms)
    except VersionNotFound:
        then = needed.at.version
    return then if needed.at.version <= then < version and _is_as_of(log, then, needed.at) else needed.at.version


def _needed(root: str, newest: Snapshot) -> _Needed | int | None:
    """What points need of a table; 0: all that it has; None: nothing."""
    database = root.rstrip("/").rsplit("/", 2)[0]
    points = PointLog(TableLog(open_store(f"{database}/{FOLDER}")))
    try:
        oldest = points.log.at_version(points.log.oldest_version())
    except (TableNotFound, VersionNotFound):
        return None
    found = {at.table_id: (name, at) for name, at in tables_of(oldest).items()}.get(newest.metadata.id)
    point = point_of(oldest)
    if found is not None and point is not None:
        name, at = found
        settled = settled_of(oldest)
        return _Needed(at=at, taken_ms=point.taken_ms, settled=settled.versions.get(name) if settled else None)
    known = {at.table_id for at in tables_of(points.log.refresh()).values()}
    return 0 if newest.metadata.id in known else None  # it came into the points since


def _is_as_of(log: TableLog, version: int, at: TableAt) -> bool:
    """Whether a table has read at a version what it had read at another one before."""
    try:
        return position_digest(log.at_version(version)) == at.position
    except VersionNotFound:
        return False
