"""Commits the changes of a statement to a table with keys, so that no update is lost.

A statement (``Changes``) makes changes by key from the rows of a version: rows and deletes, in change parts under new names. A
commit puts them at the end of the tail. It marks and rewrites nothing, so it blocks no settle and no merge, and none of them
blocks it. But others may change the same rows between the version that was read and the commit. So:

1. The statement is computed at the newest version.
2. If nothing has come since that has one of the keys of its changes, they are committed.
3. Otherwise the changes of the keys that came are left out of what was written, and are computed again for these keys alone, at
   the newest version. A row that no longer matches stays as it is then; one that still does is changed from its new values. All
   else that was written stays. Then step 2.
4. All of it is computed again if what came is not known by its keys: rows left the table (truncate, detach, restore), what was
   written does not fit the table any more (its schema, a purge), or the log does not have the commits any more.

So each row is changed from what it is when the statement is committed, or was not changed in between by anybody. The statement as
a whole is not of one version: a row that matches only since it was read is left as it is. That is what PostgreSQL calls READ
COMMITTED.

A round takes as long as what came since the last one, and as the parts of ours that have keys of it; parts are compared by the
bounds of their keys first. The rounds end because others change the keys of the statement less often than that; if they do not,
after ``commit_loop.ATTEMPTS_MAX`` rounds, with Contention.

**Which changes would lose** if they were committed now, against a newer row, or a newer delete that the table remembers:

They are resolved as the newest of the tail, by what settles and views resolve it with. Of tail and base only what is of their
keys is looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from lakebed.errors import InvalidChanges, VersionNotFound
from lakebed.far_times import python_rows
from lakebed.log.actions import Action, AddChangePart, AddPart, ChangePart, Commit, Domain, Part, RemovePart
from lakebed.log.commit_kind import settles
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet, takes_rows_away
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed, TableLog
from lakebed.operations.mutation import MutationResult
from lakebed.parts.changes import WriteSpec, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.intact import require_intact, require_intact_keys
from lakebed.parts.order import sort_order
from lakebed.parts.part_filter import KeyRanges, parts_that_may_hold
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.resolve.counted_tail import PART, crowded_keys_of, read_tail
from lakebed.resolve.groups import changes_of_groups
from lakebed.resolve.locate import KeyLocator
from lakebed.resolve.resolve import newest_changes
from lakebed.resolve.whole_rows import as_rows, row_schema
from lakebed.schema.nested import table_as_declared
from lakebed.sql import aliases, by_place, named, registered, scan_of, sql_type
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

PIECE_ROWS = 100_000
"""A larger part is written again as several."""

Kind: TypeAlias = Literal["inserted", "updated", "deleted"]


@dataclass(frozen=True, slots=True)
class PendingPart:
    """A change part that was written and is not committed."""

    part: WrittenPart
    kind: Kind | None
    """What each of its rows counts as; None for deletes that only make room for rows of other parts."""


@dataclass(frozen=True, slots=True)
class Pending:
    """What was written of a statement and is not committed. Later parts are newer; a key is once in each."""

    parts: tuple[PendingPart, ...] = ()
    parts_read: int = 0

    @property
    def written(self) -> list[WrittenPart]:
        return [each.part for each in self.parts]

    @property
    def rows(self) -> dict[Kind, int]:
        """How many rows of each kind; those of which there are none are left out."""
        out: dict[Kind, int] = {}
        for each in self.parts:
            if each.kind is not None:
                out[each.kind] = out.get(each.kind, 0) + each.part.rows
        return out

    def __add__(self, later: Pending) -> Pending:
        return Pending((*self.parts, *later.parts), self.parts_read + later.parts_read)


class Changes(Protocol):
    """Computes what a statement changes at a version, and writes it as change parts.

    ``among``: the keys to which it is limited, a row each, by their stored names and in the types of the snapshot; None for
    all rows. If it raises, it leaves no file.
    """

    def __call__(self, snapshot: Snapshot, among: pa.Table | None, /) -> Pending: ...


_Concern: TypeAlias = Callable[[Sequence[ChangePart], Snapshot], Sequence[ChangePart]]
"""Those of the change parts that came which may say something that the statement depends on or sets."""
Check: TypeAlias = Callable[[Snapshot, Sequence[WrittenPart]], None]
"""Raises what forbids to commit these change parts on a version."""
Beside: TypeAlias = Callable[[Snapshot, int], Sequence[Domain] | None]
"""The entries that the commit of a statement that changes so many rows sets besides; None: it is not wanted any more."""


def commit_changes(
    log: TableLog,
    storage: PartStorage,
    operation: Operation,
    compute: Changes,
    parameters: Mapping[str, Any],
    *,
    concern: _Concern | None = None,
    check: Check | None = None,
    beside: Beside | None = None,
) -> MutationResult:
    """Compute the changes of a statement and commit them; there is no commit if it changes nothing.

    Raises what ``compute`` and ``check`` raise, Contention; StoreUnavailable, after which the timeline shows whether it was
    committed.

    Args:
        log: The table's.
        storage: The table's.
        operation: What the history calls the statement.
        compute: The statement.
        parameters: What the commit records of it, for people.
        concern: By default all changes that come concern the statement.
        check: Asked once about each part that is to be committed.
        beside: With it there is a commit also if no row changes.
    """
    committing = _Committing(
        log=log,
        storage=storage,
        compute=compute,
        parameters=parameters,
        concern=concern,
        check=check,
        beside=beside,
        started=time.perf_counter(),
    )
    return commit_loop(log, operation, committing.build, discard=committing.discard, repeatable=False)


def refusing_losers(
    storage: PartStorage, deletion_vectors: DeletionVectorCache, locator: Callable[[WriteSpec], KeyLocator]
) -> Check:
    """A check for statements whose changes have a sequence that their user gave: each must win, or nothing is changed.

    It raises InvalidChanges, naming the first key whose change would be late.
    """

    def check(snapshot: Snapshot, parts: Sequence[WrittenPart]) -> None:
        lost = losing(snapshot, parts, storage, deletion_vectors, locator(write_spec_of(snapshot)))
        if not len(lost):
            return
        [key] = python_rows(snapshot.columns.to_logical(lost.slice(0, 1)))
        named, order = (
            ", ".join(f"{name}={value!r}" for name, value in key.items()),
            snapshot.logical_settings.sequence_by,
        )
        more = f", and so has it for {len(lost) - 1:,} other keys" if len(lost) > 1 else ""
        raise InvalidChanges(
            f"the change of the row with {named} would be lost: the table has a newer row or delete of this key by {order!r} "
            f"(sequence_by){more}; give the change a higher {order!r}"
        )

    return check


def discard(parts: Iterable[WrittenPart], storage: PartStorage) -> None:
    """Delete files that no commit lists; what can't be deleted now is left to the cleanup."""
    storage.delete_many([part.path for part in parts])


@dataclass(slots=True, kw_only=True)
class _Committing:
    """A statement under way. ``pending``: what it changes at the version ``read``, while others committed first."""

    log: TableLog
    storage: PartStorage
    compute: Changes
    parameters: Mapping[str, Any]
    concern: _Concern | None
    check: Check | None
    beside: Beside | None
    started: float
    read: Snapshot | None = None
    pending: Pending = Pending()
    attempts: int = 0

    def build(self, snapshot: Snapshot) -> Proposal[MutationResult] | Finished[MutationResult]:
        """Steps 1 to 4."""
        conflicts, self.attempts = self.attempts, self.attempts + 1
        self._bring_to(snapshot)
        counts, seconds = self.pending.rows, time.perf_counter() - self.started
        entries = () if self.beside is None else self.beside(snapshot, sum(counts.values()))
        if entries is None:
            self.discard()
            self.pending, counts, entries = Pending((), self.pending.parts_read), {}, ()
        parts = [each.part.change_part(at, mutation=True) for at, each in enumerate(self.pending.parts)]

        def result(version: int) -> MutationResult:
            return MutationResult(
                version=version,
                rows=sum(counts.values()),
                **counts,
                parts_added=len(parts),
                bytes_written=sum(part.bytes for part in parts),
                conflicts=conflicts,
                seconds=seconds,
                parts_read=self.pending.parts_read,
            )

        def committed(by: Committed) -> MutationResult:
            self.log.checkpoint_if_due(by.snapshot, slack=2)
            return result(by.version)

        if not parts and not entries:
            return Finished(result(snapshot.version))
        actions: list[Action] = [*map(AddChangePart, parts), *entries]
        return Proposal(
            actions=actions,
            access=ReadWriteSet(
                read_changes=True,
                joining=KeyRanges.of(parts, write_spec_of(snapshot)) if parts else None,
                domains=frozenset(entry.domain for entry in entries),
            ),
            result=committed,
            parameters=self.parameters,
            metrics={"rows": sum(counts.values()), "parts": len(parts)} | dict(counts.items()),
        )

    def discard(self) -> None:
        """Delete the files of what was not committed."""
        discard(self.pending.written, self.storage)

    def _bring_to(self, snapshot: Snapshot) -> None:
        """Make ``pending`` what the statement changes at a version."""
        came = None if self.read is None else came_since(self.read, snapshot, self.log, self.concern)
        if came is None:
            self.discard()
            self.pending = Pending()
            self._add(snapshot, None)
        else:
            spec = write_spec_of(snapshot)  # its types hold the keys of newer changes too
            ranges = KeyRanges.of(self._change_parts(), spec)
            near = [part for part in came if ranges.may_meet(part)]
            again = keys_in_both(self.pending.written, near, spec, self.storage) if near else None
            if again is not None and len(again):
                self.pending = without_keys(self.pending, again, spec, self.storage)
                self._add(snapshot, again)
        self.read = snapshot

    def _add(self, snapshot: Snapshot, among: pa.Table | None) -> None:
        found = self.compute(snapshot, among)
        self.pending += found
        if self.check is not None and found.parts:
            self.check(snapshot, found.written)

    def _change_parts(self) -> list[ChangePart]:
        return [each.part.change_part(at) for at, each in enumerate(self.pending.parts)]


def came_since(
    read: Snapshot, newest: Snapshot, log: TableLog, concern: _Concern | None
) -> list[ChangePart | Part] | None:
    """The parts that brought changes or rows after a version; None if all must be computed again (step 4)."""
    try:
        commits = list(log.commits(read.version + 1, newest.version))
    except VersionNotFound:
        return None
    is_whole = len(commits) == newest.version - read.version
    if not is_whole or not write_spec_of(read).fits(write_spec_of(newest)) or any(map(takes_rows_away, commits)):
        return None
    changes = [action.part for commit in commits for action in commit.actions if isinstance(action, AddChangePart)]
    if concern is not None:
        changes = list(concern(changes, newest))
    return [*changes, *(part for commit in commits if not settles(commit) for part in _rows_of(commit))]


def _rows_of(commit: Commit) -> list[Part]:
    """The parts with rows that a commit brings into the base; none that were there with fewer dead rows."""
    there = {action.path for action in commit.actions if isinstance(action, RemovePart)}
    return [
        action.part
        for action in commit.actions
        if isinstance(action, AddPart) and action.data_change and action.part.path not in there
    ]


# -- Keys of change parts that were written ------------------------------------------------------------------------------------


def keys_in_both(
    pending: Sequence[WrittenPart], came: Sequence[ChangePart | Part], spec: WriteSpec, storage: PartStorage
) -> pa.Table:
    """The keys that rows of both have, a row each. Raises Corrupt."""
    require_intact([part for part in came if isinstance(part, ChangePart)], storage)
    require_intact_keys([part for part in came if isinstance(part, Part)], storage, spec.keys)
    connection = connect()
    storage.attach(connection)
    kinds = {name: sql_type(spec.schema.field(name).type) for name in spec.keys}
    # Files of lakebed have their partition columns; those of other writers need not.
    native = [storage.duckdb_url(part.path) for part in came if isinstance(part, ChangePart) or part.is_native]
    scans = [scan_of(native, kinds, {})] if native else []
    scans += [
        scan_of([storage.duckdb_url(part.path)], kinds, part.partition_values)
        for part in came
        if isinstance(part, Part) and not part.is_native
    ]
    ours = scan_of([storage.duckdb_url(part.path) for part in pending], kinds, {})
    names = aliases(spec.keys).values()
    same, keys = (" and ".join(f"o.{name} = n.{name}" for name in names), ", ".join(f"o.{name}" for name in names))
    query = f"select distinct {keys} from ({ours}) o semi join ({' union all '.join(scans)}) n on {same}"
    found = named(connection.sql(query).to_arrow_table(), spec.keys)
    return table_as_declared(found, pa.schema([spec.schema.field(name) for name in spec.keys]))


def without_keys(pending: Pending, keys: pa.Table, spec: WriteSpec, storage: PartStorage) -> Pending:
    """What is left of it without the changes of these keys. Parts that have some are written again. Raises Corrupt."""
    may_hold = {part.path for part in parts_that_may_hold(connect(), pending.written, spec.schema, keys)}
    kept, written, replaced = list[PendingPart](), list[WrittenPart](), list[WrittenPart]()
    try:
        for each in pending.parts:
            left = _rows_without(each.part, keys, spec, storage) if each.part.path in may_hold else None
            if left is None:
                kept.append(each)
                continue
            replaced.append(each.part)
            for piece in _pieces(left, spec):
                again = list(write_parts(piece, spec, storage))
                written += again
                kept += [PendingPart(part, each.kind) for part in again]
    except BaseException:
        discard(written, storage)
        raise
    discard(replaced, storage)
    return Pending(tuple(kept), pending.parts_read)


def _pieces(rows: pa.Table, spec: WriteSpec) -> Iterator[pa.Table]:
    """The rows in pieces that have ranges of the keys: if these are changed again soon, it is often those of few ranges."""
    if len(rows) > PIECE_ROWS:
        rows = rows.take(pa.array(sort_order(rows.select(list(spec.keys)))))
    for start in range(0, len(rows), PIECE_ROWS):
        yield rows.slice(start, PIECE_ROWS)


def _rows_without(part: WrittenPart, keys: pa.Table, spec: WriteSpec, storage: PartStorage) -> pa.Table | None:
    """The rows of a part without these keys; None if it has none of them."""
    require_intact([part], storage, objects=True)
    connection = connect()
    storage.attach(connection)
    schema = row_schema(spec)
    kinds = {field.name: sql_type(field.type) for field in schema}
    alias = aliases(kinds)
    same = " and ".join(f"o.{alias[name]} = k.{key}" for name, key in aliases(spec.keys).items())
    ours = f"from ({scan_of([storage.duckdb_url(part.path)], kinds, {})}) o"
    with registered(connection, "lakebed_keys", by_place(keys, spec.keys)):
        ((found,),) = connection.execute(f"select count(*) {ours} semi join lakebed_keys k on {same}").fetchall()
        if not found:
            return None
        rows = connection.sql(f"select o.* {ours} anti join lakebed_keys k on {same}").to_arrow_table()
    return as_rows(named(rows, schema.names), schema)


# -- Which changes would lose ------------------------------------------------------------------------------------------


def losing(
    snapshot: Snapshot,
    parts: Sequence[WrittenPart],
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
) -> pa.Table:
    """The keys of changes in ``parts`` that would change nothing of some column that they set, by their stored names, a row each.

    None of a table without ``sequence_by``, where what comes last wins, and of one that keeps first rows, where losing is what
    later rows are for. Whatever its order is, a column of which all changes count (a sum, a maximum) loses nothing.
    Raises Corrupt, StoreUnavailable.
    """
    spec = write_spec_of(snapshot)
    ours = [part.change_part(at) for at, part in enumerate(parts)]
    if not ours or not spec.keys or spec.sequence_by is None or spec.keeps_first:
        return pa.schema([spec.schema.field(name) for name in spec.keys]).empty_table()
    keys = read_tail(ours, spec, storage).select(list(spec.keys))
    tail = parts_that_may_hold(connect(), snapshot.tail_in_order(), spec.schema, keys)
    find = _of_groups if spec.resolves_by_group else _of_rows
    return find(
        snapshot,
        [*tail, *ours],
        len(tail),
        keys,
        spec,
        storage=storage,
        deletion_vectors=deletion_vectors,
        locator=locator,
    )


def _of_rows(
    snapshot: Snapshot,
    change_parts: Sequence[ChangePart],
    first: int,
    keys: pa.Table,
    spec: WriteSpec,
    *,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
) -> pa.Table:
    """``first``: of the change parts the first that is ours."""
    found = newest_changes(
        snapshot.parts,
        change_parts,
        spec,
        storage,
        deletion_vectors,
        locator,
        crowded=crowded_keys_of(snapshot),
        among=keys,
    )
    lost = found.late | (found.newest[PART].to_numpy() < first)
    lost[[one.probe for one in found.outcomes if one.is_live and one.visible is None]] = (
        True  # the table's own row stays
    )
    return found.newest.select(list(spec.keys)).filter(pa.array(lost))


def _of_groups(
    snapshot: Snapshot,
    change_parts: Sequence[ChangePart],
    first: int,
    keys: pa.Table,
    spec: WriteSpec,
    *,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
) -> pa.Table:
    met = changes_of_groups(snapshot.parts, change_parts, spec, storage, deletion_vectors, locator, among=keys)
    known = len(met.found.rows)
    before = known + int(np.count_nonzero(met.of_part < first))  # rows from here on are ours
    lost = np.zeros(len(met.rows), dtype=bool)
    for group, of_key in zip(met.newest.groups, met.newest.rows, strict=True):
        if group.function == "last":
            says = np.asarray(met.rows[group.sequence].is_valid())
            lost |= says & (of_key[met.key] < before)
    lost[:before] = False
    _, places = np.unique(met.key[lost], return_index=True)
    return met.rows.select(list(spec.keys)).take(pa.array(np.flatnonzero(lost)[places]))
