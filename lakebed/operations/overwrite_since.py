"""What others committed while an overwrite wrote its rows: what of it ends the overwrite, and what counts after it.

**Whole partitions are replaced** (``Since.partitions``): changes of them, and of the keys of new rows, are brought once more, as
the newest changes; so are all changes since then of the same keys, in order, so that they end as they did.

1. A change part of the tail whose keys may be among the rows that leave or join, by the ranges in the log, is brought once more
   whole, and stays in the tail. Nothing is looked up: the commit of the new rows is between it and what repeats it, and settling
   both over the new rows leaves what settling the second one does.
2. So is a part that was settled into a replaced partition: its rows leave.
3. Of any other settled part those changes are brought once more whose keys are among the new rows. Such a new row joins dead, so
   that no key is live twice; with ``sequence_by`` a change that is older than it ends the overwrite.
4. The commit conflicts with a settle of the parts of step 1, and with changes that may be about these keys, or repeated ones.
5. A change that was settled before others rewrote its partition, or the row of its key, ends it (``_note_outdated``).

**Rows are replaced**, by a condition on any columns (``Since.rows``). What later changes left in the base stays where it is:

1. In a table with keys rows leave that match in the newest version, unless a settled change of their key came since. In one
   without, those that match and were not appended since.
2. A new row joins dead if a settled change of its key came since; with ``sequence_by`` only if the change is not older. If it is
   older, the row that it left dies.
3. Change parts of the tail are brought once more, as above.
4. A change that lost against a row that leaves would not have lost without it: it ends the overwrite. So do changes that can't be
   told by their keys, of rows that left or of new ones (``_why_not_repeatable``).

**Changes that can't be repeated** came, if only of other keys: then keys of the tail are looked up too. Those that are about rows
that leave are settled first.

**Why it ends beside a stream.** An attempt reads the key of a change, looks it up among the new rows if the change was settled
elsewhere, and writes it again. The next one does so for what came or was settled meanwhile, and only compares the keys of earlier
ones. So its time follows the number of changes, not that of the new rows: only the first look-up, by tasks, and the next few read
the keys of these; after that an index has them (``resolve.locators``). If changes are treated faster than they come, each attempt
is shorter, until one is done before the next batch comes. Beside changes that can't be repeated it need not end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.errors import Contention, VersionNotFound
from lakebed.far_times import python_rows
from lakebed.log.actions import (
    AddChangePart,
    AddPart,
    ChangePart,
    Commit,
    Domain,
    Part,
    RemoveChangePart,
    RemovePart,
    partition_key,
)
from lakebed.log.commit_kind import REWRITES, kind_of, restores, settles, truncates
from lakebed.log.commit_loop import NotYet
from lakebed.log.entries import PURGED, Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.operations.commit_changes import discard
from lakebed.operations.mutate import Matching
from lakebed.operations.region import Region
from lakebed.parts.change_rows import read_change_part
from lakebed.parts.changes import SEQUENCE_COLUMN, WriteSpec, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.part_filter import NO_KEYS, KeyRanges, parts_that_may_overlap
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.resolve.locate import KeyLocator, lookup_schema, read_keys
from lakebed.resolve.locators import JoiningKeys
from lakebed.resolve.whole_rows import indices_by_part
from lakebed.sortkey.statistics_cache import StatisticsCache
from lakebed.sql import by_place, registered
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

_Flags = npt.NDArray[np.bool_]
Dying = dict[str, BitMap64]
"""Rows by the paths of their parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """What counts after the new rows."""

    again: Sequence[ChangePart] = ()
    """The parts that bring changes once more."""
    lost: Dying = field(default_factory=dict)
    """The new rows that join dead, because of changes."""
    awaited: frozenset[str] = frozenset()
    """Changes of the tail that nobody may settle before the commit."""
    ranges: KeyRanges = NO_KEYS
    """The keys that no other change may be about that comes before the commit."""


@dataclass(slots=True, kw_only=True)
class Since:
    """What was committed since an overwrite began."""

    log: TableLog
    storage: PartStorage
    deletion_vectors: DeletionVectorCache
    in_base: Callable[[WriteSpec], KeyLocator]
    by_tasks: Callable[[WriteSpec], KeyLocator]  # finds many keys
    operation: Operation
    began: Snapshot
    region: Region
    parts: Mapping[str, Part]  # the new ones, by path
    matching: Matching | None = None  # finds the rows that leave, if these are not whole partitions
    written: list[WrittenPart] = field(default_factory=list)  # what brings changes once more
    _version: int = -1  # the newest one that was looked at
    _came: list[ChangePart] = field(default_factory=list)
    _joined: list[Part] = field(default_factory=list)  # parts that came otherwise, but for those of ``joined``
    _settled: dict[str, int] = field(default_factory=dict)  # by domains of change parts: what version settled them
    _rewrites: list[Commit] = field(default_factory=list)  # what ``_note_outdated`` has not looked at
    _outdated: dict[str, _Flags] = field(default_factory=dict)  # of change parts: what can't come once more
    _keys: dict[str, pa.Table] = field(default_factory=dict)  # of change parts: their keys, and what orders them
    _found: dict[str, pa.Table] = field(default_factory=dict)  # of change parts: their keys among the new rows
    _again: dict[str, tuple[_Flags, Sequence[WrittenPart]]] = field(default_factory=dict)
    _judged: set[str] = field(default_factory=set)  # settled change parts that ``partitions`` has looked at
    _concerned: dict[str, pa.Table] = field(default_factory=dict)  # of change parts: the keys that count once more
    _lost: Dying = field(default_factory=dict)
    _statistics: StatisticsCache = field(default_factory=StatisticsCache)
    _about_others: set[str] = field(default_factory=set)  # of change parts that can't be repeated, and need not be
    _later: JoiningKeys | None = None  # finds their keys among the new rows, but for the first time

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
            self._settled |= {one.domain: commit.version for one in commit.actions if isinstance(one, RemoveChangePart)}
            self._joined += _joined_by(commit)
            self._rewrites += [commit] if kind_of(commit) in REWRITES or _joined_by(commit) else []
        self._version = snapshot.version

    def joined(self, snapshot: Snapshot) -> list[Part]:
        """The parts with rows that were no changes, and that may have keys of new rows, since this was asked before."""
        spec, joined = write_spec_of(snapshot), self._joined
        self._joined = []
        ranges = KeyRanges.of(self.parts.values() if spec.keys and joined else (), spec)
        return list(filter(ranges.may_meet, joined))

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

    def partitions(self, snapshot: Snapshot, going: Mapping[str, Part]) -> After | NotYet:
        """What counts after the rows of whole partitions. ``going``: the parts that leave. Raises Contention."""
        spec, has = write_spec_of(snapshot), self.region.has
        if not spec.keys:
            return After(ranges=KeyRanges((), (), has))
        new = KeyRanges.of(self.parts.values(), spec, has)
        both = KeyRanges.of([*self.parts.values(), *going.values()], spec, has)
        tail, settled = self._divided(snapshot)
        tail = list(filter(both.may_meet, tail))
        exact = [part for part in tail if not has(part.partition_key)] if self._needs_look_up(spec) else []
        if self._are_live(exact, going, snapshot, spec):
            return NotYet("changes of rows that leave kept coming in, beside some that can't be brought once more")
        settled = [part for part in settled if part.path not in self._judged]
        for part in settled:
            self._judged.add(part.path)
            self._concerned.pop(part.path, None)
        elsewhere = [part for part in settled if new.may_meet(part) and not has(part.partition_key)]
        self._find([*exact, *elsewhere], spec)
        for part in elsewhere:
            self._note_lost(part, snapshot, spec, self._lost)
        for part in (*exact, *elsewhere):
            self._concerned[part.path] = self._only_keys(part, spec).take(self._found[part.path]["probe"])
        looked_up = {part.path for part in exact}
        for part in (*tail, *(part for part in settled if has(part.partition_key))):
            if part.path not in looked_up:
                self._concerned[part.path] = self._only_keys(part, spec)
        self._note_outdated(spec)
        again = self._once_more(self._concerned.values(), self._came, spec)
        ranges = KeyRanges.of([*self.parts.values(), *going.values(), *again], spec, has)
        return After(again=again, lost=self._lost, awaited=frozenset(part.domain for part in tail), ranges=ranges)

    def rows(self, snapshot: Snapshot) -> tuple[Dying, After]:
        """The rows of the base that leave, where not whole partitions do, and what counts after the new ones.

        Raises Contention for what can't be told.
        """
        assert self.matching is not None
        leaving, spec = self.matching.of(snapshot), write_spec_of(snapshot)
        if not spec.keys:
            return self._not_appended_since(leaving, snapshot), After()
        ranges = KeyRanges.of([*self.parts.values(), *_some(snapshot, leaving).values()], spec)
        tail, settled = self._divided(snapshot)
        near = list(filter(ranges.may_meet, tail))
        looked_up, whole = (self._came, []) if self._needs_look_up(spec) else (settled, near)
        self._find(looked_up, spec)
        lost: Dying = {}
        for part in looked_up:
            self._require_repeatable_rows(part, spec)
            self._note_lost(part, snapshot, spec, lost)
        if looked_up:
            keys = pa.concat_tables([self._keys_of(part, spec) for part in looked_up])
            hits = self.in_base(spec).lookup(snapshot.parts, keys.select(list(spec.keys)))
            is_later = _are_later(keys, hits, spec)
            for path, at in indices_by_part(hits["part"]).items():
                if path not in leaving:
                    continue
                rows = hits["row"].to_numpy()[at]
                later = _bitmap(rows[is_later[at]])
                if (_bitmap(rows) - later) & leaving[path]:
                    raise self._contention("a change came late for one of the rows that it replaces")
                leaving[path] -= later
        again = self._once_more([self._only_keys(part, spec) for part in whole], tail, spec)
        leaving = self._with_outweighed(leaving, lost, looked_up, snapshot, spec)
        ranges = KeyRanges.of([*self.parts.values(), *_some(snapshot, leaving).values(), *again], spec)
        return leaving, After(again=again, lost=lost, awaited=frozenset(part.domain for part in near), ranges=ranges)

    def close(self) -> None:
        """Delete what was kept on the local disk."""
        if self._later is not None:
            self._later.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _not_appended_since(self, leaving: Dying, snapshot: Snapshot) -> Dying:
        parts = {path: part for path in leaving if (part := snapshot.parts[path]).min_block <= self.began.version}
        if any(part.max_block > self.began.version for part in parts.values()):
            raise self._contention("rows that were appended since were merged with those that leave")
        return {path: leaving[path] for path in parts}

    def _divided(self, snapshot: Snapshot) -> tuple[list[ChangePart], list[ChangePart]]:
        """The change parts that came: those of the tail, and those that were settled."""
        tail = [part for part in self._came if part.domain in snapshot.tail]
        return tail, [part for part in self._came if part.domain not in snapshot.tail]

    def _needs_look_up(self, spec: WriteSpec) -> bool:
        """Whether some changes can't be repeated, so that others can't be without a look at whom they are about."""
        return any(self._why_not_repeatable(part, spec) for part in self._came)

    def _are_live(
        self, some: Sequence[ChangePart], among: Mapping[str, Part], snapshot: Snapshot, spec: WriteSpec
    ) -> bool:
        """Whether some of these changes are about live rows of some parts of the base."""
        if not some:
            return False
        keys = pa.concat_tables([self._only_keys(part, spec) for part in some])
        hits = self.in_base(spec).lookup(snapshot.parts, keys)
        return any(
            path in among and _bitmap(hits["row"].to_numpy()[at]) - self.deletion_vectors.of(among[path])
            for path, at in indices_by_part(hits["part"]).items()
        )

    def _once_more(self, keys: Iterable[pa.Table], came: Sequence[ChangePart], spec: WriteSpec) -> list[ChangePart]:
        """Parts that bring all changes of these keys again, of those that came."""
        some = [each for each in keys if len(each)]
        if not some:
            return []
        concerned = pa.concat_tables(some)
        parts = parts_that_may_overlap(connect(), came, spec.schema, concerned, self._statistics)
        parts.sort(key=lambda part: part.order)
        out: list[ChangePart] = []
        for part, chosen in zip(parts, self._chosen(parts, concerned, spec), strict=True):
            if chosen.any():
                self._require_repeatable(part, spec)
                if (chosen & self._outdated.get(part.path, np.array(False))).any():
                    raise self._contention("others rewrote rows that changes had brought which count once more")
                for one in self._rows_again(part, chosen, spec):
                    out.append(one.change_part(len(out), late=part.late))
        return out

    def _note_outdated(self, spec: WriteSpec) -> None:
        """Note the changes that were settled before a rewrite of others took their rows away, or brought rows of their keys."""
        for commit in self._rewrites:
            before = [part for part in self._came if self._settled.get(part.domain, commit.version) < commit.version]
            gone = {partition_key(one.partition_values or {}) for one in commit.actions if isinstance(one, RemovePart)}
            self._outdated |= {part.path: np.array(True) for part in before if part.partition_key in gone}
            among = {part.path: part for part in _joined_by(commit)}
            ranges = KeyRanges.of(among.values(), spec)
            near = [part for part in before if part.partition_key not in gone and ranges.may_meet(part)]
            if not near:
                continue
            keys = [self._only_keys(part, spec) for part in near]
            hits = self.by_tasks(spec).lookup(among, pa.concat_tables(keys))
            places = zip(hits["part"].to_pylist(), hits["row"].to_pylist(), strict=True)
            live = [row not in self.deletion_vectors.of(among[path]) for path, row in places]
            outdated = np.isin(np.arange(sum(map(len, keys))), hits["probe"].to_numpy()[np.array(live, bool)])
            for part, flags in zip(near, np.split(outdated, np.cumsum([len(one) for one in keys])[:-1]), strict=True):
                self._outdated[part.path] = flags | self._outdated.get(part.path, np.array(False))
        self._rewrites = []

    def _chosen(self, parts: Sequence[ChangePart], concerned: pa.Table, spec: WriteSpec) -> list[_Flags]:
        """Which changes of each part have one of the keys."""
        keys = [self._only_keys(part, spec) for part in parts]
        ends = np.cumsum([len(table) for table in keys])
        return np.split(_among(pa.concat_tables(keys), concerned), ends[:-1])

    def _with_outweighed(
        self, leaving: Dying, lost: Dying, came: Sequence[ChangePart], snapshot: Snapshot, spec: WriteSpec
    ) -> Dying:
        """The rows that leave, and those of changes that are older than the new rows of their keys."""
        assert self.matching is not None
        if spec.sequence_column is None:
            return {path: rows for path, rows in leaving.items() if rows}
        older = []
        for part in came:
            found = self._found[part.path]
            if not len(found):
                continue
            places = zip(found["part"].to_pylist(), found["row"].to_pylist(), strict=True)
            living = [at for at, (path, row) in enumerate(places) if row not in lost.get(path, ())]
            older.append(self._keys_of(part, spec).take(found["probe"].take(pa.array(living, pa.int64()))))
        if sum(map(len, older)):
            keys = pa.concat_tables(older).select(list(spec.keys))
            hits = self.in_base(spec).lookup(snapshot.parts, keys)
            for path, at in indices_by_part(hits["part"]).items():
                rows = _bitmap(hits["row"].to_numpy()[at]) - self.matching.deletion_vectors.of(snapshot.parts[path])
                leaving[path] = leaving.get(path, BitMap64()) | rows
        return {path: rows for path, rows in leaving.items() if rows}

    def _require_repeatable_rows(self, part: ChangePart, spec: WriteSpec) -> None:
        """``_require_repeatable``, if changes of the part are about rows that left, or about new ones."""
        assert self.matching is not None
        if part.path in self._about_others or self._why_not_repeatable(part, spec) is None:
            return
        is_concerned = len(self._found[part.path]) > 0
        if not is_concerned and (matched := self.matching.of(self.began)):
            keys = self._only_keys(part, spec)
            hits = self.by_tasks(spec).lookup(_some(self.began, matched), keys)
            is_concerned = any(
                matched[path] & _bitmap(hits["row"].to_numpy()[at])
                for path, at in indices_by_part(hits["part"]).items()
            )
        if is_concerned:
            self._require_repeatable(part, spec)
        self._about_others.add(part.path)

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

    def _only_keys(self, part: ChangePart, spec: WriteSpec) -> pa.Table:
        return self._keys_of(part, spec).select(list(spec.keys))

    def _find(self, some: Sequence[ChangePart], spec: WriteSpec) -> None:
        """Look the keys of changes up among the new rows."""
        new = [part for part in some if part.path not in self._found]
        if not new:
            return
        tables = [self._only_keys(part, spec) for part in new]
        keys = pa.concat_tables(tables)
        if not self.parts:
            found = lookup_schema(spec).empty_table()
        elif self._later is None:
            found = self.by_tasks(spec).lookup(self.parts, keys)
            self._later = JoiningKeys(self.parts, self.storage)
        else:
            found = self._later.lookup(spec, keys)
        probes, start = found["probe"].to_numpy(), 0
        for part, table in zip(new, tables, strict=True):
            at = np.flatnonzero((probes >= start) & (probes < start + len(table)))
            self._found[part.path] = found.take(pa.array(at)).set_column(0, "probe", pa.array(probes[at] - start))
            start += len(table)

    def _rows_again(self, part: ChangePart, chosen: _Flags, spec: WriteSpec) -> Sequence[WrittenPart]:
        """Files with these changes of a part; those of an earlier attempt, if they are the same changes."""
        before = self._again.get(part.path)
        if before is not None and np.array_equal(before[0], chosen):
            return before[1]
        if before is not None:
            discard(before[1], self.storage)
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


def _joined_by(commit: Commit) -> list[Part]:
    """The parts that a commit brought into the base with rows that were no changes, such as those of a partition."""
    if settles(commit):
        return []
    marked = {action.path for action in commit.actions if isinstance(action, RemovePart)}
    added = [action.part for action in commit.actions if isinstance(action, AddPart) and action.data_change]
    return [part for part in added if part.path not in marked]


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
