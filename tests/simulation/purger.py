"""Purges rows while everybody else is at work, and what the auditor makes of it.

The purge is the real one. Its condition is a remainder of ``v``; the rows of files that match are found in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakebed.errors import Corrupt, InvalidInput, Retry
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.operations.mutate import mutate_unkeyed
from lakebed.operations.mutate_keyed import mutate
from lakebed.operations.purge.files import PurgedFile
from lakebed.operations.purge.purge import Purge
from lakebed.parts.changes import WriteSpec
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.sql import Expression
from tests.simulation.actors import Cast, forgive, rest
from tests.simulation.audit_of_purges import PURGE
from tests.simulation.files import Locator, SimulatedStorage
from tests.simulation.maintainers import DAY_SECONDS, settle_all
from tests.simulation.purge_stand_ins import REMAINDERS, matches_of
from tests.simulation.stand_ins import Change
from tests.simulation.world import Actor


def purger(cast: Cast) -> Callable[[Actor], None]:
    """Purges now and then. When it starts again it goes on with what it had begun."""

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        purge = purge_of(cast, log, storage)
        while not cast.world.closing:
            cast.world.begin_anew(actor)
            rest(cast, actor, 12)
            name = log.newest.columns.logical_name("v") if log.newest else "v"
            where = f"{name} % {REMAINDERS} = {cast.world.random.randrange(REMAINDERS)} and {cast.next_serial()} > 0"
            try:
                report = purge.run(where)
                cast.world.counts["purged"] += 1
                cast.world.note(actor.name, f"purged {where}: {len(report)} files")
            except InvalidInput as error:  # a reader holds a version, or the column has another name by now
                cast.world.note(actor.name, f"can't purge: {error}")
            except (Retry, FileNotFoundError, Corrupt) as error:
                forgive(error)

    return live


def purge_of(cast: Cast, log: TableLog, storage: SimulatedStorage) -> Purge:
    """The purge of the table as somebody opened it."""
    table = _PurgedTable(cast, log, storage)
    return Purge(log, storage, DeletionVectorCache(storage), table, scanner=table.locator)


def change_of(where: str) -> Change:
    """The condition as a mutation in Python."""
    return Change(Expression(where, {}), None, matches=matches_of(where))


@dataclass(frozen=True)
class _PurgedTable:
    """See ``lakebed.operations.purge.purge``."""

    cast: Cast
    log: TableLog
    storage: SimulatedStorage

    def delete(self, where: str) -> object:
        mutation, auditor = change_of(where), self.cast.auditor
        _, called = auditor.mutations.get(where, (mutation, auditor.newest.version))
        auditor.mutations[where] = mutation, called
        if self.cast.keyed:
            return mutate(self.log, self.storage, lambda *_: None, mutation)  # type: ignore[arg-type]
        return mutate_unkeyed(self.log, self.storage, DeletionVectorCache(self.storage), mutation)

    def settle(self) -> object:
        return settle_all(self.log, self.storage) if self.cast.keyed else None

    def locator(self, spec: WriteSpec) -> Locator:
        return Locator(self.storage)

    def clear_local(self, snapshot: Snapshot) -> list[PurgedFile]:
        return []

    def quarantine(self) -> None:
        return None

    def deliver(self) -> None:
        return None


def put_in_order(cast: Cast, log: TableLog, storage: SimulatedStorage) -> None:
    """Purges that were begun come to their end when all others have gone, and no reader holds a version any more."""
    if not any(name.startswith(PURGE) for name in cast.auditor.newest.domains):
        return  # so holds are still there when the others put things in order
    cast.world.now += 20 * DAY_SECONDS
    purge_of(cast, log, storage).resume()
    left = [name for name in cast.auditor.newest.domains if name.startswith(PURGE)]
    assert not left, f"{left} do not end"
