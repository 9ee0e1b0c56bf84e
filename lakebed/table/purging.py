"""What a purge needs of an open table: how rows are deleted and settled, the copies on this host, and the quarantine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.ingest.handover import Handover
from lakebed.log.claims import claims_of
from lakebed.log.entries import QUARANTINED
from lakebed.log.snapshot import Snapshot
from lakebed.merge.materialized import clear_ended
from lakebed.operations.mutate.mutation import Mutation
from lakebed.operations.mutate.run import run_mutation
from lakebed.operations.purge.purge import Purge
from lakebed.operations.purge.report import KEY_INDEX, VOLATILE, PurgedFile
from lakebed.parts.changes import WriteSpec
from lakebed.resolve.locate import KeyLocator

if TYPE_CHECKING:
    from lakebed.table.internals import Internals


def purge_of(internals: Internals) -> Purge:
    """Purges rows of the table."""
    return Purge(internals.log, internals.storage, internals.deletion_vectors, _PurgedTable(internals))


def clear_copies(internals: Internals, snapshot: Snapshot) -> list[PurgedFile]:
    """Delete what is on local disks of this host of parts that the version lacks; returns the files."""
    now_ms = internals.log.now_ms()
    claims = {one.id for one in claims_of(snapshot.domains).values() if snapshot.parts.keys() >= set(one.sources)}
    local = clear_ended(internals.compaction.volatile_base, claims)
    files = [PurgedFile(path=path, where=VOLATILE, bytes=size, gone_ms=now_ms) for path, size in local.items()]
    runs = internals.locators.forget_removed(snapshot.parts)
    if runs is None:
        note = "another process on this host uses it; it writes it again when it next settles or looks at the log"
        folder = str(internals.locators.folder)
        return [*files, PurgedFile(path=folder, where=KEY_INDEX, note=note)]
    return [
        *files,
        *(PurgedFile(path=path, where=KEY_INDEX, bytes=size, gone_ms=now_ms) for path, size in runs.items()),
    ]


class _PurgedTable:
    """See ``operations.purge.purge.PurgedTable``."""

    def __init__(self, internals: Internals) -> None:
        self._internals = internals

    def delete(self, where: str) -> object:
        inside = self._internals
        mutation = Mutation.of(where)
        return run_mutation(
            inside.path, inside.log, inside.storage, inside.deletion_vectors, inside.view.rows_for_sql, mutation
        )

    def settle(self) -> object:
        return self._internals.settler.settle()

    def locator(self, spec: WriteSpec) -> KeyLocator:
        return self._internals.locators.for_reading(spec)

    def clear_local(self, snapshot: Snapshot) -> list[PurgedFile]:
        return clear_copies(self._internals, snapshot)

    def quarantine(self) -> Purge | None:
        beside = self._internals.quarantine()
        return None if beside is None else purge_of(beside)

    def deliver(self) -> str | None:
        snapshot = self._internals.log.refresh()
        Handover(self._internals.path, self._internals.quarantine_log).deliver(snapshot)
        return snapshot.domains.get(QUARANTINED)
