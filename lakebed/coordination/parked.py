"""Parked tables: the pipeline of their database leaves them alone, because reading into them failed and would fail again.

The entry ``lakebed.parked`` of the table's own log says why and since when. It says nothing of what was read: that is in the
table's positions, so a table that is resumed goes on where it stopped. Whoever removes the entry resumes it, from any process.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import orjson

from lakebed.errors import Corrupt
from lakebed.log.actions import Domain
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import PARKED, Operation
from lakebed.log.entry_values import decoded
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Why a table is parked. ``kind``: the class of the error; ``since_ms``: epoch milliseconds; ``failures``: in a row."""

    error: str
    kind: str
    since_ms: int
    failures: int = 1


def parked_of(snapshot: Snapshot) -> Parked | None:
    """Why a table is parked; None if it is not. One whose entry can't be read is parked too."""
    text = snapshot.domains.get(PARKED)
    if text is None:
        return None
    try:
        return decoded(Parked, PARKED, text)
    except Corrupt as error:
        return Parked(error=str(error), kind="Corrupt", since_ms=0)


def park(log: TableLog, parked: Parked) -> bool:
    """Park a table; returns whether it was not parked yet. One that was keeps its reason.

    Raises Contention, StoreUnavailable, TableNotFound.
    """
    text = orjson.dumps(asdict(parked)).decode()
    return _commit(log, Operation.PARK, Domain(PARKED, text))


def resume(log: TableLog) -> bool:
    """Let the pipeline of its database go on with a table; returns whether it was parked.

    Raises Contention, StoreUnavailable, TableNotFound.
    """
    return _commit(log, Operation.RESUME, Domain(PARKED, "", removed=True))


def _commit(log: TableLog, operation: Operation, action: Domain) -> bool:
    def build(snapshot: Snapshot) -> Proposal[bool] | Finished[bool]:
        if (PARKED in snapshot.domains) != action.removed:
            return Finished(False)
        access = ReadWriteSet(domains=frozenset([PARKED]))
        return Proposal(actions=[action], access=access, result=lambda _: True)

    return commit_loop(log, operation, build)
