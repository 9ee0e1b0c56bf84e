"""Moves the positions of a table back, so that records of its source are read again.

The commit sets only the entry of the topic (``positions.positions``). A pipeline that is reading the topic meanwhile loses its
commit against this one, and goes on from the new position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lakebed.errors import InvalidInput
from lakebed.log.actions import Action, Domain
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.positions.positions import Position, entry_of, position_entry, positions_of
from lakebed.settings import suggest


def rewind(log: TableLog, topic: str, to: int | Mapping[int, int] | None = None) -> int:
    """See ``TableMaintenance.rewind``. Returns the version."""

    def build(snapshot: Snapshot) -> Proposal[int] | Finished[int]:
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
