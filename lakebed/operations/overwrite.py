"""Overwrites whose rows are written by tasks, while others go on committing.

An overwrite of a billion rows takes an hour. It replaces what the table held when it began (the version ``began``), and what
is committed meanwhile counts after it:

1. The tail is settled, and then the version is read that the overwrite begins with. Tasks write the rows (``Tasks.write``).
2. In a table with keys tasks check that each key is once among the rows, and live in none of the parts that stay
   (``Tasks.check``). With ``sequence_by`` deletes that these parts remember are looked up among the rows.
3. The commit removes the region's parts and adds the new ones. Changes that came since are about other keys mostly, which the
   ranges in the log show. Those of the region or of one of the keys are settled, as before any replacement, and their rows
   leave with the region. The same commit brings them once more, as the newest changes (``_Since``). So every version shows what
   the log says in its order: the rows, then the changes; and so does a copy that follows ``changes``.
4. In a table without keys rows that were appended since stay where they are.
5. What can't be done once more ends the overwrite, and nothing was changed (Contention): rows that left or came otherwise than
   by a change, a ``delete`` or ``update`` of such rows, changes without all values, sums, and first rows.

A row whose key a later change is about joins the base dead. With ``sequence_by`` it does so only if the change is not older.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.errors import Contention, InvalidInput, VersionNotFound
from lakebed.far_times import python_rows
from lakebed.log.actions import (
    Action,
    AddChangePart,
    AddPart,
    ChangePart,
    Commit,
    Domain,
    Part,
    RemovePart,
    partition_key,
)
from lakebed.log.commit_kind import REWRITES, kind_of, replaced, restores, truncates
from lakebed.log.commit_loop import NotYet, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed, TableLog
from lakebed.operations.commit_changes import discard
from lakebed.operations.region import Region, overwritten, require_inside, require_same_shape
from lakebed.parts.change_rows import read_change_part
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, WriteSpec, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.part_filter import KeyRanges, parts_that_may_overlap
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.positions.positions import removals
from lakebed.resolve.locate import KeyLocator, read_keys
from lakebed.sql.pieces import by_place, registered
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

_LOOKUP_ROWS = 500_000
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """What tasks do for an overwrite."""

    write: Callable[[Snapshot], Sequence[WrittenPart]]
    """Writes the rows in the shape of a version, without a column of operations."""
    check: Callable[[Snapshot, Sequence[Part], Sequence[Part], str], None]
    """Raises InvalidInput naming a key that is twice in the first parts, or in the first and live in the second. The text says
    what the first ones are."""
    locator: Callable[[WriteSpec], KeyLocator]
    """Finds some keys in many parts."""


@dataclass(slots=True, kw_only=True)
class Overwriting:
    """One overwrite."""

    log: TableLog
    storage: PartStorage
    deletion_vectors: DeletionVectorCache
    settle: Callable[[], object]
    tasks: Tasks
    operation: Operation
    region_of: Callable[[Snapshot], Region]

    def run(self) -> int:
        """Returns the version. Raises InvalidInput, InvalidChanges, Contention, StoreUnavailable."""
        self.region_of(self.log.refresh())  # what was asked for is checked before anything is done
        self.settle()
        began = self.log.refresh()
        region, spec = self.region_of(began), write_spec_of(began)
        written = list(self.tasks.write(began))
        since = _Since(
            log=self.log,
            storage=self.storage,
            locator=self.tasks.locator,
            operation=self.operation,
            began=began,
            region=region,
            parts={part.path: part.base_part(has_op_column=False) for part in written},
        )
        try:
            require_inside(region, written, began)
            if spec.keys:
                self._check(began, region, since.parts)
        except BaseException:
            discard(written, self.storage)
            raise
        unsettled = False

        def newest() -> Snapshot:
            if unsettled:
                self.settle()
            return self.log.refresh()

        def build(snapshot: Snapshot) -> Proposal[int] | NotYet:
            nonlocal unsettled
            try:
                proposal = self._proposal(snapshot, spec, region, since)
            except Contention:  # nothing of it was committed, and nothing is tried again
                discard_all()
                raise
            unsettled = isinstance(proposal, NotYet)
            return proposal

        def discard_all() -> None:
            discard([*written, *since.written], self.storage)

        return commit_loop(self.log, self.operation, build, newest=newest, discard=discard_all, repeatable=False)

    def _check(self, began: Snapshot, region: Region, new: Mapping[str, Part]) -> None:
        """Step 2."""
        whose, spec = f"the rows for {region.name}", write_spec_of(began)
        ranges = KeyRanges.of(new.values(), spec)
        staying = [
            part for part in began.parts.values() if not region.has(part.partition_key) and ranges.may_meet(part)
        ]
        self.tasks.check(began, list(new.values()), staying, whose)
        if spec.sequence_column is None:
            return
        for part in staying:
            if not part.deletes:
                continue
            for batch in read_keys(part, spec, self.storage):
                rows = pa.Table.from_batches([batch])
                deletes = rows.filter(pc.equal(rows[OP_COLUMN], DELETE))
                self._refuse_lost(began, spec, new, deletes, whose)

    def _refuse_lost(
        self, began: Snapshot, spec: WriteSpec, new: Mapping[str, Part], deletes: pa.Table, whose: str
    ) -> None:
        if not len(deletes):
            return
        found = self.tasks.locator(spec).lookup(new, deletes.select(list(spec.keys)))
        lost = pc.greater(deletes[SEQUENCE_COLUMN].take(found["probe"]), found[SEQUENCE_COLUMN])
        hits = found["probe"].filter(lost)
        if len(hits):
            key = _named(began, deletes.select(list(spec.keys)).take(hits[:1]))
            raise InvalidInput(
                f"{whose} have the key {key}, which was deleted with a newer {began.logical_settings.sequence_by}; leave it "
                "out, or give it one that is not older"
            )

    def _proposal(self, snapshot: Snapshot, spec: WriteSpec, region: Region, since: _Since) -> Proposal[int] | NotYet:
        """Steps 3 to 5."""
        require_same_shape(spec, snapshot)
        since.follow(snapshot)
        going = since.going(snapshot)
        ranges = KeyRanges.of([*since.parts.values(), *going.values()] if spec.keys else (), spec, region.has)
        if spec.keys and any(map(ranges.may_meet, snapshot.tail.values())):
            return NotYet("changes of the same keys, or of the same partitions, kept coming in")
        again, lost = since.again(snapshot)
        vectors = self.deletion_vectors.write(lost)
        leaving = removals(snapshot, going.values(), int(time.time() * 1000))
        coming: list[Action] = [AddPart(part.marked(vectors.get(path))) for path, part in since.parts.items()]
        coming += [AddChangePart(part) for part in again]
        access = ReadWriteSet(
            parts={path: part.partition_key for path, part in going.items()},
            claimed=frozenset(going),  # a claim that comes first must end too
            domains=frozenset(action.domain for action in leaving if isinstance(action, Domain)),
            joining=ranges,
        )

        def result(committed: Committed) -> int:
            self.log.checkpoint_if_due(committed.snapshot, slack=2)
            return committed.version

        metrics = {"parts": len(going), "rows": sum(part.rows for part in since.parts.values())}
        if again:
            metrics["changesKept"] = sum(part.rows for part in again)
        return Proposal(
            actions=[*leaving, *coming, replaced(region.partition, region.where)],
            access=access,
            result=result,
            parameters=overwritten(region, snapshot),
            metrics=metrics,
        )


@dataclass(slots=True, kw_only=True)
class _Since:
    """What was committed since an overwrite began."""

    log: TableLog
    storage: PartStorage
    locator: Callable[[WriteSpec], KeyLocator]
    operation: Operation
    began: Snapshot
    region: Region
    parts: Mapping[str, Part]  # the new ones, by path
    written: list[WrittenPart] = field(default_factory=list)  # what brings changes once more
    _version: int = -1  # the newest one that was looked at
    _came: list[ChangePart] = field(default_factory=list)
    _keys: dict[str, pa.Table] = field(default_factory=dict)  # of change parts: their keys, and what orders them
    _found: dict[str, pa.Table] = field(
        default_factory=dict
    )  # of change parts: where their keys are among the new rows
    _again: dict[str, tuple[_Flags, Sequence[WrittenPart]]] = field(default_factory=dict)

    def follow(self, snapshot: Snapshot) -> None:
        """Note the changes that came. Raises Contention for what can't be done once more."""
        if self._version < 0:
            self._version = self.began.version
            self._came = self.began.tail_in_order()  # they came as it began
        try:
            commits = list(self.log.commits(self._version + 1, snapshot.version))
        except VersionNotFound as error:
            raise self._contention(f"the log has lost what was committed since ({error})") from error
        for commit in commits:
            if why := self._forbids(commit):
                raise self._contention(f"version {commit.version}, which {why}, came first")
            self._came += [action.part for action in commit.actions if isinstance(action, AddChangePart)]
        self._version = snapshot.version

    def going(self, snapshot: Snapshot) -> dict[str, Part]:
        """The parts that leave. Raises Contention if rows that stay are in one of them."""
        going = self.region.parts_of(snapshot)
        if snapshot.settings.keys:
            return going
        old = {path: part for path, part in going.items() if part.min_block <= self.began.version}
        for part in old.values():
            if part.max_block > self.began.version:
                raise self._contention("rows that were appended since were merged with those that leave")
        return old

    def again(self, snapshot: Snapshot) -> tuple[list[ChangePart], dict[str, BitMap64]]:
        """The parts with the changes that count once more, and the new rows that are dead because of them, by path."""
        spec = write_spec_of(snapshot)
        ranges = KeyRanges.of(self.parts.values(), spec, self.region.has)
        near = [part for part in self._came if ranges.may_meet(part)]
        if not spec.keys or not near:
            return [], {}
        self._find(near, spec)
        keys = [self._concerned(part, spec) for part in near]
        concerned = pa.concat_tables(keys)
        if not len(concerned):
            return [], {}
        paths = {part.path for part in near}
        others = [part for part in self._came if part.path not in paths]
        beside = parts_that_may_overlap(connect(), others, spec.schema, concerned)
        lost: dict[str, BitMap64] = {}
        out: list[ChangePart] = []
        for part in sorted([*near, *beside], key=lambda part: part.order):
            chosen = _among(self._keys_of(part, spec).select(list(spec.keys)), concerned)
            if not chosen.any():
                continue
            self._require_repeatable(part, spec)
            for one in self._rows_again(part, chosen, spec):
                out.append(one.change_part(len(out), late=part.late))
            if part.path in paths:
                self._note_lost(part, snapshot, spec, lost)
        return out, lost

    # -- inside --------------------------------------------------------------------------------------------------------

    def _forbids(self, commit: Commit) -> str | None:
        """What a commit did that can't be done once more; None if there is nothing of that."""
        kind = kind_of(commit)
        if truncates(commit) or restores(commit):
            return f"emptied or restored the table ({kind.value})"
        if kind not in REWRITES:
            return None
        if self.began.settings.conflict_scope == "table":
            return f"rewrote rows ({kind.value}; lakebed.conflict_scope is 'table')"
        for action in commit.actions:
            values = None
            if isinstance(action, AddPart):
                values = action.part.partition_values
            elif isinstance(action, RemovePart):
                values = action.partition_values or {}
            if values is not None and self.region.has(partition_key(values)):
                return f"rewrote rows of {self.region.name} ({kind.value})"
        return None

    def _require_repeatable(self, part: ChangePart, spec: WriteSpec) -> None:
        why = None
        if part.mutation:
            why = "a delete or update changed such rows"
        elif part.incomplete or part.moves:
            why = "changes came that lack values, or give rows another key"
        elif spec.resolves_by_group or spec.keeps_first:
            why = "changes came, of a table with groups of columns, aggregates or first rows"
        if why is not None:
            raise self._contention(f"{why} (version {part.version})")

    def _contention(self, why: str) -> Contention:
        return Contention(
            f"{self.operation} of {self.region.name} on {self.log.root} changed nothing: since version {self.began.version}, "
            f"with which it began, {why}; run it again",
            table=self.log.root,
            operation=self.operation.value,
            attempts=1,
        )

    def _keys_of(self, part: ChangePart, spec: WriteSpec) -> pa.Table:
        if part.path not in self._keys:
            self._keys[part.path] = pa.Table.from_batches(read_keys(part, spec, self.storage))
        return self._keys[part.path]

    def _find(self, near: Sequence[ChangePart], spec: WriteSpec) -> None:
        """Look the keys of changes up among the new rows, many parts at a time."""
        new = [part for part in near if part.path not in self._found]
        while new:
            several: list[ChangePart] = []
            while new and sum(part.rows for part in several) < _LOOKUP_ROWS:
                several.append(new.pop(0))
            tables = [self._keys_of(part, spec).select(list(spec.keys)) for part in several]
            found = self.locator(spec).lookup(self.parts, pa.concat_tables(tables)) if self.parts else None
            start = 0
            for part, keys in zip(several, tables, strict=True):
                if found is None:
                    self._found[part.path] = pa.table({"probe": pa.array([], pa.int64())})
                    continue
                probes = found["probe"].to_numpy()
                at = np.flatnonzero((probes >= start) & (probes < start + len(keys)))
                own = found.take(pa.array(at))
                self._found[part.path] = own.set_column(0, "probe", pa.array(probes[at] - start))
                start += len(keys)

    def _concerned(self, part: ChangePart, spec: WriteSpec) -> pa.Table:
        """The keys of changes that count once more: those of the region, and those of new rows."""
        keys = self._keys_of(part, spec).select(list(spec.keys))
        return keys if self.region.has(part.partition_key) else keys.take(self._found[part.path]["probe"])

    def _rows_again(self, part: ChangePart, chosen: _Flags, spec: WriteSpec) -> Sequence[WrittenPart]:
        """Files with these changes of a part; those of an earlier attempt, if they are the same changes."""
        before = self._again.get(part.path)
        if before is not None and np.array_equal(before[0], chosen):
            return before[1]
        rows = read_change_part(part, spec, self.storage).filter(pa.array(chosen))
        files = list(write_parts(rows, spec, self.storage))
        self.written += files
        self._again[part.path] = chosen, files
        return files

    def _note_lost(self, part: ChangePart, snapshot: Snapshot, spec: WriteSpec, lost: dict[str, BitMap64]) -> None:
        """Note the new rows that a change of this part replaces."""
        found = self._found[part.path]
        if not len(found):
            return
        replaces: Any = np.ones(len(found), bool)
        if spec.sequence_column is not None:
            keys = self._keys_of(part, spec)
            newer = pc.greater_equal(keys[SEQUENCE_COLUMN].take(found["probe"]), found[SEQUENCE_COLUMN])
            replaces = np.asarray(newer)
            if not replaces.all() and not self.region.has(part.partition_key):
                key = _named(
                    snapshot, keys.select(list(spec.keys)).take(found["probe"].filter(pa.array(~replaces))[:1])
                )
                raise self._contention(
                    f"a change of the key {key} came for another partition, and it is older than the row for this one"
                )
        for path, row, is_dead in zip(found["part"].to_pylist(), found["row"].to_pylist(), replaces, strict=True):
            if is_dead:
                lost.setdefault(path, BitMap64()).add(row)


def _among(keys: pa.Table, wanted: pa.Table) -> _Flags:
    """Which of the keys are wanted, by SQL's equality."""
    numbered = by_place(keys).append_column("place", pa.array(np.arange(len(keys))))
    same = " and ".join(f"k.c{at} = w.c{at}" for at in range(keys.num_columns))
    connection = connect()
    with registered(connection, "lakebed_keys", numbered), registered(connection, "lakebed_wanted", by_place(wanted)):
        query = f"select place from lakebed_keys k semi join lakebed_wanted w on {same}"
        places = connection.sql(query).fetchnumpy()["place"]
    chosen = np.zeros(len(keys), bool)
    chosen[np.asarray(places)] = True
    return chosen


def _named(snapshot: Snapshot, keys: pa.Table) -> Mapping[str, object]:
    """The first key, by the users' names."""
    [key] = python_rows(snapshot.columns.to_logical(keys.slice(0, 1)))
    return key
