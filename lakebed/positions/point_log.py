"""The log of a database: its commits are points. It is a Delta log without rows, below ``_lakebed/database`` of the database.

    lakebed.point                  {"point": 57, "time_ms": …, "transaction": "754:39412448", "left_out": {…}, …}
    lakebed.point_table.<table>    {"version": 12, "table": "<id>", "position": "1f0c…"}
    lakebed.settled                {"point": 52}
    lakebed.settled_table.<table>  {"version": 14}

1. A commit that takes a point sets the first entry, and those of the tables whose version changed. So the snapshot at one version
   has the whole map, and a table that did not change costs nothing.
2. Points only grow: the commit conflicts with each other one that takes a point, and a point that is not newer is not taken. The
   newest one may be taken again with tables that were left out of it.
3. The entry of a table that is left out stays as it was; ``left_out`` says that it does not count.
4. Tables are settled up to a point later than it was taken. The third and fourth entry say of which point that was done last, and
   at which versions every Delta reader sees it.

**What points need** of one of the tables no cleanup of it may delete. A point says at which version a table is in it. A table
that has read nothing since is the same at later versions too, as the digest of its positions shows, and any of these will do
(``lakebed.database``). Points grow with versions. So all kept points can be read if the table keeps the version of the oldest
kept point, or a later one that has read the same, and all that follow. The versions at which other readers see a settled point
are needed as they are.

A cleanup asks for that before it decides, and a point that is taken meanwhile is of a later version than it deletes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from lakebed.errors import TableNotFound, VersionNotFound
from lakebed.log.actions import Domain
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.entries import POINT, POINT_TABLE, SETTLED, SETTLED_TABLE, Operation
from lakebed.log.entry_values import document_of, integer_of, made, reading
from lakebed.log.holds import trim_log
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog, create_log_without_rows
from lakebed.positions.positions import entry_of, positions_of

FOLDER = "_lakebed/database"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAt:
    """A table in a point, at a version for lakebed's own readers."""

    version: int
    table_id: str  # of the table that had this name at that time
    position: str = ""  # tells what it had read (``position_digest``)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The versions at which every Delta reader sees the tables of a point."""

    number: int
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A moment of the source: every transaction up to ``transaction`` is in, whole, and none after it."""

    number: int  # grows from point to point
    time_ms: int  # when the source committed that transaction
    transaction: str
    tables: Mapping[str, TableAt]  # the tables in the point
    left_out: Mapping[str, str] = field(default_factory=dict)  # tables that are not in the point, and why
    resume: Mapping[str, Any] = field(default_factory=dict)  # what the next process needs to know
    version: int = -1
    """Of the log of the database."""
    taken_ms: int = 0
    """When it was taken."""


class PointLog:
    """The points of a database. Safe to use from several threads."""

    def __init__(self, log: TableLog) -> None:
        self.log = log

    @staticmethod
    def of(path: str) -> PointLog:
        """The log of the database at ``path``, which need not exist."""
        return PointLog(TableLog(open_store(f"{path.rstrip('/')}/{FOLDER}")))

    def create(self) -> None:
        """Create the log, unless it is there. Raises StoreUnavailable."""
        create_log_without_rows(self.log, "point")

    def newest(self) -> Point | None:
        """The newest point; None if there is none, or no log."""
        try:
            return point_of(self.log.refresh())
        except TableNotFound:
            return None

    def take(self, point: Point) -> Point:
        """Take a point, unless there is one that is as new; returns the newest. Raises StoreUnavailable, Contention."""

        def build(snapshot: Snapshot) -> Proposal[Point] | Finished[Point]:
            newest = point_of(snapshot)
            if newest is not None and not _follows(newest, point):
                return Finished(newest)
            before = tables_of(snapshot)
            actions = [
                Domain(POINT_TABLE + name, _text(at)) for name, at in point.tables.items() if before.get(name) != at
            ]
            known = point.tables.keys() | point.left_out.keys()
            actions += [Domain(POINT_TABLE + name, "", removed=True) for name in before if name not in known]
            actions.append(Domain(POINT, orjson.dumps(_document(point)).decode()))

            def result(committed: Any) -> Point:
                taken = point_of(committed.snapshot)
                assert taken is not None
                return taken

            return Proposal(actions=actions, result=result)

        return commit_loop(self.log, Operation.POINT, build)

    def settle(self, settled: Settled) -> None:
        """Say at which versions the tables of a point are settled, unless that is known of a later one.

        Raises StoreUnavailable, Contention.
        """

        def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
            known = settled_of(snapshot)
            if known is not None and known.number >= settled.number:
                return Finished(None)
            before = known.versions if known else {}
            actions = [
                Domain(SETTLED_TABLE + name, orjson.dumps({"version": version}).decode())
                for name, version in settled.versions.items()
                if before.get(name) != version
            ]
            gone = before.keys() - settled.versions.keys()
            actions += [Domain(SETTLED_TABLE + name, "", removed=True) for name in gone]
            actions.append(Domain(SETTLED, orjson.dumps({"point": settled.number}).decode()))
            return Proposal(actions=actions, result=lambda _: None)

        commit_loop(self.log, Operation.POINT, build)

    def settled(self, number: int | None = None) -> Settled:
        """At which versions the tables of a point are settled; by default of the newest that is. Raises VersionNotFound."""
        try:
            snapshot = self.log.refresh()
            found = settled_of(snapshot)
            low, high = self.log.oldest_version(), snapshot.version
        except TableNotFound:
            found = None
        if found is not None and number is not None and found.number != number:
            while low < high:
                middle = (low + high) // 2
                there = settled_of(self.log.at_version(middle))
                low, high = (low, middle) if there is not None and there.number >= number else (middle + 1, high)
            found = settled_of(self.log.at_version(low))
        if found is None or (number is not None and found.number != number):
            raise VersionNotFound(
                f"{'no point is' if number is None else f'point {number} is not'} settled: with database.points.settle_seconds "
                "in its file a pipeline settles all tables up to one point now and then",
                table=self.log.root,
            )
        return found

    def tidy(self) -> int:
        """Delete points that are older than the log's retention; returns how many files went."""
        return trim_log(self.log, self.log.refresh().settings.log_retention_seconds)

    def at(self, number: int | None = None, time_ms: int | None = None) -> Point:
        """The point of a number; or the newest of a time or before; or the newest. Raises VersionNotFound."""
        newest = self.newest()
        if newest is None:
            raise VersionNotFound(
                f"there is no point yet of the database at {self.log.root.removesuffix('/' + FOLDER)}: a pipeline takes them "
                "if its file has database.points and the connector has provide.transaction.metadata set",
                table=self.log.root,
            )
        if number is None and time_ms is None:
            return newest
        found = self._search(
            newest, lambda point: point.number <= number if number is not None else _until(point, time_ms)
        )
        if found is None or (number is not None and found.number != number):
            what = f"point {number}" if number is not None else "a point that old"
            raise VersionNotFound(f"there is no {what}: it was never taken, or has expired", table=self.log.root)
        return found

    def _search(self, newest: Point, is_old: Any) -> Point | None:
        """The newest point that is old enough: points grow with the versions of the log, both their numbers and their times."""
        if is_old(newest):
            return newest
        low, high = self.log.oldest_version(), newest.version
        found: Point | None = None
        while low < high:
            middle = (low + high) // 2
            point = point_of(self.log.at_version(middle))
            if point is None or is_old(point):
                found, low = point or found, middle + 1
            else:
                high = middle
        return found

    def all(self) -> Iterator[Point]:
        """The points that are kept, newest first. Raises StoreUnavailable, Corrupt."""
        number: int | None = None
        with suppress(TableNotFound):
            for snapshot in self.log.snapshots():
                point = point_of(snapshot)
                if point is not None and point.number != number:
                    yield point
                    number = point.number


def _follows(newest: Point, point: Point) -> bool:
    """Whether a point may come after the newest: it is of a later transaction, or of the same one and has more tables."""
    if point.number == newest.number:
        return point.left_out.keys() < newest.left_out.keys()
    return point.number > newest.number


def position_digest(snapshot: Snapshot) -> str:
    """Tells apart what a table has read at different versions; the same as long as it has read nothing more."""
    positions = positions_of(snapshot)
    texts = [entry_of(topic, positions[topic]).configuration for topic in sorted(positions)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def point_of(snapshot: Snapshot) -> Point | None:
    """The point that a version of the log is at. Raises Corrupt."""
    text = snapshot.domains.get(POINT)
    if text is None:
        return None
    document, tables = document_of(POINT, text), tables_of(snapshot)
    with reading(POINT):
        point = made(Point, {**document, "number": document["point"], "version": snapshot.version, "tables": {}})
        return replace(point, tables={name: at for name, at in tables.items() if name not in point.left_out})


def tables_of(snapshot: Snapshot) -> dict[str, TableAt]:
    """What the entries of tables say, also of those that are left out. Raises Corrupt."""
    return {
        domain.removeprefix(POINT_TABLE): table_at_of(domain, text)
        for domain, text in snapshot.domains.items()
        if domain.startswith(POINT_TABLE)
    }


def table_at_of(domain: str, text: str) -> TableAt:
    """What the entry of a table says. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        return made(TableAt, {**document, "table_id": document["table"]})


def settled_of(snapshot: Snapshot) -> Settled | None:
    """Of which point the tables are settled, as a version of the log says. Raises Corrupt."""
    text = snapshot.domains.get(SETTLED)
    if text is None:
        return None
    versions = {
        domain.removeprefix(SETTLED_TABLE): integer_of(domain, one, "version")
        for domain, one in snapshot.domains.items()
        if domain.startswith(SETTLED_TABLE)
    }
    return Settled(number=integer_of(SETTLED, text, "point"), versions=versions)


def _document(point: Point) -> dict[str, Any]:
    return {
        "point": point.number,
        "time_ms": point.time_ms,
        "transaction": point.transaction,
        "left_out": dict(point.left_out),
        "resume": dict(point.resume),
        "taken_ms": point.taken_ms,
    }


def _text(at: TableAt) -> str:
    return orjson.dumps({"version": at.version, "table": at.table_id, "position": at.position}).decode()


def _until(point: Point, time_ms: int | None) -> bool:
    return time_ms is not None and point.time_ms <= time_ms


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
