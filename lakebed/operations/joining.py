"""Parts that join the base with keys that nobody has looked up there: those of a partition that comes back, or is replaced.

To look all of them up takes as long as the partition is large, and others commit meanwhile. So what was found stays, and only
what came since is compared. Each round of the commit loop does this:

1. The first time, all keys are looked up in the base of that version.
2. Changes in the tail, and those that came since the last round, are looked for among the rows that join; first by their ranges
   (``parts.part_filter``), which mostly rule them out. Changes of other keys may stay in the tail, or be settled and merged: they
   alter nothing of what was found.
3. If a change is about one of these keys, the tail is settled, and then these keys are looked up again, and no others.
4. If rows came in another way (an attach, a restore), the round begins with step 1.

What was found stays true. A key that is live in the table is refused at once. A row that lost against a delete comes back dead,
whatever becomes of the delete. Deletes that come back outweigh older rows of the base: where these are is looked up in each
round, since a merge may have moved them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.errors import InvalidInput, VersionNotFound
from lakebed.far_times import python_values
from lakebed.log.actions import AddChangePart, AddPart, ChangePart, Commit, Part
from lakebed.log.commit_kind import restores, settles
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.operations.overwrite_since import named_key
from lakebed.operations.region import Region
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, WriteSpec, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.intact import require_intact_pages
from lakebed.parts.part_filter import NO_KEYS, KeyRanges
from lakebed.parts.row_origins import row_versions
from lakebed.resolve.groups import States, newest_of_groups
from lakebed.resolve.locate import KeyLocator, ScanLocator, lookup_schema, read_keys
from lakebed.resolve.locators import JoiningKeys
from lakebed.storage.part_storage import PartStorage

_logger = logging.getLogger("lakebed.partitions")
NEW_ROW = "give the row that value, or leave it out"
OLD_ROW = "delete the key, so that the row comes back dead, and apply the row again after that"

_Rows = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
class Joining:
    """Parts that are about to join the base of a table with keys."""

    log: TableLog
    storage: PartStorage
    deletion_vectors: DeletionVectorCache
    locator: Callable[[WriteSpec], KeyLocator]
    parts: Mapping[str, Part]  # by path
    whose: str  # what they are, for messages
    detached: int | None = None  # the version that took them out of the table; None if they are new
    region: Region | None = None  # the partitions whose place they take
    lost: dict[str, BitMap64] = field(default_factory=dict)  # their rows that come back dead, by path
    ranges: KeyRanges = NO_KEYS
    """The keys that no change may be about that comes before the commit."""
    _read: Snapshot | None = None
    _spec: WriteSpec | None = None
    _going: Mapping[str, Part] = field(default_factory=dict)
    _pending: dict[str, ChangePart] = field(default_factory=dict)
    _deletes: list[tuple[Part, _Rows, pa.Table]] = field(default_factory=list)
    _own: JoiningKeys = field(init=False)

    def __post_init__(self) -> None:
        self._own = JoiningKeys(self.parts, self.storage)

    def look(self, snapshot: Snapshot, going: Mapping[str, Part]) -> str | None:
        """Compare the rows with what the table has. ``going``: the parts that leave when they come.

        Returns why the tail must be settled first; None if all is compared. Raises InvalidInput naming a key that can't join.
        """
        self._going, spec = going, write_spec_of(snapshot)
        if not self._follows(snapshot, spec):
            self._look_at_all(snapshot, spec)
        covers = None if self.region is None else self.region.has
        self.ranges = KeyRanges.of([*self.parts.values(), *going.values()], spec, covers)
        for part in sorted(self._pending.values(), key=lambda part: part.order):
            if self.ranges.may_meet(part):
                keys = pa.Table.from_batches(read_keys(part, spec, self.storage))
                found = self._own.lookup(spec, keys.select(list(spec.keys)))
                if self._matters(part, keys, found):
                    if part.domain in snapshot.tail:
                        return "changes of the same keys, or of the partition, kept coming in"
                    self._look_at(found, keys)
            del self._pending[part.path]
        return None

    def outlived(self) -> dict[str, BitMap64]:
        """The rows of the base that are older than deletes which come back, by path."""
        dying: dict[str, BitMap64] = {}
        for part, places, deletes in self._deletes:
            found = self._older(part, places, deletes)
            for path, row in zip(found["part"].to_pylist(), found["row"].to_pylist(), strict=True):
                dying.setdefault(path, BitMap64()).add(row)
        return dying

    def close(self) -> None:
        """Delete the index, if there is one."""
        self._own.close()

    # -- what came since ---------------------------------------------------------------------------------------------

    def _follows(self, snapshot: Snapshot, spec: WriteSpec) -> bool:
        """Whether what was found holds at the snapshot, but for the pending changes; it adds those that came since to them."""
        read, was = self._read, self._spec
        if read is None or was is None or lookup_schema(was) != lookup_schema(spec) or _keys_of(was) != _keys_of(spec):
            return False
        commits: list[Commit] = []
        with suppress(VersionNotFound):
            commits = list(self.log.commits(read.version + 1, snapshot.version))
        if len(commits) < snapshot.version - read.version or any(map(_brings_rows_otherwise, commits)):
            return False
        came = [action.part for commit in commits for action in commit.actions if isinstance(action, AddChangePart)]
        self._pending |= {part.path: part for part in came}
        self._read, self._spec = snapshot, spec
        return True

    def _matters(self, part: ChangePart, keys: pa.Table, found: pa.Table) -> bool:
        """Whether changes are of the partition that leaves, or about keys of rows that leave or join."""
        assert self._spec is not None
        if self.region is not None and self.region.has(part.partition_key):
            return True
        counts = self._live(found, self.parts)
        if self._spec.sequence_column:
            counts |= _yes(pc.equal(found[OP_COLUMN], DELETE))
        if counts.any():
            return True
        leaving = self._in_base(keys.select(list(self._spec.keys)), self._going)
        return len(leaving) > 0

    # -- comparing ---------------------------------------------------------------------------------------------------

    def _look_at_all(self, snapshot: Snapshot, spec: WriteSpec) -> None:
        """Step 1."""
        self._read, self._spec = snapshot, spec
        self._pending = {part.path: part for part in snapshot.tail.values()}
        self.lost, self._deletes = {}, []
        for part in self.parts.values():
            require_intact_pages(part, self.storage, [*spec.keys, spec.sequence_column or "", OP_COLUMN])
            at = 0
            for batch in read_keys(part, spec, self.storage):
                rows = pa.Table.from_batches([batch])
                self._compare(part, np.arange(at, at + len(rows)), rows)
                at += len(rows)

    def _look_at(self, found: pa.Table, keys: pa.Table) -> None:
        """Step 3, for rows that join: a look-up of ``keys`` found them."""
        rows = keys.select([name for name in keys.column_names if name not in (OP_COLUMN, SEQUENCE_COLUMN)])
        rows = rows.take(found["probe"])
        for name in set(keys.column_names).difference(rows.column_names):
            rows = rows.append_column(name, found[name])
        paths = np.array(found["part"].to_pylist(), object)
        for path in dict.fromkeys(paths.tolist()):
            at = np.flatnonzero(paths == path)
            self._compare(self.parts[path], found["row"].to_numpy()[at], rows.take(pa.array(at)))

    def _compare(self, part: Part, places: _Rows, rows: pa.Table) -> None:
        """Compare some rows of a part with the base. ``rows``: their keys, and what orders them."""
        assert self._read is not None and self._spec is not None
        spec = self._spec
        live = ~self._among(self.deletion_vectors.of(part) | self.lost.get(part.path, BitMap64()), places)
        coming, coming_places = rows.filter(live), places[live]
        hits = self._in_base(coming.select(list(spec.keys)))
        self._refuse_live(hits, coming)
        if not spec.sequence_column:
            return
        probes = hits["probe"].to_numpy()
        sequences = coming[SEQUENCE_COLUMN].take(hits["probe"])
        is_delete = _yes(pc.equal(hits[OP_COLUMN], DELETE))
        lost = is_delete & _yes(pc.greater(hits[SEQUENCE_COLUMN], sequences))
        if self.detached is None:
            self._refuse_lost(coming, probes[lost])
        else:
            tied = np.flatnonzero(is_delete & _yes(pc.equal(hits[SEQUENCE_COLUMN], sequences)))
            lost[tied] = self._are_later(hits.take(tied), part, coming_places[probes[tied]])
        if lost.any():
            dead = BitMap64(coming_places[probes[lost]].astype(np.uint64))
            self.lost[part.path] = self.lost.get(part.path, BitMap64()) | dead
        keys = coming.select(list(spec.keys)).take(pa.array(np.setdiff1d(probes[is_delete], probes[lost])))
        whose, remedy = (self.whose, NEW_ROW) if self.detached is None else (f"the rows of {self.whose}", OLD_ROW)
        remembering = {path: self._base[path] for path in set(hits["part"].to_pylist())}
        require_newest(
            keys, remembering | {part.path: part}, self._read, self.storage, self.deletion_vectors,
            ScanLocator(spec, self.storage), whose=whose, remedy=remedy,
        )  # fmt: skip
        if self.detached is not None and part.deletes:
            at = np.flatnonzero(_yes(pc.equal(rows[OP_COLUMN], DELETE)))
            at = at[np.unique(self._older(part, places[at], rows.take(at))["probe"].to_numpy())]
            if len(at):
                self._deletes.append((part, places[at], rows.take(at)))

    def _older(self, part: Part, places: _Rows, deletes: pa.Table) -> pa.Table:
        """The live rows of the base that are older than these deletes of a part."""
        assert self._spec is not None
        hits = self._in_base(deletes.select(list(self._spec.keys)))
        hits = hits.filter(self._live(hits, self._base))
        sequences = deletes[SEQUENCE_COLUMN].take(hits["probe"])
        older = _yes(pc.less(hits[SEQUENCE_COLUMN], sequences))
        tied = np.flatnonzero(_yes(pc.equal(hits[SEQUENCE_COLUMN], sequences)))
        _, newest = self._versions(hits.take(tied))
        own_oldest, _ = row_versions(part, places[hits["probe"].to_numpy()[tied]], self.storage)
        older[tied] = newest < own_oldest  # where nobody knows, the row came later
        return hits.filter(older)

    def _are_later(self, hits: pa.Table, part: Part, rows: _Rows) -> _Flags:
        """Whether each delete in the base came after the row beside it, of a part.

        Where nobody knows, it did, unless it was there before the partition was detached.
        """
        oldest, newest = self._versions(hits)
        own_oldest, own_newest = row_versions(part, rows, self.storage)
        later: _Flags = oldest > own_newest
        guessed = ~later & (newest > own_oldest) & (newest > (self.detached or 0))
        if guessed.any():
            _logger.warning(
                "%d rows of %s come back dead: each meets a delete of the same sequence, and they were merged by a version of "
                "lakebed that did not record which came later; apply those rows again that should live",
                guessed.sum(),
                part.path,
            )
        return later | guessed

    # -- the base ----------------------------------------------------------------------------------------------------

    @property
    def _base(self) -> Mapping[str, Part]:
        assert self._read is not None
        return self._read.parts

    def _in_base(self, keys: pa.Table, among: Mapping[str, Part] | None = None) -> pa.Table:
        """The rows of keys in the base, or in these parts of it; without ``among`` in all but those that leave."""
        assert self._spec is not None
        if not self._base or not len(keys) or (among is not None and not among):
            return lookup_schema(self._spec).empty_table()
        hits = self.locator(self._spec).lookup(self._base, keys)
        if among is None and not self._going:
            return hits
        wanted = self._base.keys() - self._going.keys() if among is None else among.keys()
        parts = hits["part"].combine_chunks()
        if not pa.types.is_dictionary(parts.type):
            parts = parts.dictionary_encode()
        is_wanted = np.array([path in wanted for path in parts.dictionary.to_pylist()], bool)
        return hits.filter(is_wanted[parts.indices.to_numpy()])

    def _versions(self, hits: pa.Table) -> tuple[_Rows, _Rows]:
        """See ``row_versions``, of rows of the base."""
        oldest, newest = np.empty(len(hits), np.int64), np.empty(len(hits), np.int64)
        paths, rows = np.array(hits["part"].to_pylist(), object), hits["row"].to_numpy()
        for path in dict.fromkeys(paths.tolist()):
            at = np.flatnonzero(paths == path)
            oldest[at], newest[at] = row_versions(self._base[path], rows[at], self.storage)
        return oldest, newest

    def _live(self, hits: pa.Table, parts: Mapping[str, Part]) -> _Flags:
        found = zip(hits["part"].to_pylist(), hits["row"].to_pylist(), strict=True)
        return np.fromiter((row not in self.deletion_vectors.of(parts[path]) for path, row in found), bool, len(hits))

    def _among(self, rows: BitMap64, places: _Rows) -> _Flags:
        if not rows or not len(places):
            return np.zeros(len(places), bool)
        return np.isin(places, np.frombuffer(rows.to_array(), np.uint64).astype(np.int64))

    def _refuse_live(self, hits: pa.Table, rows: pa.Table) -> None:
        """B1. Raises InvalidInput naming a key that is live in the base."""
        live = self._live(hits, self._base)
        if live.any():
            key = self._named(rows, int(hits["probe"].to_numpy()[live][0]))
            raise InvalidInput(f"{self.whose} has the key {key}, which is live in the table; delete one of the two")

    def _refuse_lost(self, rows: pa.Table, lost: _Rows) -> None:
        assert self._read is not None
        if len(lost):
            by = self._read.logical_settings.sequence_by
            raise InvalidInput(
                f"{self.whose} has the key {self._named(rows, int(lost[0]))}, which was deleted with a newer {by}; leave it out, "
                "or give it one that is not older"
            )

    def _named(self, rows: pa.Table, at: int) -> Mapping[str, object]:
        """The key of a row, by the users' names."""
        assert self._read is not None and self._spec is not None
        return named_key(self._read, rows.select(list(self._spec.keys)).slice(at, 1))


def require_newest(
    keys: pa.Table,
    parts: Mapping[str, Part],
    snapshot: Snapshot,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
    *,
    whose: str,
    remedy: str = NEW_ROW,
) -> None:
    """Raises InvalidInput naming one of the keys of which the table remembers newer values than its row has that joins.

    Where a row has the values of several changes, some wait for a row: they would appear in it with the next change of the key.
    ``parts``: those of the new rows, and of what is remembered, by path.
    """
    spec = write_spec_of(snapshot)
    if not spec.resolves_by_group or not len(keys):
        return
    found = States.of_base(keys, parts, spec, storage, deletion_vectors, locator)
    newest = newest_of_groups(found.rows, found.key, spec, is_live=found.is_live, known=len(found.rows))
    live = np.flatnonzero(found.is_live)
    new, hidden = found.rows.take(pa.array(live)), {group.sequence_by: group.field for group in spec.groups}
    for name, values in newest.values(found.rows, found.key[live], spec).items():
        for at, (remembered, own) in enumerate(zip(python_values(values), python_values(new[name]), strict=True)):
            if repr(remembered) != repr(own):
                key = named_key(snapshot, new.select(list(spec.keys)).slice(at, 1))
                raise InvalidInput(
                    f"{whose} have the key {key}, of which the table remembers {remembered!r} as a newer "
                    f"{hidden.get(name) or snapshot.columns.logical_name(name)} than {own!r}: {remedy}"
                )


def _keys_of(spec: WriteSpec) -> tuple[object, ...]:
    return (spec.keys, [spec.schema.field(name).type for name in spec.keys], spec.sequence_column)


def _brings_rows_otherwise(commit: Commit) -> bool:
    """Whether rows came into the base that were no changes of the tail before."""
    if restores(commit):
        return True
    return not settles(commit) and any(isinstance(each, AddPart) and each.data_change for each in commit.actions)


def _yes(mask: pa.ChunkedArray) -> _Flags:
    """Null is no."""
    return np.array(pc.fill_null(mask, False), dtype=bool)
