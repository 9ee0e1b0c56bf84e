"""Expire versions by a commit, before anything is deleted (see ``holds``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.log.actions import Action
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import EXPIRED, Operation
from lakebed.log.holds import expired_before, first_unexpired, held_onward, holds_of
from lakebed.log.snapshot import Snapshot

if TYPE_CHECKING:
    from lakebed.log.table_log import TableLog


def expire_before(log: TableLog, version: int, now_ms: int) -> Snapshot:
    """A snapshot in which all versions before this one have expired, and no hold has ended that is still in the log.

    Versions that a reader of changes holds do not expire. From then on no reader can begin to hold an older version.
    Raises Contention, StoreUnavailable (it may be repeated).
    """

    def build(snapshot: Snapshot) -> Proposal[Snapshot] | Finished[Snapshot]:
        ended = [hold for hold in holds_of(snapshot.domains) if not hold.is_live(now_ms)]
        actions: list[Action] = [hold.ended() for hold in ended]
        onward = held_onward(snapshot.domains, now_ms)
        before = version if onward is None else min(version, onward)
        if first_unexpired(snapshot.domains) < before:
            actions.append(expired_before(before))
        if not actions:
            return Finished(snapshot)
        access = ReadWriteSet(domains=frozenset([EXPIRED, *(hold.domain for hold in ended)]))
        return Proposal(
            actions=actions, access=access, result=lambda committed: committed.snapshot, parameters={"before": version}
        )

    return commit_loop(log, Operation.EXPIRE_VERSIONS, build)
