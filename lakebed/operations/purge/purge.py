"""Purge: erase rows for good, from every version and every copy on this host (``Table.purge``).

1. *Begin.* An entry of the log has the condition (``log.removals``). From now on the purge goes on whatever dies: running
   maintenance, or the next call, takes it up.
2. *Rows out.* Live rows are deleted as ``delete`` does, and settled. Then parts with dead rows that the purge is about are
   written again without them (``purge_rows``). This is repeated until no file that the newest version refers to has such a
   row. Records of the quarantine that are about the same rows are purged in the same way.
3. *Versions end.* A commit sets ``lakebed.purged``: older versions can't be read from then on. Everything that is under way is
   rebased on it, and nothing keeps it from being committed, however much comes in. What came in between is looked at: if it has
   such rows, step 2 is done again. A second commit takes the condition, which has values, out of the log's state. The log will
   begin with that one.
4. *Files go.* Copies on local disks of this host, then everything in the table's folder that only older versions refer to, or
   none (``purge_files``).
5. *End.* The entry leaves the log.

Each step may be repeated and ends in the same state. Two processes may do them at once: each commit is conditional, and a file is
deleted only when nothing can refer to it any more.

Rows that come after step 3 stay, also if the condition is true of them. A source that still has the rows brings them back if
it is read again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson
import pyarrow as pa

from lakebed.coordination.jobs import jobs_of
from lakebed.coordination.schema_history import next_change
from lakebed.errors import Contention, InvalidInput, Retry
from lakebed.log.actions import Action, Domain, Part
from lakebed.log.claims import claims_of
from lakebed.log.commit_loop import Finished, NotYet, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import EXPIRED, JOB, QUARANTINED, REPLAY, Operation
from lakebed.log.holds import expired_before, first_unexpired, held_onward
from lakebed.log.removals import LEASE_MS, PurgeState, purged, purges_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog, require_writable
from lakebed.operations.purge.files import (
    DETACHED,
    QUARANTINE,
    TABLE,
    VERSION,
    Clearing,
    PurgedFile,
    files_of,
    is_file_of_rows,
    older_holds,
    report_table,
    spelled,
)
from lakebed.operations.purge.rows import PurgeCondition, RowsToPurge, condition_of_quarantine, parts_of_versions
from lakebed.operations.references import Spelling
from lakebed.operations.region import detached_of
from lakebed.parts.changes import WriteSpec
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.quarantine import WITH_HEADERS
from lakebed.resolve.locate import KeyLocator, ScanLocator
from lakebed.sql import check_condition, expression
from lakebed.storage.part_storage import PartStorage

_ROUNDS_MAX = 20  # how often rows are taken out while others bring more of them
_logger = logging.getLogger("lakebed.purge")


class _PurgedTable(Protocol):
    """What a purge needs of the table beside its log and its files."""

    def delete(self, where: str) -> object:
        """Delete the live rows (``Table.delete``)."""

    def settle(self) -> object:
        """Settle the whole tail."""

    def locator(self, spec: WriteSpec) -> KeyLocator:
        """Finds keys in the base."""

    def clear_local(self, snapshot: Snapshot) -> list[PurgedFile]:
        """Delete what is on local disks of this host of parts that the version lacks."""

    def quarantine(self) -> Purge | None:
        """The purge of the quarantine; None if there is no quarantine."""

    def deliver(self) -> str | None:
        """Hand what the log lists for the quarantine over to it; returns the list (``lakebed.quarantined``), None without one."""


@dataclass(slots=True)
class Purge:
    """Purges rows of one table."""

    log: TableLog
    storage: PartStorage
    deletion_vectors: DeletionVectorCache
    table: _PurgedTable
    scanner: Callable[[WriteSpec], KeyLocator] | None = None

    def run(self, where: str, *, quarantine: str | None = None, dry_run: bool = False, force: bool = False) -> pa.Table:
        """See ``Table.purge``."""
        snapshot = self.log.refresh()
        require_writable(snapshot.protocol)
        which = PurgeCondition(where=expression(where, "where"), columns=_names(snapshot))
        self._check(which, quarantine, snapshot)
        found = self._found(which)
        kinds = self._looked_at_all(found)  # what can't be evaluated is refused before anything is done
        if dry_run:
            return report_table([*self._held_now(found, kinds), *self._in_quarantine(found, which, quarantine)])
        files = [
            file
            for state in purges_of(snapshot.domains).values()
            for file in self._finish(replace(state, force=state.force or force))
        ]
        state = PurgeState(
            id=str(uuid.uuid4()),
            where=where,
            columns=which.columns,
            quarantine=quarantine,
            force=force,
            until_ms=self.log.now_ms() + LEASE_MS,
        )
        self._begin(state)
        return report_table([*files, *self._finish(state, found, kinds)])

    def resume(self) -> list[PurgedFile]:
        """Go on with purges that nobody is at work on any more. Raises what ``run`` raises."""
        snapshot = self.log.refresh()
        waiting = [state for state in purges_of(snapshot.domains).values() if state.until_ms < self.log.now_ms()]
        return [file for state in waiting for file in self._finish(state)]

    # -- 1. begin ----------------------------------------------------------------------------------------------------

    def _check(self, which: PurgeCondition, quarantine: str | None, snapshot: Snapshot) -> None:
        check_condition(which.where, snapshot.logical_schema)
        if quarantine is not None:
            check_condition(expression(quarantine, "quarantine"), WITH_HEADERS)

    def _begin(self, state: PurgeState) -> None:
        def build(snapshot: Snapshot) -> Proposal[None]:
            _require_names(state, snapshot)
            held = [hold for hold in older_holds(snapshot, snapshot.version + 1, self.log.now_ms()) if not hold.onward]
            if held and not state.force:
                raise InvalidInput(
                    f"readers hold versions that a purge would end: {spelled(held)}; wait until they have ended, or purge with "
                    "force: their reads then fail",
                )
            return Proposal(
                actions=[state.to_action()],
                access=ReadWriteSet(domains=frozenset([next_change(snapshot.domains), state.domain])),
                result=lambda committed: None,
            )

        commit_loop(self.log, Operation.PURGE, build)

    def _finish(
        self, state: PurgeState, found: RowsToPurge | None = None, kinds: dict[str, str] | None = None
    ) -> list[PurgedFile]:
        """Steps 2 to 5. ``found``, ``kinds``: the files that were looked at before."""
        files: list[PurgedFile] = []
        rows: dict[str, int] = {}
        if state.where is not None:
            _require_names(state, self.log.refresh())
            if found is None or kinds is None:
                found = self._found(PurgeCondition(where=expression(state.where, "where"), columns=state.columns))
                kinds = self._looked_at_all(found)
            files += self._rows_out(state, found, kinds)
            rows = found.rows_by_file()
        files += self.table.clear_local(self.log.refresh())
        cleared = Clearing(
            log=self.log,
            storage=self.storage,
            state=state,
            rows=rows,
            kinds=kinds or {},
            look=None if found is None else found.rows_in,
        ).run()
        # Of files that were looked at, only those are of interest that had a row.
        files += [file for file in cleared if file.rows or file.note or kinds is None]
        if all(file.gone_ms is not None for file in cleared):
            self._end(state)
        for file in files:
            _logger.info("%s: purged %s (%s)", self.log.root, file.path, file.where)
        return files

    def _end(self, state: PurgeState) -> None:
        def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
            if state.domain not in snapshot.domains:
                return Finished(None)
            return Proposal(actions=[state.ended()], result=lambda committed: None)

        commit_loop(self.log, Operation.PURGE, build)

    # -- 2. rows out -------------------------------------------------------------------------------------------------

    def _found(self, which: PurgeCondition) -> RowsToPurge:
        return RowsToPurge(
            log=self.log,
            storage=self.storage,
            deletion_vectors=self.deletion_vectors,
            which=which,
            locator=self.table.locator,
            scanner=self.scanner or (lambda spec: ScanLocator(spec, self.storage)),
            clock=self.log.clock,
        )

    def _looked_at_all(self, found: RowsToPurge) -> dict[str, str]:
        """Look at the files of every version that can be read, and at those of none; returns what each is."""
        newest = self.log.refresh()
        spell = Spelling(self.storage)
        there = {path: size for path, (size, _) in files_of(self.storage).items() if is_file_of_rows(path)}
        first = max(self.log.oldest_version(), first_unexpired(newest.domains))
        kinds: dict[str, str] = {}
        parts = {part.path: part for part in parts_of_versions(self.log, first, newest) if spell(part.path) in there}
        kinds |= dict.fromkeys(map(spell, parts), VERSION)
        kinds |= dict.fromkeys(
            map(spell, (part.path for one in detached_of(newest).values() for part in one.parts)), DETACHED
        )
        kinds |= dict.fromkeys(map(spell, (*newest.parts, *(part.path for part in newest.tail.values()))), TABLE)
        uncommitted = [
            Part(path=path, rows=-1, bytes=size)
            for path, size in there.items()
            if path not in kinds and path.endswith(".parquet")
        ]
        found.look_at([*parts.values(), *uncommitted], newest, may_be_gone=True)
        found.seen = newest.version
        return kinds

    def _held_now(self, found: RowsToPurge, kinds: Mapping[str, str]) -> list[PurgedFile]:
        """For a dry run: the files that have rows."""
        sizes = files_of(self.storage)
        return [
            PurgedFile(
                path=path,
                where=kinds.get(path, "uncommitted"),
                bytes=sizes[path][0] if path in sizes else None,
                rows=len(rows),
            )
            for path, rows in found.matching.items()
            if rows
        ]

    def _rows_out(self, state: PurgeState, found: RowsToPurge, kinds: dict[str, str]) -> list[PurgedFile]:
        """Steps 2 and 3. ``kinds`` gets the files that came meanwhile. Raises Contention."""
        assert state.where is not None
        files: list[PurgedFile] = []
        for _ in range(_ROUNDS_MAX):
            self.table.delete(state.where)
            self.table.settle()
            snapshot = self.log.refresh()
            found.until = min(found.until, snapshot.version)
            found.look_at_all(snapshot)
            found.rewrite_detached(snapshot)
            found.rewrite_base(snapshot)
            if not found.is_clean(self.log.refresh()):
                continue
            files += self._out_of_quarantine(found, state)
            ended = self._versions_end(state)
            # A file may have come and been merged since: its rows are in no part of the newest version, and their keys count.
            came = map(Spelling(self.storage), found.look_on(ended))
            kinds.update(dict.fromkeys((path for path in came if path not in kinds), VERSION))
            if found.is_clean(ended):
                self._forget_condition(state, found)
                return files
        raise Contention(
            f"rows for which the condition is true keep coming into {self.log.root}, so the purge did not end after "
            f"{_ROUNDS_MAX} rounds: let their source stop sending them; maintenance, or the next purge, goes on with it",
            table=self.log.root,
            operation=Operation.PURGE.value,
            attempts=_ROUNDS_MAX,
        )

    def _out_of_quarantine(self, found: RowsToPurge, state: PurgeState) -> list[PurgedFile]:
        self.table.deliver()
        purge = self.table.quarantine()
        if purge is None:
            return []
        self._require_no_replay()
        beside = purge.log.refresh()
        where = condition_of_quarantine(found.keys, self.log.refresh(), found.which.where, state.quarantine, beside)
        if where is None:
            return []
        report = purge.run(where, force=state.force).to_pylist()
        return [
            PurgedFile(
                path=f"{purge.log.root}/{row['path']}",
                where=QUARANTINE,
                bytes=row["bytes"],
                rows=row["rows"],
                gone_ms=None if row["gone_at"] is None else int(row["gone_at"].timestamp() * 1000),
                note=row["note"],
            )
            for row in report
        ]

    def _in_quarantine(self, found: RowsToPurge, which: PurgeCondition, quarantine: str | None) -> list[PurgedFile]:
        """For a dry run."""
        purge = self.table.quarantine()
        if purge is None:
            return []
        beside = purge.log.refresh()
        where = condition_of_quarantine(found.keys, self.log.refresh(), which.where, quarantine, beside)
        if where is None:
            return []
        rows = purge.run(where, dry_run=True).to_pylist()
        return [
            PurgedFile(path=f"{purge.log.root}/{row['path']}", where=QUARANTINE, bytes=row["bytes"], rows=row["rows"])
            for row in rows
        ]

    def _require_no_replay(self) -> None:
        if any(domain.startswith(REPLAY) for domain in self.log.refresh().domains):
            raise Contention(
                f"a replay of the quarantine of {self.log.root} is not at its end: replay it again, then purge again",
                table=self.log.root,
                operation=Operation.PURGE.value,
            )

    # -- 3. versions end ---------------------------------------------------------------------------------------------

    def _versions_end(self, state: PurgeState) -> Snapshot:
        """Step 3, the first commit: returns the table after it."""

        def build(snapshot: Snapshot) -> Proposal[Snapshot] | Finished[Snapshot]:
            current = purges_of(snapshot.domains).get(state.id)
            if current is None or current.where is None:  # another process did it
                return Finished(snapshot)
            onward = held_onward(snapshot.domains, self.log.now_ms())
            before = snapshot.version + 1 if onward is None else min(onward, snapshot.version + 1)
            # Merges whose sources have left hold rows of them, here or on other hosts: nobody may go on with them.
            stale = [
                one for one in claims_of(snapshot.domains).values() if not snapshot.parts.keys() >= set(one.sources)
            ]
            actions: list[Action] = [purged(0, state.id), *(claim.ended() for claim in stale)]
            if before > first_unexpired(snapshot.domains):
                actions.append(expired_before(before))
            access = ReadWriteSet(domains=frozenset([EXPIRED, state.domain, *(claim.domain for claim in stale)]))
            return Proposal(actions=actions, access=access, result=lambda committed: committed.snapshot)

        return commit_loop(self.log, Operation.PURGE, build)

    def _forget_condition(self, state: PurgeState, found: RowsToPurge) -> None:
        """Step 3, the second commit. What else of the log's state may have values goes with it: the list of files for the
        quarantine, if the quarantine has them all, and the jobs that have ended, with their arguments and errors.
        """
        rows = sum(found.rows_by_file().values())

        def build(snapshot: Snapshot) -> Proposal[None] | Finished[None] | NotYet:
            current = purges_of(snapshot.domains).get(state.id)
            if current is None or current.where is None:
                return Finished(None)
            listed = snapshot.domains.get(QUARANTINED)
            if listed is not None and listed != self.table.deliver():
                return NotYet("records for the quarantine kept coming in")
            forgotten = replace(
                current, where=None, columns={}, quarantine=None, until_ms=self.log.now_ms() + LEASE_MS, rows=rows
            )
            ended = [Domain(JOB + job.id, "", removed=True) for job in jobs_of(snapshot) if job.has_ended]
            return Proposal(
                actions=[purged(rows, state.id), forgotten.to_action(), *_without_delivered(listed), *ended],
                access=ReadWriteSet(domains=frozenset([QUARANTINED, state.domain, *(one.domain for one in ended)])),
                result=lambda committed: None,
                metrics={"rows": rows},
            )

        commit_loop(self.log, Operation.PURGE, build)


def _require_names(state: PurgeState, snapshot: Snapshot) -> None:
    """Raises Retry if columns were renamed or dropped since the condition was given; ``alter`` refuses that while it counts."""
    now = _names(snapshot)
    if any(now.get(stored) != name for stored, name in state.columns.items()):
        raise Retry("columns of the table were renamed or dropped when the purge began; purge again")


def _names(snapshot: Snapshot) -> dict[str, str]:
    """What users call the columns, by stored names."""
    return dict(zip(snapshot.schema.names, snapshot.logical_schema.names, strict=True))


def _without_delivered(text: str | None) -> Sequence[Domain]:
    """The list of files for the quarantine without those that it has: the list has bounds of their records."""
    document: dict[str, Any] = orjson.loads(text) if text else {"parts": []}
    return [Domain(QUARANTINED, orjson.dumps({**document, "parts": []}).decode())] if document["parts"] else ()
