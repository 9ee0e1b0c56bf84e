"""Whole partitions, and the whole table: truncate, detach, attach, drop what was detached, replace.

Detached parts are an entry of the log, ``lakebed.detached.<uuid>``: their files stay where they are, with their dead rows.

1. The tail is settled first, so that it holds no row of the partition (truncate removes the tail instead).
2. Truncate and detach read the newest snapshot, and commit on condition that it still is the newest: whatever came in between, a
   change or a merge, starts over with step 1.
3. Attach and replace look the keys of what joins up (``joining``): one that is live in the base is refused (B1). With
   ``sequence_by`` a row that lost against a delete does not become live: the delete is newer than any change that could still
   correct the row. Attach marks the row dead, as the delete would have done if the partition had been there. Replace refuses it,
   because its rows are declared to be right. And the deletes that come back with a partition mark older rows of the base that
   came meanwhile. Of a row and a delete with equal sequences the one counts that came later (``parts.row_origins``). Changes of
   other keys, and of other partitions than one that is replaced, may come in between.
4. Claims on parts that leave end in the same commit.
5. Files are touched only after the commit succeeded: ``drop`` deletes them if all versions that refer to them have expired
   (G1); otherwise it leaves them to the cleanup.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa

from lakebed.coordination.rewriting import rewrites
from lakebed.errors import InvalidInput
from lakebed.far_times import python_rows
from lakebed.log.actions import Action, AddPart, Domain, Part
from lakebed.log.commit_kind import replaced
from lakebed.log.commit_loop import Finished, NotYet, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.holds import first_unexpired, held_versions
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed, TableLog
from lakebed.operations.commit_changes import discard
from lakebed.operations.joining import Joining
from lakebed.operations.overwrite import Overwriting, Tasks
from lakebed.operations.overwrite_since import named_key
from lakebed.operations.region import (
    Detached,
    Region,
    detached_of,
    named,
    one_partition,
    overwritten,
    region_where,
    require_inside,
    require_same_shape,
    spelled,
)
from lakebed.parts.arrow_rows import Rows, arrow_rows
from lakebed.parts.changes import OP_COLUMN, WriteSpec, prepare, stored_rows, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.order import newest_per_key
from lakebed.parts.part_filter import KeyRanges
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.positions.positions import all_removals, order_forgotten, removals
from lakebed.resolve.locate import KeyLocator, ScanLocator, read_keys
from lakebed.resolve.whole_rows import are_in, indices_by_part
from lakebed.schema.column_mapping import misfit
from lakebed.schema.conversion import is_reserved
from lakebed.sql import aliases, by_place, registered, require_true
from lakebed.sql import named as named_columns
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

_logger = logging.getLogger("lakebed.partitions")


@dataclass(frozen=True, slots=True)
class _Change:
    """The actions for a snapshot, what the commit records of them, and what it conflicts with (None: whatever came since)."""

    actions: Sequence[Action]
    metrics: Mapping[str, int]
    parameters: Mapping[str, object] = field(default_factory=dict)
    access: ReadWriteSet | None = None


class Partitions:
    """The operations on one table. All raise InvalidInput, Contention, StoreUnavailable."""

    def __init__(
        self,
        log: TableLog,
        storage: PartStorage,
        deletion_vectors: DeletionVectorCache,
        settle: Callable[[], object],
        locator: Callable[[WriteSpec], KeyLocator],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._storage = storage
        self._deletion_vectors = deletion_vectors
        self._settle = settle
        self._locator = locator
        self._clock = clock

    @rewrites(Operation.TRUNCATE)
    def truncate(self) -> int:
        """Remove everything from the table, the tail included; returns the version."""

        def change(snapshot: Snapshot) -> _Change:
            rows = sum(part.live_rows for part in snapshot.parts.values()) + sum(p.rows for p in snapshot.tail.values())
            metrics = {"parts": len(snapshot.parts) + len(snapshot.tail), "rows": rows}
            if not snapshot.parts and not snapshot.tail:
                return _Change([], metrics)
            now_ms = self._now_ms()
            return _Change([*all_removals(snapshot, now_ms), *order_forgotten(snapshot, now_ms)], metrics)

        return self._commit(Operation.TRUNCATE, change, settles=False)

    @rewrites(Operation.DETACH_PARTITION)
    def detach(self, partition: Mapping[str, Any]) -> str:
        """Take a partition out of the table without touching its files; returns the name to attach it by."""
        name = str(uuid.uuid4())
        region = one_partition(partition, self._log.refresh())  # by stored names: a rename meanwhile changes nothing
        values = dict(region.partition)

        def change(snapshot: Snapshot) -> _Change | NotYet:
            if snapshot.tail:
                return NotYet("changes kept coming in")
            parts = list(region.parts_of(snapshot).values())
            if not parts:
                raise InvalidInput(f"there is no partition {spelled(values, snapshot)}; {_partitions_there(snapshot)}")
            now = self._now_ms()
            version = snapshot.version + 1  # a commit that touches the whole table is the next one or none
            entry = Detached(
                name=name,
                partition=values,
                version=version,
                detached_ms=now,
                schema=snapshot.metadata.schema_string,
                parts=tuple(parts),
            )
            actions = [*removals(snapshot, parts, now), entry.to_action()]
            return _Change(actions, _metrics(parts), {"partition": named(values, snapshot), "name": name})

        self._commit(Operation.DETACH_PARTITION, change)
        return name

    @rewrites(Operation.ATTACH_PARTITION)
    def attach(self, name: str) -> int:
        """Put a detached partition back as it was when it left; returns the version.

        With ``sequence_by`` deletes that came meanwhile count: rows that are older come back dead. Raises InvalidInput if one
        of its keys is live in the table now, or if the table's columns have changed.
        """
        joining: Joining | None = None

        def change(snapshot: Snapshot) -> _Change | NotYet:
            nonlocal joining
            entry = self._entry(snapshot, name)
            _require_fitting(entry, snapshot)
            parts = {part.path: part for part in entry.parts}
            if joining is None or joining.parts != parts:  # a purge may have written them again
                if joining is not None:
                    joining.close()
                joining = self._joining(parts, f"partition {name!r}", detached=entry.version)
            why = joining.look(snapshot, {}) if snapshot.settings.keys else None
            if why is not None:
                return NotYet(why)
            dying = {**joining.lost, **(outlived := joining.outlived())}
            everywhere = {**parts, **snapshot.parts}
            vectors = self._deletion_vectors.write(
                {path: self._deletion_vectors.of(everywhere[path]) | rows for path, rows in dying.items()}
            )
            marked = {path: everywhere[path].marked(vectors[path]) for path in dying}
            actions: list[Action] = [AddPart(marked.get(part.path, part)) for part in entry.parts]
            for path in outlived:
                actions += [snapshot.parts[path].removed(self._now_ms()), AddPart(marked[path])]
            metrics = _metrics(entry.parts)
            if dying:
                metrics["rowsMarkedDead"] = sum(map(len, dying.values()))
            actions.append(Domain(entry.domain, "", removed=True))
            access = ReadWriteSet(
                parts={path: snapshot.parts[path].partition_key for path in outlived},
                domains=frozenset([entry.domain]),
                joining=joining.ranges,
            )
            return _Change(actions, metrics, {"partition": named(entry.partition, snapshot), "name": name}, access)

        try:
            return self._commit(Operation.ATTACH_PARTITION, change)
        finally:
            if joining is not None:
                joining.close()

    def drop(self, name: str) -> int:
        """Give a detached partition up for good; returns how many of its files were deleted.

        While a version from before the detach can still be read, they are left to the cleanup.
        """

        def build(snapshot: Snapshot) -> Proposal[int]:
            entry = self._entry(snapshot, name)
            return Proposal(
                actions=[Domain(entry.domain, "", removed=True)],
                access=ReadWriteSet(domains=frozenset([entry.domain])),
                result=lambda committed: self._delete(entry, committed.snapshot),
                parameters={"partition": named(entry.partition, snapshot), "name": name},
                metrics=_metrics(entry.parts),
            )

        return commit_loop(self._log, Operation.DROP_DETACHED, build, repeatable=False)

    def replace(self, partition: Mapping[str, Any], rows: Rows) -> int:
        """Put ``rows`` (the table's columns) in place of what a partition holds, in one commit; returns the version.

        With keys: each once in ``rows``, live in no other partition, and with ``sequence_by`` not older than a delete there.
        """
        read = self._log.refresh()
        return self._put(one_partition(partition, read), rows, read, Operation.REPLACE_PARTITION)

    def overwrite(self, rows: Rows, where: str | None) -> int:
        """Like ``replace``, for what a condition is true for, partitions or rows; without one for the whole table."""
        read = self._log.refresh()
        region = region_where(read, where)
        if region.rows is None:
            return self._put(region, rows, read, Operation.OVERWRITE)
        return Overwriting(
            log=self._log,
            storage=self._storage,
            deletion_vectors=self._deletion_vectors,
            settle=self._settle,
            locator=self._locator,
            tasks=Tasks(
                write=lambda snapshot: self._written(region, rows, snapshot, has_op_column=False),
                check=self.require_not_live,
                locator=lambda spec: ScanLocator(spec, self._storage),
            ),
            operation=Operation.OVERWRITE,
            region_of=lambda snapshot: region_where(snapshot, where),
        ).run()

    def _written(
        self, region: Region, rows: Rows, read: Snapshot, *, has_op_column: bool = True
    ) -> Sequence[WrittenPart]:
        """Write these rows, each key once. Raises InvalidInput, InvalidChanges."""
        spec, connection = write_spec_of(read), connect()
        given = arrow_rows(rows, read.logical_schema)
        hidden = [name for name in given.column_names if is_reserved(name)]
        prepared = prepare(given.drop_columns(hidden) if hidden else given, spec.incoming, connection)
        if len(newest_per_key(prepared, spec.incoming, connection)) < len(prepared):
            twice = _key_held_twice(prepared, spec.incoming, connection)
            raise InvalidInput(f"the rows for {region.name} hold the key {twice} twice")
        if region.rows is not None:
            require_true(region.rows, prepared)
        if spec.keys and not has_op_column:
            prepared = prepared.drop_columns([OP_COLUMN])
        return list(write_parts(stored_rows(prepared, spec), spec, self._storage))

    def require_not_live(self, snapshot: Snapshot, new: Sequence[Part], beside: Sequence[Part], whose: str) -> None:
        spec, parts = write_spec_of(snapshot), {part.path: part for part in beside}
        for batch in (batch for part in new for batch in read_keys(part, spec, self._storage)):
            keys = pa.Table.from_batches([batch]).select(list(spec.keys))
            hits = ScanLocator(spec, self._storage).lookup(parts, keys)
            for path, at in indices_by_part(hits["part"]).items():
                dead = are_in(self._deletion_vectors.of(parts[path]), hits["row"].to_numpy()[at])
                for probe in hits["probe"].to_numpy()[at[~dead]][:1].tolist():
                    key = named_key(snapshot, keys.slice(probe))
                    raise InvalidInput(f"{whose} have the key {key}, which is live in the table; delete one of the two")

    def _put(self, region: Region, rows: Rows, read: Snapshot, operation: Operation) -> int:
        spec, whose = write_spec_of(read), f"the rows for {region.name}"
        written = self._written(region, rows, read)
        try:
            require_inside(region, written, read)
        except InvalidInput:
            discard(written, self._storage)
            raise
        joined = {part.path: part.base_part(has_op_column=bool(spec.keys)) for part in written}
        joining = self._joining(joined, whose, region=region)
        try:
            return self._commit(
                operation,
                lambda snapshot: self._replaced(snapshot, spec, region, joining),
                lambda: discard(written, self._storage),
            )
        finally:
            joining.close()

    def _replaced(self, snapshot: Snapshot, spec: WriteSpec, region: Region, joining: Joining) -> _Change | NotYet:
        require_same_shape(spec, snapshot)
        going = region.parts_of(snapshot)
        why = joining.look(snapshot, going) if spec.keys else None
        if why is not None:
            return NotYet(why)
        leaving = removals(snapshot, going.values(), self._now_ms())
        actions = [*leaving, *map(AddPart, joining.parts.values()), replaced(region.partition, region.where)]
        access = ReadWriteSet(
            parts={path: part.partition_key for path, part in going.items()},
            claimed=frozenset(going),  # a claim that comes first must end too
            domains=frozenset(action.domain for action in leaving if isinstance(action, Domain)),
            joining=joining.ranges if spec.keys else KeyRanges((), (), region.has),
        )
        rows = sum(part.rows for part in joining.parts.values())
        return _Change(actions, {"parts": len(going), "rows": rows}, overwritten(region, snapshot), access)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _commit(
        self,
        operation: Operation,
        change: Callable[[Snapshot], _Change | NotYet],
        discard: Callable[[], None] | None = None,
        settles: bool = True,
    ) -> int:
        """Commit a change of the newest snapshot, until that succeeds; returns the version.

        ``settles``: the tail is settled at first, and again where the change can't be made of what is in it.
        """
        unsettled = settles

        def newest() -> Snapshot:
            if unsettled:
                self._settle()
            return self._log.refresh()

        def build(snapshot: Snapshot) -> Proposal[int] | Finished[int] | NotYet:
            nonlocal unsettled
            asked = change(snapshot)
            unsettled = settles and (isinstance(asked, NotYet) or asked.access is None)
            if isinstance(asked, NotYet):
                return asked
            if not asked.actions:
                return Finished(snapshot.version)
            return Proposal(
                actions=asked.actions,
                access=asked.access or ReadWriteSet(whole_table=True),
                result=result,
                parameters=asked.parameters,
                metrics=asked.metrics,
            )

        def result(committed: Committed) -> int:
            self._log.checkpoint_if_due(committed.snapshot, slack=2)
            return committed.version

        return commit_loop(self._log, operation, build, newest=newest, discard=discard, repeatable=False)

    def _joining(
        self,
        parts: Mapping[str, Part],
        whose: str,
        *,
        detached: int | None = None,
        region: Region | None = None,
    ) -> Joining:
        return Joining(
            log=self._log,
            storage=self._storage,
            deletion_vectors=self._deletion_vectors,
            locator=self._locator,
            parts=parts,
            whose=whose,
            detached=detached,
            region=region,
        )

    def _entry(self, snapshot: Snapshot, name: str) -> Detached:
        detached = detached_of(snapshot)
        if name not in detached:
            listed = ", ".join(detached) or "nothing is detached"
            raise InvalidInput(f"there is no detached partition {name!r}; there are: {listed}")
        return detached[name]

    def _delete(self, entry: Detached, after: Snapshot) -> int:
        """Delete the files of parts. Deletion vectors lie in files that other parts share, so they are left to the cleanup."""
        held = min(held_versions(after.domains, self._now_ms()), default=entry.needed_below)
        if min(first_unexpired(after.domains), held) < entry.needed_below:
            return 0
        candidates = [part.path for part in entry.parts if part.path not in after.parts]
        failed = self._storage.delete_many(candidates)
        for path, error in failed.items():
            _logger.warning("%s is left to the cleanup: %s", path, error)
        return len(candidates) - len(failed)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _require_fitting(entry: Detached, snapshot: Snapshot) -> None:
    """Raises InvalidInput naming a column that the parts can't be read with any more."""
    if why := misfit(entry.stored, snapshot.schema):
        column = ".".join((snapshot.columns.logical_name(why.path[0]), *why.path[1:]))
        raise InvalidInput(f"the detached parts don't fit the table any more: their column {column!r} {why.reason}")
    if set(entry.partition) != set(snapshot.partition_columns):
        were = list(named(entry.partition, snapshot))
        raise InvalidInput(f"the detached parts are partitioned by {were}, the table is not")


def _partitions_there(snapshot: Snapshot) -> str:
    there = sorted({spelled(part.partition_values, snapshot) for part in snapshot.parts.values()})
    listed = "; ".join(there[:10]) or "none"
    return f"there are: {listed}" + (f", and {len(there) - 10} more" if len(there) > 10 else "")


def _key_held_twice(rows: pa.Table, spec: WriteSpec, connection: duckdb.DuckDBPyConnection) -> Mapping[str, object]:
    columns = ", ".join(aliases(spec.keys).values())
    with registered(connection, "lakebed_keys", by_place(rows, spec.keys)) as name:
        query = f"select {columns} from {name} group by {columns} having count(*) > 1 limit 1"
        [key] = python_rows(named_columns(connection.sql(query).to_arrow_table(), spec.keys))
    return key


def _metrics(parts: Sequence[Part]) -> dict[str, int]:
    return {"parts": len(parts), "rows": sum(part.live_rows for part in parts)}
