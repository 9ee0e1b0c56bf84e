"""Restore: the table is again what it was at an earlier version, in one commit. No row is rewritten and no file is moved.

1. The base gets the parts of the earlier version, with the dead rows that they had. The tail gets its change parts: they join it
   again, in their order, as the changes of this commit (T1). What else is in base and tail leaves.
2. Claims end whose sources leave or get other dead rows: their merges can't carry over rows that live again.
3. Detached partitions are those of the earlier version, but for those that were dropped since: their files may be gone.
4. If asked, positions of topics go back too, with the truncates of the source that the table had seen: so what was read since is
   read again, each record once.
5. A comparison with the source that was stopped begins anew: rows that it found equal are other ones now.
6. All else stays: columns, properties, files and batches that were read, and positions unless asked. So ingest goes on.

The commit is on condition that nothing came in between: whatever did is taken out too, so step 1 begins again. What others
planned before may follow it if it reads nothing of the table: a batch joins what was restored. Everything else that they planned
conflicts (``conflicts``): a settle, a merge or a mutation is worked out again.

The files of a version within retention, or of one that a reader holds, are there (G1). A cleanup commits which versions expire
before it deletes anything, and this commit would conflict with it. So looking for files first only finds what others deleted.

**Rewind** reads the source of a table again: its positions move back, or the order of its changes restarts. The commit sets only
the entry of the topic (``positions.positions``). A pipeline that is reading the topic meanwhile loses its commit against this
one, and goes on from the new position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import orjson

from lakebed.column_groups import AGGREGATE
from lakebed.coordination.rewriting import alone
from lakebed.errors import InvalidInput, Unsupported, VersionNotFound
from lakebed.log.actions import Action, AddChangePart, AddPart, ChangePart, Domain, Part, RemoveChangePart, RemovePart
from lakebed.log.claims import claims_of
from lakebed.log.commit_codec import add_from_json
from lakebed.log.commit_kind import CommitKind, kind_of, restored
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import DETACHED, ORDER_RESTARTS, SOURCE_TRUNCATES, VERIFYING, Operation
from lakebed.log.holds import require_unexpired, require_unpurged
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed, TableLog
from lakebed.parts.changes import SEQUENCE_COLUMN, write_spec_of
from lakebed.parts.intact import require_intact_pages
from lakebed.positions.positions import Position, entry_of, newest_by_place, position_entry, positions_of
from lakebed.positions.remarks import remarks_of
from lakebed.positions.truncates import RESTARTS_MAX, Restart, restarts_entry, restarts_of
from lakebed.remarks import Remark
from lakebed.schema.column_mapping import misfit
from lakebed.schema.metadata import GATE_FEATURE
from lakebed.settings import suggest
from lakebed.sql import parquet_of
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

_FOLDER = "_lakebed/"
_ASKED_ONE_BY_ONE = 16  # of more files than these the folder is listed


def restore(
    log: TableLog,
    storage: PartStorage,
    earlier: Snapshot,
    clock: Callable[[], float] = time.time,
    *,
    positions: bool = False,
) -> int:
    """Make the table what it was at ``earlier``; returns the version that is.

    Raises VersionNotFound (it has expired, or a file of it is gone), Unsupported (it is from before the table was lakebed's),
    InvalidInput (its rows don't fit the columns), Contention, StoreUnavailable.
    """
    if GATE_FEATURE not in earlier.protocol.writer_features:
        raise Unsupported(
            f"version {earlier.version} can't be restored: it is from before lakebed adopted the table, which checked the rows "
            "of a later one",
            version=earlier.version,
        )
    restoring = _Restoring(log=log, storage=storage, earlier=earlier, clock=clock, positions=positions)
    with alone(log, Operation.RESTORE):
        return commit_loop(log, Operation.RESTORE, restoring.build, repeatable=False)


@dataclass(slots=True, kw_only=True)
class _Restoring:
    """A restore under way. ``positions``: whether they go back; ``found``: files of the earlier version that are there."""

    log: TableLog
    storage: PartStorage
    earlier: Snapshot
    clock: Callable[[], float]
    positions: bool
    found: set[str] = field(default_factory=set)

    def build(self, now: Snapshot) -> Proposal[int] | Finished[int]:
        """Steps 1 to 4."""
        earlier = self.earlier
        require_unexpired(now.domains, earlier.version, self.log.now_ms())
        require_unpurged(now.domains, earlier.version)  # also one that a reader holds: purged rows would live again
        _require_fitting(earlier, now)
        base = list(self._base(now))
        tail = list(_tail(earlier, now))
        detached = list(self._detached(now))
        read = list(_positions(earlier, now)) if self.positions else []
        compared = [Domain(VERIFYING, "", removed=True)] if VERIFYING in now.domains else []
        if not (base or tail or detached or read):
            return Finished(now.version)
        self._require_files([*base, *tail, *detached])
        added = [action.part for action in base if isinstance(action, AddPart)]
        changed = {action.path for action in base if isinstance(action, RemovePart)}
        claims = [one.ended() for one in claims_of(now.domains).values() if not changed.isdisjoint(one.sources)]
        entry = restored(
            now.version + 1, earlier.version
        )  # a commit that touches the whole table is the next one or none
        metrics = {
            "partsRestored": len(added),
            "partsRemoved": len(changed),
            "changePartsRestored": sum(isinstance(action, AddChangePart) for action in tail),
            "changePartsRemoved": sum(isinstance(action, RemoveChangePart) for action in tail),
            "rows": sum(part.live_rows for part in earlier.parts.values()),
            "positions": len(read),
            "changes": sum(part.rows for part in earlier.tail.values()),
        }
        return Proposal(
            actions=[*base, *tail, *claims, *detached, *read, *compared, entry],
            access=ReadWriteSet(whole_table=True),
            result=self._result,
            parameters={"version": earlier.version},
            metrics=metrics,
        )

    def _result(self, committed: Committed) -> int:
        self.log.checkpoint_if_due(committed.snapshot, slack=2)
        return committed.version

    def _base(self, now: Snapshot) -> Iterator[AddPart | RemovePart]:
        now_ms, earlier = int(self.clock() * 1000), self.earlier
        for path, part in now.parts.items():
            if path not in earlier.parts or earlier.parts[path].deletion_vector != part.deletion_vector:
                yield part.removed(now_ms)
        for path, part in earlier.parts.items():
            if path not in now.parts or now.parts[path].deletion_vector != part.deletion_vector:
                yield AddPart(part)

    def _detached(self, now: Snapshot) -> Iterator[Domain]:
        """Step 3. Versions before ``restored`` may need the files of an entry as parts of the base."""
        then = {name: text for name, text in self.earlier.domains.items() if name.startswith(DETACHED)}
        for name in now.domains:
            if name.startswith(DETACHED) and name not in then:
                yield Domain(name, "", removed=True)
        missing = then.keys() - now.domains.keys()
        if missing:
            missing -= _dropped(self.log, self.earlier.version + 1, now.version)
        for name in sorted(missing):
            value = orjson.loads(then[name]) | {"restored": now.version + 1}
            yield Domain(name, orjson.dumps(value).decode())

    def _require_files(self, actions: Iterable[Action]) -> None:
        """Raises VersionNotFound, naming one, if files that come back are gone."""
        wanted = {path for action in actions for path in _files_of(action)} - self.found
        gone = _missing(wanted, self.storage)
        if gone:
            others = f" and {len(gone) - 1} other files are" if len(gone) > 1 else " is"
            raise VersionNotFound(
                f"version {self.earlier.version} can't be restored: {gone[0]}{others} gone; nothing was changed. Bring the "
                "files back from a copy of the store, or restore another version",
                version=self.earlier.version,
            )
        self.found |= wanted


def _tail(earlier: Snapshot, now: Snapshot) -> Iterator[Action]:
    if [part.path for part in earlier.tail_in_order()] == [part.path for part in now.tail_in_order()]:
        return
    for domain in now.tail:
        if domain not in earlier.tail:
            yield RemoveChangePart(domain)
    for ordinal, part in enumerate(earlier.tail_in_order()):
        yield AddChangePart(replace(part, ordinal=ordinal))


def _positions(earlier: Snapshot, now: Snapshot) -> Iterator[Domain]:
    """Step 4. Where a topic is in transactions is not known any more, as after a rewind."""
    then = positions_of(earlier)
    for topic, position in positions_of(now).items():
        old = then.get(topic)
        if old is None:
            yield Domain(position_entry(topic), "", removed=True)
        elif old.topic_id != position.topic_id:
            raise InvalidInput(
                f"the position of {topic!r} can't go back to that of version {earlier.version}: the topic was created again, "
                "and its offsets mean other records; restore without positions",
                version=earlier.version,
            )
        elif old.offsets != position.offsets:
            yield entry_of(topic, replace(old, transactions=None))
    truncates = earlier.domains.get(SOURCE_TRUNCATES)
    if truncates != now.domains.get(SOURCE_TRUNCATES):
        yield Domain(SOURCE_TRUNCATES, truncates or "", removed=truncates is None)


def _dropped(log: TableLog, first: int, last: int) -> set[str]:
    """Entries of detached partitions that were dropped in these versions."""
    return {
        action.domain
        for commit in log.commits(first, last)
        if kind_of(commit) is CommitKind.DROP_DETACHED
        for action in commit.actions
        if isinstance(action, Domain) and action.removed
    }


def _require_fitting(earlier: Snapshot, now: Snapshot) -> None:
    """Raises InvalidInput, naming a column that the rows of the earlier version can't be read with."""
    if why := misfit(earlier.schema, now.schema, now.partition_columns):
        column = ".".join((now.columns.logical_name(why.path[0]), *why.path[1:]))
        raise InvalidInput(
            f"version {earlier.version} can't be restored: the table was altered since, and its column {column!r} {why.reason}; "
            f"read that version (to_arrow(version={earlier.version})) and apply its rows",
            version=earlier.version,
        )


def _files_of(action: Action) -> Iterator[str]:
    match action:
        case AddPart(part):
            yield from _of_part(part)
        case AddChangePart(change_part):
            yield change_part.path
        case Domain(_, text, False):
            for body in orjson.loads(text)["parts"]:
                yield from _of_part(add_from_json(body))
        case _:
            pass


def _of_part(part: Part) -> Iterator[str]:
    yield part.path
    vector = part.deletion_vector.file_path() if part.deletion_vector else None
    if vector:
        yield vector


def _missing(paths: set[str], storage: PartStorage) -> list[str]:
    """Those that are not there, by one listing if they are many."""
    there: set[str] = set()
    if len(paths) > _ASKED_ONE_BY_ONE:
        there = {path for path, _, _ in storage.list(_FOLDER)}
    return sorted(path for path in paths - there if not storage.exists(path))


# -- Restarts the order of a table's changes -------------------------------------------------------------------------------
#
# The greatest place that the table has is read from its files, of all rows, dead ones and deletes included. A sixteenth is added
# to it, because records of the order that ended may still be on their way. A batch that commits meanwhile is a conflict, and
# all is done again; a batch that was read with the order as it was before is read again.


_PLACE_MAX = 1 << 62
"""Beyond it there is no room for another order."""


def restart_order(log: TableLog, storage: PartStorage) -> int:
    """Restart the order at the positions of the table; returns the version.

    Raises as ``restarted``; Contention, StoreUnavailable.
    """

    def build(snapshot: Snapshot) -> Proposal[int]:
        offsets = {topic: position.offsets for topic, position in positions_of(snapshot).items()}
        return Proposal(
            actions=[restarted(snapshot, offsets, storage)],
            access=ReadWriteSet(domains=_rests_on(snapshot)),
            result=lambda committed: committed.version,
        )

    return commit_loop(log, Operation.RESTART_ORDER, build)


def needs_restart(snapshot: Snapshot) -> bool:
    """Whether rows that are sent again may lose against those that the table has, and a restart of its order helps."""
    kinds = remarks_of(snapshot).kinds
    return (Remark.ORDER_BEGAN_AGAIN in kinds or Remark.BATCH_LOST in kinds) and _why_not(snapshot) is None


def restarting(
    storage: PartStorage, topic: str, offsets: Mapping[int, int]
) -> Callable[[Snapshot], tuple[list[Domain], frozenset[str]]]:
    """What a commit does besides that restarts the order at these offsets of a topic, and the entries that this rests on."""
    return lambda snapshot: ([restarted(snapshot, {topic: offsets}, storage)], _rests_on(snapshot))


def _rests_on(snapshot: Snapshot) -> frozenset[str]:
    """The entries that a restart depends on."""
    return frozenset(map(position_entry, positions_of(snapshot))) | {ORDER_RESTARTS}


def restarted(snapshot: Snapshot, offsets: Mapping[str, Mapping[int, int]], storage: PartStorage) -> Domain:
    """The entry after a restart at these offsets of topics, which the table reads.

    Raises InvalidInput if there is no order that could be restarted, or no room for another one.
    """
    if why := _why_not(snapshot):
        raise InvalidInput(why, table=storage.root)
    known = positions_of(snapshot)
    if not offsets.keys() & known.keys():
        raise InvalidInput("the table has read no topic yet, so there is no order to restart", table=storage.root)
    places = [newest.place for newest in newest_by_place(known).values()]
    highest = max([_highest_place(snapshot, storage), *places])
    add = highest + highest // 16
    if add >= _PLACE_MAX:
        raise InvalidInput(
            "the order was restarted so often that its numbers are used up; move the table away, so that it is made again",
            table=storage.root,
        )
    new = [
        Restart(topic=topic, id=known[topic].topic_id, offsets=dict(of), add=add)
        for topic, of in offsets.items()
        if topic in known
    ]
    return restarts_entry((*restarts_of(snapshot), *new)[-RESTARTS_MAX:])


def _why_not(snapshot: Snapshot) -> str | None:
    """Why the order of a table can't be restarted; None if it can."""
    settings = snapshot.logical_settings
    if settings.sequence_by is None:
        return "changes of the table count in the order of their arrival, so there is no order to restart"
    if write_spec_of(snapshot).sequence_column != SEQUENCE_COLUMN:
        return (
            f"the table's column {settings.sequence_by!r} orders its changes, so no other order can be given to them; empty the "
            "table (lakebed delete --all) and have all rows sent again"
        )
    return None


def _highest_place(snapshot: Snapshot, storage: PartStorage) -> int:
    """The greatest place that any row or delete in the table's files has; 0 without any. Raises Corrupt."""
    parts: list[Part | ChangePart] = [*snapshot.parts.values(), *snapshot.tail.values()]
    for part in parts:
        require_intact_pages(part, storage, [SEQUENCE_COLUMN])
    urls = [storage.duckdb_url(part.path) for part in parts]
    if not urls:
        return 0
    with connect() as connection:
        storage.attach(connection)
        source = parquet_of(urls, {SEQUENCE_COLUMN: ("place", "BIGINT")})
        [found] = connection.execute(f"select max(place) from {source}").fetchall()
    return max(0, int(found[0] or 0))


# -- Moves the positions of a table back -----------------------------------------------------------------------------------


def rewind(log: TableLog, topic: str, to: int | Mapping[int, int] | None = None) -> int:
    """See ``TableMaintenance.rewind``. Returns the version."""

    def build(snapshot: Snapshot) -> Proposal[int] | Finished[int]:
        if summed := [one.column for one in snapshot.logical_settings.aggregates if one.function == "sum"]:
            raise InvalidInput(
                f"the column {summed[0]!r} is a sum of all changes ({AGGREGATE}{summed[0]}), and records that are read again "
                "would be added once more; to read the topic from its begin, drop the table and create it again"
            )
        positions = positions_of(snapshot)
        position = positions.get(topic)
        if position is None:
            read = f"; it has read {', '.join(sorted(positions))}" if positions else ""
            raise InvalidInput(f"the table has read no topic {topic!r}{read}{suggest(topic, list(positions))}")
        action = Domain(position_entry(topic), "", removed=True)
        if to is not None:
            moved = replace(position, offsets={**position.offsets, **_wanted(topic, position, to)}, transactions=None)
            if moved.offsets == position.offsets:
                return Finished(snapshot.version)
            action = entry_of(topic, moved)
        return Proposal(
            actions=[action],
            result=lambda committed: committed.version,
            parameters={
                "topic": topic,
                "to": to if to is None or isinstance(to, int) else {str(n): o for n, o in to.items()},
            },
        )

    return commit_loop(log, Operation.REWIND, build)


def _wanted(topic: str, position: Position, to: int | Mapping[int, int]) -> dict[int, int]:
    """The new offsets; one for all partitions leaves those alone that are before it."""
    if isinstance(to, int):
        if to < 0:
            raise InvalidInput(f"offset {to} is below 0")
        return {number: min(to, offset) for number, offset in position.offsets.items()}
    for number, offset in to.items():
        if number not in position.offsets:
            known = ", ".join(map(str, sorted(position.offsets)))
            raise InvalidInput(f"the table has not read partition {number} of topic {topic!r}; it has read {known}")
        if not 0 <= offset <= position.offsets[number]:
            raise InvalidInput(
                f"topic {topic!r} partition {number}: offset {offset} is not between 0 and {position.offsets[number]}, up to "
                "where the table has read; to go forward would lose records"
            )
    return dict(to)
