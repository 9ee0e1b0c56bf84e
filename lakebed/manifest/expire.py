"""Expire versions by a commit, before anything is deleted (see ``leases``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.manifest.actions import Action
from lakebed.manifest.commit_loop import Finished, Proposal, commit_loop
from lakebed.manifest.conflicts import ReadWriteSet
from lakebed.manifest.entries import EXPIRED, Operation
from lakebed.manifest.leases import expired_before, first_unexpired, leases_of
from lakebed.manifest.snapshot import Snapshot

if TYPE_CHECKING:
    from lakebed.manifest.table_log import TableLog


def expire_before(log: TableLog, version: int, now_ms: int) -> Snapshot:
    """A snapshot in which all versions before this one have expired, and no lease has ended that is still in the log.

    From then on no reader can begin to hold an older version. Raises Contention, StoreUnavailable (it may be repeated).
    """

    def build(snapshot: Snapshot) -> Proposal[Snapshot] | Finished[Snapshot]:
        ended = [lease for lease in leases_of(snapshot.domains) if not lease.is_live(now_ms)]
        actions: list[Action] = [lease.ended() for lease in ended]
        if first_unexpired(snapshot.domains) < version:
            actions.append(expired_before(version))
        if not actions:
            return Finished(snapshot)
        access = ReadWriteSet(domains=frozenset([EXPIRED, *(lease.domain for lease in ended)]))
        return Proposal(
            actions=actions, access=access, result=lambda committed: committed.snapshot, parameters={"before": version}
        )

    return commit_loop(log, Operation.EXPIRE_VERSIONS, build)
