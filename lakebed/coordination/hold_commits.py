"""The commits that begin and end a reader's hold (see ``holds``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.errors import VersionNotFound
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import EXPIRED, Operation
from lakebed.log.holds import Hold, first_unexpired, require_unpurged
from lakebed.log.snapshot import Snapshot

if TYPE_CHECKING:
    from lakebed.log.table_log import TableLog


def begin_hold(log: TableLog, held: Hold) -> None:
    """Commit a hold, also in place of an earlier one of the same id.

    Raises VersionNotFound for a version that has expired; Contention, StoreUnavailable (it may be repeated).
    """

    def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
        require_unpurged(snapshot.domains, held.version, is_held=held.domain in snapshot.domains)
        log.at_version(held.version)
        if held.version < (first := first_unexpired(snapshot.domains)):
            raise VersionNotFound(
                f"version {held.version} has expired and can't be held; the oldest version that is kept is {first}",
                version=held.version,
                oldest=first,
            )
        return _proposal(held, ended=False)

    commit_loop(log, Operation.HOLD_VERSION, build)


def end_hold(log: TableLog, held: Hold) -> None:
    """Take a hold out of the log. Raises Contention, StoreUnavailable (it may be repeated)."""

    def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
        return _proposal(held, ended=True) if held.domain in snapshot.domains else Finished(None)

    commit_loop(log, Operation.RELEASE_VERSION, build)


def _proposal(held: Hold, *, ended: bool) -> Proposal[None]:
    return Proposal(
        actions=[held.ended() if ended else held.to_action()],
        access=ReadWriteSet(domains=frozenset([EXPIRED, held.domain])),
        result=lambda committed: None,
        parameters={"version": held.version},
    )
