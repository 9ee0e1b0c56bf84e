"""Entries of a table's log that can't be read: which, what that means, and how they are removed.

What rests on an entry decides (``log.entry_values``). An entry that is only coordination counts as not there, and ``lakebed
resume`` removes it. Any other stops what needs it, until a person who knows what it was has removed it on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from lakebed.coordination.failing import Failing, Lost
from lakebed.coordination.jobs import job_in
from lakebed.coordination.parked import Parked
from lakebed.coordination.schema_history import past_change_of
from lakebed.coordination.settle_attempts import SettleAttempts
from lakebed.errors import Corrupt, InvalidInput
from lakebed.health.finding import Finding, critical, warning
from lakebed.ingest.handover import listed_in
from lakebed.ingest.replay import applied_in
from lakebed.log import entries
from lakebed.log.actions import Domain
from lakebed.log.claims import claim_of
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import COORDINATION, Operation
from lakebed.log.entry_values import decoded, integer_of
from lakebed.log.holds import hold_of
from lakebed.log.purges import purge_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.operations.partitions import detached_in
from lakebed.operations.time_to_live import looked_ms_in
from lakebed.positions.files_read import files_in
from lakebed.positions.order_restarts import restarts_in
from lakebed.positions.positions import position_of
from lakebed.positions.resnapshots import Resnapshot
from lakebed.positions.source_columns import source_columns_in
from lakebed.positions.topic_gone import TopicGone
from lakebed.positions.truncates import truncates_in
from lakebed.resolve.crowded_keys import CrowdedKeys

DECODERS: dict[str, Callable[[str, str], object]] = {
    entries.CLAIM: claim_of,
    entries.HOLD: hold_of,
    entries.EXPIRED: partial(integer_of, member="before"),
    entries.DETACHED: detached_in,
    entries.PURGE: purge_of,
    entries.PURGED: partial(integer_of, member="version"),
    entries.FENCE: partial(integer_of, member="number"),
    entries.ROWS_EXPIRED: looked_ms_in,
    entries.SOURCE_TRUNCATES: truncates_in,
    entries.SCHEMA: past_change_of,
    entries.POSITION: position_of,
    entries.ORDER_RESTARTS: restarts_in,
    entries.FILES: files_in,
    entries.SOURCE_COLUMNS: source_columns_in,
    entries.QUARANTINED + ".": partial(integer_of, member="taken"),
    entries.QUARANTINED: listed_in,
    entries.CROWDED_KEYS: partial(decoded, CrowdedKeys),
    entries.FAILING: partial(decoded, Failing),
    entries.LOST: partial(decoded, Lost),
    entries.SETTLING: partial(decoded, SettleAttempts),
    entries.PARKED: partial(decoded, Parked),
    entries.TOPIC_GONE: partial(decoded, TopicGone),
    entries.RESNAPSHOT: partial(decoded, Resnapshot),
    entries.JOB: job_in,
    entries.REPLAY: applied_in,
}
"""By the beginning of their names, the first that fits. Entries of the tail are part of the commit that has them (M1)."""


def unreadable(snapshot: Snapshot) -> dict[str, Corrupt]:
    """The entries that can't be read, by name, and why."""
    found = {}
    for name, text in sorted(snapshot.domains.items()):
        decode = next((each for prefix, each in DECODERS.items() if name.startswith(prefix)), None)
        if decode is not None:
            try:
                decode(name, text)
            except Corrupt as error:
                found[name] = error
    return found


def entry_findings(snapshot: Snapshot, path: str) -> Iterator[Finding]:
    """What can't be read, and what to do about it."""
    for name, error in unreadable(snapshot).items():
        if name.startswith(COORDINATION):
            yield warning("entry", name, str(error), f"lakebed resume {path} removes it")
        else:
            yield critical(
                "entry", name, str(error), f"lakebed show commits {path} shows who wrote it; then the runbook"
            )


def remove_unreadable(log: TableLog, name: str | None = None) -> list[str]:
    """Remove the entries of coordination that can't be read, or the one of this name, whatever rests on it; returns their names.

    Raises InvalidInput if the one can be read or is not there, Contention, StoreUnavailable, TableNotFound.
    """

    def build(snapshot: Snapshot) -> Proposal[list[str]] | Finished[list[str]]:
        found = unreadable(snapshot)
        if name is not None and name not in found:
            there = ", ".join(found) or "none"
            raise InvalidInput(f"there is no entry {name!r} that can't be read; there are: {there}", table=log.root)
        gone = [each for each in found if each == name or (name is None and each.startswith(COORDINATION))]
        access = ReadWriteSet(domains=frozenset(gone))
        actions = [Domain(each, "", removed=True) for each in gone]
        return Proposal(actions=actions, access=access, result=lambda _: gone) if gone else Finished([])

    return commit_loop(log, Operation.REMOVE_ENTRY, build)
