"""Time to live: removes rows whose column of ``lakebed.ttl`` is older than that. No row is rewritten.

1. The statistics say which parts have only old rows, and which may have some (``planning.time_to_live``). The former leave the
   base. Of the latter the column is read, and old rows are marked dead; a part without a live row leaves.
2. The newest value of a row decides. So a row of the base stays for now if the tail has a change of its key: the tail's keys
   are looked up, and the settle decides which is newer.
3. Parts that are old as a whole leave in one commit, together with some others; the rest some at a time. If another commit
   replaced one of them, or brought changes, step 1 begins again with these parts. What was read of a file is kept, because a
   file never changes.

A part under a claim loses its rows like any other: the merge carries them over as dead rows. Age is judged by the earlier one of
two clocks, this process's and the store's, so a clock that is ahead removes nothing too early.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from lakebed.errors import InvalidInput
from lakebed.log.actions import Action, AddPart, ChangePart, Part
from lakebed.log.commit_kind import rows_expired
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import ROWS_EXPIRED, Operation
from lakebed.log.entry_values import integer_of, readable_or_none
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed, TableLog
from lakebed.operations.cleanup import time_of_cleaning
from lakebed.parts.changes import WriteSpec, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.intact import require_intact_pages
from lakebed.parts.row_origins import ROW
from lakebed.planning.time_to_live import Moment, OldParts, check_time_to_live, mixed_are_due, moment_before, old_parts
from lakebed.quoting import literal
from lakebed.resolve.locate import KeyLocator, read_keys
from lakebed.sql import scan_of, sql_type
from lakebed.storage.engine import connect, naming_unreadable
from lakebed.storage.part_storage import PartStorage

_EXPIRED_ROWS_SCHEMA = pa.schema(
    [("path", pa.string()), ("expired_rows", pa.int64()), ("rows_left", pa.int64()), ("bytes", pa.int64()),
     ("removed", pa.bool_())]
)  # fmt: skip
PARTS_AT_ONCE = 256
_BATCH_ROWS = 65_536
_logger = logging.getLogger("lakebed.ttl")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Old:
    """The old rows of a part: ``dead`` are all that are dead then, None if the part leaves the base."""

    part: Part
    expired_rows: int
    dead: BitMap64 | None

    def row(self) -> dict[str, object]:
        """A row of EXPIRED_ROWS_SCHEMA."""
        return {
            "path": self.part.path,
            "expired_rows": self.expired_rows,
            "rows_left": self.part.live_rows - self.expired_rows,
            "bytes": self.part.bytes if self.dead is None else 0,
            "removed": self.dead is None,
        }


class RowExpiry:
    """Removes the old rows of one table. Safe to use from several threads."""

    def __init__(
        self,
        log: TableLog,
        storage: PartStorage,
        deletion_vectors: DeletionVectorCache,
        locator: Callable[[WriteSpec], KeyLocator],
    ) -> None:
        """``locator``: finds the rows of the tail's keys in the base."""
        self._log = log
        self._storage = storage
        self._deletion_vectors = deletion_vectors
        self._locator = locator
        self._looked_ms = 0  # when this process last looked for old rows of mixed parts

    @property
    def is_needed(self) -> bool:
        """Whether the table has a time to live, by the newest snapshot in memory."""
        return self._log.newest is not None and self._log.newest.settings.ttl is not None

    def run_due(self) -> None:
        """What maintenance does now and then: old parts always, rows of mixed ones when they are due."""
        snapshot = self._log.refresh()
        if snapshot.settings.ttl is None:
            return
        check_time_to_live(snapshot.logical_settings.ttl, snapshot.logical_schema)
        now_ms = time_of_cleaning(self._log, self._storage)
        is_due = mixed_are_due(snapshot, max(self._looked_ms, _looked_ms(snapshot)), now_ms)
        found = self._expire(snapshot, now_ms, with_mixed=is_due)
        if found:
            rows, parts = sum(one.expired_rows for one in found), sum(one.dead is None for one in found)
            _logger.info("%d rows of %s have expired; %d parts left the table", rows, self._log.root, parts)

    def expire(self, dry_run: bool) -> pa.Table:
        """See ``TableMaintenance.expire_rows``."""
        snapshot = self._log.refresh()
        if snapshot.settings.ttl is None:
            raise InvalidInput("the table has no lakebed.ttl; set it, for example to 'created_at: 90 days'")
        check_time_to_live(snapshot.logical_settings.ttl, snapshot.logical_schema)
        now_ms = time_of_cleaning(self._log, self._storage)
        if dry_run:
            expiring = self._expiring(snapshot, now_ms, looks=True)
            planned = expiring.planned(snapshot)
            found = expiring.old_rows(snapshot, [*planned.old, *planned.mixed])
        else:
            found = self._expire(snapshot, now_ms, with_mixed=True)
        return pa.Table.from_pylist([one.row() for one in found], _EXPIRED_ROWS_SCHEMA)

    def _expire(self, snapshot: Snapshot, now_ms: int, with_mixed: bool) -> list[_Old]:
        expiring = self._expiring(snapshot, now_ms, with_mixed)
        planned, found = expiring.planned(snapshot), list[_Old]()
        mixed = planned.mixed if with_mixed else ()
        for at in range(0, max(1, len(mixed)), PARTS_AT_ONCE):
            read = mixed[at : at + PARTS_AT_ONCE]
            expiring.paths = [part.path for part in (read if at else (*planned.old, *read))]
            done, snapshot = commit_loop(self._log, Operation.EXPIRE_ROWS, expiring.build, first=snapshot)
            found += done
        if with_mixed:
            self._looked_ms = now_ms
        return found

    def _expiring(self, snapshot: Snapshot, now_ms: int, looks: bool) -> _Expiring:
        ttl = snapshot.settings.ttl
        assert ttl is not None
        return _Expiring(
            log=self._log,
            storage=self._storage,
            deletion_vectors=self._deletion_vectors,
            locator=self._locator,
            column=ttl.column,
            before=moment_before(ttl, snapshot.schema.field(ttl.column), now_ms),
            now_ms=now_ms,
            looked_ms=now_ms if looks else _looked_ms(snapshot),
        )


@dataclass(slots=True, kw_only=True)
class _Expiring:
    """One removal of old rows. ``paths``: of the parts of the next commit; ``read``: old rows by file, dead ones among them;
    ``keys``: of change parts, by their path; ``looked_ms``: for the entry of the log.
    """

    log: TableLog
    storage: PartStorage
    deletion_vectors: DeletionVectorCache
    locator: Callable[[WriteSpec], KeyLocator]
    column: str
    before: Moment
    now_ms: int
    looked_ms: int
    paths: Sequence[str] = ()
    read: dict[str, BitMap64] = field(default_factory=dict)
    keys: dict[str, pa.Table] = field(default_factory=dict)

    def planned(self, snapshot: Snapshot) -> OldParts:
        """Step 1."""
        return old_parts(snapshot, self.column, self.before, self.now_ms, self.log.statistics)

    def build(
        self, snapshot: Snapshot
    ) -> Proposal[tuple[list[_Old], Snapshot]] | Finished[tuple[list[_Old], Snapshot]]:
        """Steps 2 and 3, for the parts of this commit that are still there."""
        if self.column not in snapshot.schema.names:
            return Finished(([], snapshot))
        found = self.old_rows(snapshot, [snapshot.parts[path] for path in self.paths if path in snapshot.parts])
        if not found:
            return Finished(([], snapshot))
        vectors = self.deletion_vectors.write({one.part.path: one.dead for one in found if one.dead is not None})
        actions: list[Action] = []
        for one in found:
            actions.append(one.part.removed(self.now_ms))
            if one.part.path in vectors:
                actions.append(AddPart(one.part.marked(vectors[one.part.path])))
        column, before = snapshot.columns.logical_name(self.column), str(self.before)
        actions.append(rows_expired(column, before, self.looked_ms))
        access = ReadWriteSet(
            parts={one.part.path: one.part.partition_key for one in found},
            read_changes=bool(snapshot.settings.keys),
        )

        def result(committed: Committed) -> tuple[list[_Old], Snapshot]:
            self.log.checkpoint_if_due(committed.snapshot, slack=2)
            return found, committed.snapshot

        return Proposal(
            actions=actions,
            access=access,
            result=result,
            parameters={"column": column, "before": before},
            metrics={
                "rows": sum(one.expired_rows for one in found),
                "parts": len(found),
                "partsRemoved": len(found) - len(vectors),
            },
        )

    def old_rows(self, snapshot: Snapshot, parts: Sequence[Part]) -> list[_Old]:
        """The old rows of these parts, without those whose keys the tail has."""
        planned = self.planned(snapshot)
        whole = {part.path for part in planned.old}
        touched = self._touched(snapshot) if parts else {}
        found = []
        for part in parts:
            dead, changed = self.deletion_vectors.of(part), touched.get(part.path, BitMap64())
            if part.path in whole and not changed:
                found.append(_Old(part=part, expired_rows=part.live_rows, dead=None))
                continue
            old = self._old_of(part, snapshot) - dead - changed
            if old:
                empties = len(dead | old) == part.rows and not snapshot.keeps_deletes(part, self.now_ms)
                found.append(_Old(part=part, expired_rows=len(old), dead=None if empties else dead | old))
        return found

    def _old_of(self, part: Part, snapshot: Snapshot) -> BitMap64:
        if part.path not in self.read:
            with naming_unreadable([part.path]):
                self.read[part.path] = rows_before(part, snapshot.schema.field(self.column), self.before, self.storage)
        return self.read[part.path]

    def _touched(self, snapshot: Snapshot) -> dict[str, BitMap64]:
        """Rows of the base whose keys the tail has, by part."""
        if not snapshot.tail:
            return {}
        spec = write_spec_of(snapshot)
        for part in snapshot.tail.values():
            if part.path not in self.keys:
                self.keys[part.path] = keys_of_tail(part, spec, self.storage)
        keys = pa.concat_tables([self.keys[part.path] for part in snapshot.tail.values()])
        hits = self.locator(spec).lookup(snapshot.parts, keys)
        out: dict[str, BitMap64] = {}
        for path, row in zip(hits["part"].to_pylist(), hits["row"].to_pylist(), strict=True):
            out.setdefault(path, BitMap64()).add(row)
        return out


def keys_of_tail(part: ChangePart, spec: WriteSpec, storage: PartStorage) -> pa.Table:
    """The keys of a change part."""
    with naming_unreadable([part.path]):
        return pa.Table.from_batches(read_keys(part, spec, storage)).select(list(spec.keys))


def rows_before(part: Part, column: pa.Field, before: Moment, storage: PartStorage) -> BitMap64:
    """The rows of a part, dead ones too, whose column is before a moment."""
    require_intact_pages(part, storage, [column.name])
    connection, kind = connect(), sql_type(column.type)
    storage.attach(connection)
    url, found = storage.duckdb_url(part.path), BitMap64()
    scan = scan_of([url], {column.name: kind}, part.partition_values, f"file_row_number as {ROW}")
    query = f"select {ROW} from ({scan}) where c0 < cast({literal(str(before))} as {kind})"
    for batch in connection.sql(query).to_arrow_reader(_BATCH_ROWS):
        found |= BitMap64(batch.column(0).to_numpy().astype(np.uint64))
    return found


def _looked_ms(snapshot: Snapshot) -> int:
    """When old rows of mixed parts were last looked for, by what was committed then."""
    return readable_or_none(ROWS_EXPIRED, snapshot.domains.get(ROWS_EXPIRED), looked_ms_in) or 0


def looked_ms_in(domain: str, text: str) -> int:
    """When old rows were looked for, as an entry of the log says. Raises Corrupt."""
    return integer_of(domain, text, "looked_ms")
