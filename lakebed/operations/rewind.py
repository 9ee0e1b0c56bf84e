"""Reads the source of a table again: its positions move back, or the order of its changes restarts (``order_restarts``).

The commit sets only the entry of the topic (``positions.positions``). A pipeline that is reading the topic meanwhile loses its
commit against this one, and goes on from the new position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lakebed.column_groups import AGGREGATE
from lakebed.errors import InvalidInput
from lakebed.log.actions import Action, ChangePart, Domain, Part
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import ORDER_RESTARTS, Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.parts.changes import SEQUENCE_COLUMN, write_spec_of
from lakebed.parts.intact import require_intact_pages
from lakebed.positions.order_restarts import RESTARTS_MAX, Restart, restarts_entry, restarts_of
from lakebed.positions.positions import Position, entry_of, newest_by_place, position_entry, positions_of
from lakebed.positions.remarks import remarks_of
from lakebed.remarks import Remark
from lakebed.settings import suggest
from lakebed.sql.pieces import parquet_of
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

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
        action: Action = Domain(position_entry(topic), "", removed=True)
        if to is not None:
            moved = replace(position, offsets={**position.offsets, **_wanted(topic, position, to)}, transactions=None)
            if moved.offsets == position.offsets:
                return Finished(snapshot.version)
            action = entry_of(topic, moved)
        return Proposal(
            actions=[action],
            access=ReadWriteSet(domains=frozenset([position_entry(topic)])),
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
