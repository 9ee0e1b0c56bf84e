"""What others committed while an overwrite wrote its rows: what of it ends the overwrite, and what counts after it.

Where whole partitions are replaced, changes of them are brought once more (``overwrite``). Where rows are, by a condition on any
columns, nothing need be brought once more, since what later changes left stays where it is:

1. In a table with keys rows leave that match in the newest version, unless a change of their key came since. In one without,
   those that match and were not appended since.
2. A new row joins dead if a change of its key came since; with ``sequence_by`` only if the change is not older. If it is older,
   the row that it left dies.
3. A change that lost against a row that leaves would not have lost without it: it ends the overwrite. So do changes that can't be
   told by their keys, of rows that left or of new ones (``_why_not_repeatable``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.errors import Contention, VersionNotFound
from lakebed.far_times import python_rows
from lakebed.log.actions import AddChangePart, AddPart, ChangePart, Commit, Domain, Part, RemovePart, partition_key
from lakebed.log.commit_kind import REWRITES, kind_of, restores, truncates
from lakebed.log.entries import PURGED, Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.operations.mutate import Matching
from lakebed.operations.region import Region
from lakebed.parts.change_rows import read_change_part
from lakebed.parts.changes import SEQUENCE_COLUMN, WriteSpec, write_spec_of
from lakebed.parts.part_filter import KeyRanges, parts_that_may_overlap
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.resolve.locate import KeyLocator, read_keys
from lakebed.resolve.whole_rows import indices_by_part
from lakebed.sql import by_place, registered
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

_LOOKUP_ROWS = 500_000
_Flags = npt.NDArray[np.bool_]
Dying = dict[str, BitMap64]
"""Rows by the paths of their parts."""


@dataclass(slots=True, kw_only=True)
class Since:
    """What was committed since an overwrite began."""

    log: TableLog
    storage: PartStorage
    locator: Callable[[WriteSpec], KeyLocator]
    operation: Operation
    began: Snapshot
    region: Region
    parts: Mapping[str, Part]  # the new ones, by path
    matching: Matching | None = None  # finds the rows that leave, if these are not whole partitions
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

    def rows(self, snapshot: Snapshot) -> tuple[Dying, Dying]:
        """The rows of the base that leave, and the new rows that are dead because of later changes.

        Raises Contention for what can't be told.
        """
        assert self.matching is not None
        leaving, spec = self.matching.of(snapshot), write_spec_of(snapshot)
        if not spec.keys:
            return self._not_appended_since(leaving, snapshot), {}
        if not self._came:
            return leaving, {}
        self._find(self._came, spec)
        lost: Dying = {}
        for part in self._came:
            self._require_repeatable_rows(part, spec)
            self._note_lost(part, snapshot, spec, lost)
        keys = pa.concat_tables([self._keys_of(part, spec) for part in self._came])
        hits = self.locator(spec).lookup(_some(snapshot, leaving), keys.select(list(spec.keys)))
        is_later = _are_later(keys, hits, spec)
        for path, at in indices_by_part(hits["part"]).items():
            rows = hits["row"].to_numpy()[at]
            later = _bitmap(rows[is_later[at]])
            if (_bitmap(rows) - later) & leaving[path]:
                raise self._contention("a change came late for one of the rows that it replaces")
            leaving[path] -= later
        return self._with_outweighed(leaving, lost, snapshot, spec), lost

    def awaited(self, snapshot: Snapshot) -> frozenset[str]:
        """The changes of the tail that are about new rows.

        A settle may bring a row of them that is older than the new one of its key. It must die then, and is not there yet.
        """
        about_new = {part.path for part in self._came if len(self._found.get(part.path, ()))}
        return frozenset(domain for domain, part in snapshot.tail.items() if part.path in about_new)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _not_appended_since(self, leaving: Dying, snapshot: Snapshot) -> Dying:
        parts = {path: part for path in leaving if (part := snapshot.parts[path]).min_block <= self.began.version}
        if any(part.max_block > self.began.version for part in parts.values()):
            raise self._contention("rows that were appended since were merged with those that leave")
        return {path: leaving[path] for path in parts}

    def _with_outweighed(self, leaving: Dying, lost: Dying, snapshot: Snapshot, spec: WriteSpec) -> Dying:
        """The rows that leave, and those of changes that are older than the new rows of their keys."""
        assert self.matching is not None
        if spec.sequence_column is None:
            return {path: rows for path, rows in leaving.items() if rows}
        older = []
        for part in self._came:
            found = self._found[part.path]
            places = zip(found["part"].to_pylist(), found["row"].to_pylist(), strict=True) if len(found) else ()
            living = [at for at, (path, row) in enumerate(places) if row not in lost.get(path, ())]
            older.append(self._keys_of(part, spec).take(found["probe"].take(pa.array(living, pa.int64()))))
        keys = pa.concat_tables(older).select(list(spec.keys))
        if len(keys):
            hits = self.locator(spec).lookup(snapshot.parts, keys)
            for path, at in indices_by_part(hits["part"]).items():
                rows = _bitmap(hits["row"].to_numpy()[at]) - self.matching.deletion_vectors.of(snapshot.parts[path])
                leaving[path] = leaving.get(path, BitMap64()) | rows
        return {path: rows for path, rows in leaving.items() if rows}

    def _require_repeatable_rows(self, part: ChangePart, spec: WriteSpec) -> None:
        """``_require_repeatable``, if changes of the part are about rows that left, or about new ones."""
        assert self.matching is not None
        if self._why_not_repeatable(part, spec) is None:
            return
        is_concerned = len(self._found[part.path]) > 0
        if not is_concerned and (matched := self.matching.of(self.began)):
            keys = self._keys_of(part, spec).select(list(spec.keys))
            hits = self.locator(spec).lookup(_some(self.began, matched), keys)
            is_concerned = any(
                matched[path] & _bitmap(hits["row"].to_numpy()[at])
                for path, at in indices_by_part(hits["part"]).items()
            )
        if is_concerned:
            self._require_repeatable(part, spec)

    def _forbids(self, commit: Commit) -> str | None:
        """What a commit did that can't be done once more; None if there is nothing of that."""
        kind = kind_of(commit)
        if truncates(commit) or restores(commit):
            return f"emptied or restored the table ({kind.value})"
        if any(isinstance(action, Domain) and action.domain == PURGED for action in commit.actions):
            return "purged rows"  # changes that would be brought once more may have been among them
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
        if why := self._why_not_repeatable(part, spec):
            raise self._contention(f"{why} (version {part.version})")

    def _why_not_repeatable(self, part: ChangePart, spec: WriteSpec) -> str | None:
        if part.mutation:
            return "a delete or update changed such rows"
        if part.incomplete or part.moves:
            return "changes came that lack values, or give rows another key"
        if spec.combines_changes:
            return "changes came, of a table with groups of columns, aggregates or first rows"
        return None

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
                key = named_key(
                    snapshot, keys.select(list(spec.keys)).take(found["probe"].filter(pa.array(~replaces))[:1])
                )
                raise self._contention(
                    f"a change of the key {key} came for another partition, and it is older than the row for this one"
                )
        for path, row, is_dead in zip(found["part"].to_pylist(), found["row"].to_pylist(), replaces, strict=True):
            if is_dead:
                lost.setdefault(path, BitMap64()).add(row)


def _some(snapshot: Snapshot, rows: Dying) -> dict[str, Part]:
    """The parts that have these rows."""
    return {path: snapshot.parts[path] for path in rows}


def _are_later(keys: pa.Table, hits: pa.Table, spec: WriteSpec) -> _Flags:
    """Of rows that a look-up of changes' keys found: whether they are what a change left, or are older than it."""
    if spec.sequence_column is None:
        return np.ones(len(hits), bool)
    is_later = pc.greater_equal(keys[SEQUENCE_COLUMN].take(hits["probe"]), hits[SEQUENCE_COLUMN])
    return np.asarray(pc.fill_null(is_later, True))  # a row of another writer may have no sequence: it is the oldest


def _bitmap(rows: npt.NDArray[np.int64]) -> BitMap64:
    return BitMap64(rows.astype(np.uint64))


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


def named_key(snapshot: Snapshot, keys: pa.Table) -> Mapping[str, object]:
    """The first key, by the users' names."""
    [key] = python_rows(snapshot.columns.to_logical(keys.slice(0, 1)))
    return key
