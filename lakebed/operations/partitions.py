"""Whole partitions, and the whole table: truncate, detach, attach, drop what was detached, replace.

Detached parts are an entry of the log, ``lakebed.detached.<uuid>``: their files stay where they are, with their dead rows.

1. The tail is settled first, so that it holds no row of the partition (truncate removes the tail instead).
2. Read the newest snapshot, commit on condition that it still is the newest: whatever came in between, a change or a
   merge, starts over with step 1. So what step 3 found still holds at the commit.
3. Attach and replace look the keys of what joins up: one that is live in the base is refused (B1). With ``sequence_by`` a row
   that lost against a delete does not become live: the delete is newer than any change that could still correct the row.
   Attach marks the row dead, as the delete would have done if the partition had been there. Replace refuses it, because its
   rows are declared to be right. And the deletes that come back with a partition mark older rows of the base that came
   meanwhile. Of a row and a delete with equal sequences the one counts that came later (``parts.row_versions``).
4. Claims on parts that leave end in the same commit.
5. Files are touched only after the commit succeeded: ``drop`` deletes them if all versions that refer to them have expired
   (G1); otherwise it leaves them to the cleanup.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.errors import InvalidInput
from lakebed.far_times import finite_column, python_rows, python_values
from lakebed.manifest.actions import Action, AddPart, Domain, Part
from lakebed.manifest.column_mapping import ColumnMapping, stored_fields
from lakebed.manifest.commit_codec import add_from_json, add_to_json
from lakebed.manifest.commit_kind import replaced
from lakebed.manifest.commit_loop import Finished, NotYet, Proposal, commit_loop
from lakebed.manifest.conflicts import ReadWriteSet
from lakebed.manifest.entries import DETACHED, Operation
from lakebed.manifest.entry_values import checked, document_of, made, reading
from lakebed.manifest.holds import first_unexpired, held_versions
from lakebed.manifest.readable import misfit
from lakebed.manifest.removals import all_removals, removals
from lakebed.manifest.schema import is_reserved, schema_from_fields
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.table_log import Committed, TableLog
from lakebed.operations.mutate import discard
from lakebed.parts.arrow_rows import Rows, arrow_rows
from lakebed.parts.changes import (
    DELETE,
    OP_COLUMN,
    SEQUENCE_COLUMN,
    WriteSpec,
    newest_per_key,
    prepare,
    stored_rows,
    write_spec_of,
)
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.locate import KeyLocator, lookup_schema, read_keys
from lakebed.parts.row_versions import row_versions
from lakebed.parts.sql import sql_type
from lakebed.parts.write import WrittenPart, partition_text, write_parts
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

DETACHED_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("partition", pa.map_(pa.string(), pa.string())),
        ("detached", pa.timestamp("ms", "UTC")),
        ("parts", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
_KEYS_AT_ONCE = 1_000_000
_logger = logging.getLogger("lakebed.partitions")

PartitionValues = dict[str, str | None]
_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Change:
    """The actions for a snapshot, and what the commit records of them."""

    actions: Sequence[Action]
    metrics: Mapping[str, int]
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """Parts that were taken out of the table, by the commit ``version``, and can be put back.

    ``partition`` has stored names; ``schema`` is the table's at that version, as Delta's JSON, and ``stored`` in Arrow by stored
    names. ``restored``: the commit that detached the partition once more by restoring a version at which it was, 0 for none.
    """

    name: str
    partition: PartitionValues
    version: int
    detached_ms: int
    schema: str
    parts: tuple[Part, ...]
    restored: int = 0

    @property
    def needed_below(self) -> int:
        """All versions from this one on have the partition detached."""
        return max(self.version, self.restored)

    @property
    def domain(self) -> str:
        return DETACHED + self.name

    @property
    def stored(self) -> pa.Schema:
        return schema_from_fields(stored_fields(orjson.loads(self.schema)["fields"]))

    def to_action(self) -> Domain:
        value = {
            "partition": self.partition,
            "version": self.version,
            "detached_ms": self.detached_ms,
            "schema": self.schema,
            "parts": [add_to_json(part) for part in self.parts],
        }
        return Domain(self.domain, orjson.dumps(value).decode())


def detached_of(snapshot: Snapshot) -> dict[str, Detached]:
    """What is detached at a version, by name, oldest first. Raises Corrupt."""
    found = [detached_in(domain, text) for domain, text in snapshot.domains.items() if domain.startswith(DETACHED)]
    return {one.name: one for one in sorted(found, key=lambda one: (one.detached_ms, one.name))}


def detached_in(domain: str, text: str) -> Detached:
    """The detached partition in an entry of the log. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        for body in document["parts"]:
            checked(int, body["size"], "size")
        parts = tuple(add_from_json(body) for body in document["parts"])
        found = made(Detached, {**document, "name": domain.removeprefix(DETACHED), "parts": []})
        return replace(found, parts=parts)


def detached_table(snapshot: Snapshot) -> pa.Table:
    """A row a detached partition (DETACHED_SCHEMA); ``rows`` are the live ones."""
    rows = [
        {
            "name": one.name,
            "partition": [(snapshot.columns.logical_name(name), value) for name, value in one.partition.items()],
            "detached": one.detached_ms,
            "parts": len(one.parts),
            "rows": sum(part.live_rows for part in one.parts),
            "bytes": sum(part.bytes for part in one.parts),
        }
        for one in detached_of(snapshot).values()
    ]
    return pa.Table.from_pylist(rows, DETACHED_SCHEMA)


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

    def truncate(self) -> int:
        """Remove everything from the table, the tail included; returns the version."""

        def change(snapshot: Snapshot) -> _Change:
            rows = sum(part.live_rows for part in snapshot.parts.values()) + sum(p.rows for p in snapshot.tail.values())
            metrics = {"parts": len(snapshot.parts) + len(snapshot.tail), "rows": rows}
            is_empty = not snapshot.parts and not snapshot.tail
            return _Change([] if is_empty else all_removals(snapshot, self._now_ms()), metrics)

        return self._commit(Operation.TRUNCATE, change, settles=False)

    def detach(self, partition: Mapping[str, Any]) -> str:
        """Take a partition out of the table without touching its files; returns the name to attach it by."""
        name = str(uuid.uuid4())
        values = partition_values(partition, self._log.refresh())  # by stored names: a rename meanwhile changes nothing

        def change(snapshot: Snapshot) -> _Change:
            parts = self._parts_of(snapshot, values)
            if not parts:
                raise InvalidInput(f"there is no partition {_spell(values, snapshot)}; {_partitions_there(snapshot)}")
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
            return _Change(actions, _metrics(parts), {"partition": _named(values, snapshot), "name": name})

        self._commit(Operation.DETACH_PARTITION, change)
        return name

    def attach(self, name: str) -> int:
        """Put a detached partition back as it was when it left; returns the version.

        With ``sequence_by`` deletes that came meanwhile count: rows that are older come back dead. Raises InvalidInput if one
        of its keys is live in the table now, or if the table's columns have changed.
        """

        def change(snapshot: Snapshot) -> _Change:
            entry = self._entry(snapshot, name)
            spec = write_spec_of(snapshot)
            _require_fitting(entry, snapshot)
            dying: dict[str, set[int]] = {}
            for part in entry.parts if spec.keys else ():
                for path, row in self._dying(entry, part, snapshot.parts, spec, snapshot.columns):
                    dying.setdefault(path, set()).add(row)
            parts = {part.path: part for part in (*entry.parts, *snapshot.parts.values()) if part.path in dying}
            vectors = self._deletion_vectors.write(
                {path: self._deletion_vectors.of(parts[path]) | BitMap64(dying[path]) for path in parts}
            )
            marked = {path: part.marked(vectors[path]) for path, part in parts.items()}
            actions: list[Action] = [AddPart(marked.get(part.path, part)) for part in entry.parts]
            for path in marked.keys() & snapshot.parts.keys():
                actions += [snapshot.parts[path].removed(self._now_ms()), AddPart(marked[path])]
            metrics = _metrics(entry.parts)
            if dying:
                metrics["rowsMarkedDead"] = sum(map(len, dying.values()))
            actions.append(Domain(entry.domain, "", removed=True))
            return _Change(actions, metrics, {"partition": _named(entry.partition, snapshot), "name": name})

        return self._commit(Operation.ATTACH_PARTITION, change)

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
                parameters={"partition": _named(entry.partition, snapshot), "name": name},
                metrics=_metrics(entry.parts),
            )

        return commit_loop(self._log, Operation.DROP_DETACHED, build, repeatable=False)

    def replace(self, partition: Mapping[str, Any], rows: Rows) -> int:
        """Put ``rows`` (the table's columns) in place of what a partition holds, in one commit; returns the version.

        With keys: each once in ``rows``, live in no other partition, and with ``sequence_by`` not older than a delete there.
        """
        read = self._log.refresh()
        spec = write_spec_of(read)
        values = partition_values(partition, read)
        connection = connect()
        given = arrow_rows(rows, read.logical_schema)
        hidden = [name for name in given.column_names if is_reserved(name)]
        prepared = prepare(given.drop_columns(hidden) if hidden else given, spec.incoming, connection)
        if len(newest_per_key(prepared, spec.incoming, connection)) < len(prepared):
            raise InvalidInput(f"the rows for partition {_spell(values, read)} hold a key twice")
        stored = stored_rows(prepared, spec)
        written = list(write_parts(stored, spec, self._storage))
        for part in written:
            if dict(part.partition_values) != values:
                discard(written, self._storage)
                raise InvalidInput(
                    f"the rows for partition {_spell(values, read)} hold rows of {_spell(part.partition_values, read)}"
                )
        return self._commit(
            Operation.REPLACE_PARTITION,
            lambda snapshot: self._replaced(snapshot, spec, values, stored, written),
            lambda: discard(written, self._storage),
        )

    def _replaced(
        self, snapshot: Snapshot, spec: WriteSpec, values: PartitionValues, rows: pa.Table,
        written: Sequence[WrittenPart],
    ) -> _Change:  # fmt: skip
        newest = write_spec_of(snapshot)
        if not spec.fits(newest):
            raise InvalidInput("the table's columns changed, or it was purged, meanwhile; replace the partition again")
        spec, parts = newest, self._parts_of(snapshot, values)
        if spec.keys:
            going = {part.path for part in parts}
            others = {path: part for path, part in snapshot.parts.items() if path not in going}
            whose = f"the rows for partition {_spell(values, snapshot)}"
            for at in range(0, len(rows), _KEYS_AT_ONCE):
                piece = rows.slice(at, _KEYS_AT_ONCE)
                keys = piece.select(list(spec.keys))
                hits = self._look_up(keys, others, spec)
                self._refuse_live(hits, snapshot.columns.to_logical(keys), others, whose)
                if spec.sequence_column:
                    lost = _deletes(hits, piece[spec.sequence_column], pc.greater)
                    if lost.any():
                        named = snapshot.columns.to_logical(keys)
                        [key] = python_rows(named.slice(int(hits["probe"].to_numpy()[lost][0]), 1))
                        by = snapshot.logical_settings.sequence_by
                        raise InvalidInput(
                            f"{whose} has the key {key}, which was deleted with a newer {by}; leave it out, "
                            "or give it one that is not older"
                        )
        added = [AddPart(part.base_part(has_op_column=bool(spec.keys))) for part in written]
        entry = replaced(snapshot.version + 1, values)  # as of a detached partition: the next version or none
        actions = [*removals(snapshot, parts, self._now_ms()), *added, entry]
        return _Change(actions, {"parts": len(parts), "rows": len(rows)}, {"partition": _named(values, snapshot)})

    # -- inside ------------------------------------------------------------------------------------------------------

    def _commit(
        self, operation: Operation, change: Callable[[Snapshot], _Change], discard: Callable[[], None] | None = None,
        settles: bool = True,
    ) -> int:  # fmt: skip
        """Steps 1 and 2, until a commit succeeds; returns the version."""

        def newest() -> Snapshot:
            if settles:
                self._settle()
            return self._log.refresh()

        def build(snapshot: Snapshot) -> Proposal[int] | Finished[int] | NotYet:
            if settles and snapshot.tail:
                return NotYet("changes kept coming in")
            asked = change(snapshot)
            if not asked.actions:
                return Finished(snapshot.version)
            return Proposal(
                actions=asked.actions,
                access=ReadWriteSet(whole_table=True),
                result=result,
                parameters=asked.parameters,
                metrics=asked.metrics,
            )

        def result(committed: Committed) -> int:
            self._log.checkpoint_if_due(committed.snapshot, slack=2)
            return committed.version

        return commit_loop(self._log, operation, build, newest=newest, discard=discard, repeatable=False)

    def _parts_of(self, snapshot: Snapshot, values: PartitionValues) -> list[Part]:
        spec = write_spec_of(snapshot)
        return [part for part in snapshot.parts.values() if _texts(part.partition_values, spec) == values]

    def _entry(self, snapshot: Snapshot, name: str) -> Detached:
        detached = detached_of(snapshot)
        if name not in detached:
            listed = ", ".join(detached) or "nothing is detached"
            raise InvalidInput(f"there is no detached partition {name!r}; there are: {listed}")
        return detached[name]

    def _dying(
        self, entry: Detached, part: Part, base: Mapping[str, Part], spec: WriteSpec, columns: ColumnMapping
    ) -> Iterator[tuple[str, int]]:
        """What must not live any more when a detached part comes back: paths and rows, of the part and of the base."""
        dead = self._deletion_vectors.of(part)
        at = 0
        for batch in read_keys(part, spec, self._storage):
            rows = pa.Table.from_batches([batch])
            live = np.ones(len(rows), bool)
            live[
                np.frombuffer((dead & BitMap64(range(at, at + len(rows)))).to_array(), np.uint64).astype(np.int64) - at
            ] = False
            coming = rows.filter(live)
            keys = coming.select(list(spec.keys))
            hits = self._look_up(keys, base, spec)
            self._refuse_live(hits, columns.to_logical(keys), base, f"partition {entry.name!r}")
            if spec.sequence_column:
                places = at + np.flatnonzero(live)
                lost = _deletes(hits, coming[SEQUENCE_COLUMN], pc.greater)
                tied = np.flatnonzero(_deletes(hits, coming[SEQUENCE_COLUMN], pc.equal))
                lost[tied] = self._are_later(hits.take(tied), base, entry, part, places[hits["probe"].to_numpy()[tied]])
                yield from ((part.path, int(row)) for row in places[hits["probe"].to_numpy()[lost]])
                if part.deletes:
                    is_delete = _yes(pc.equal(rows[OP_COLUMN], DELETE))
                    yield from self._outlived(part, at + np.flatnonzero(is_delete), rows.filter(is_delete), base, spec)
            at += len(rows)

    def _outlived(
        self, part: Part, places: _Rows, deletes: pa.Table, base: Mapping[str, Part], spec: WriteSpec
    ) -> Iterator[tuple[str, int]]:
        """The live rows of the base that are older than deletes which come back, these rows of a part."""
        hits = self._look_up(deletes.select(list(spec.keys)), base, spec)
        hits = hits.filter(self._live(hits, base))
        sequences = deletes[SEQUENCE_COLUMN].take(hits["probe"])
        older = _yes(pc.less(hits[SEQUENCE_COLUMN], sequences))
        tied = np.flatnonzero(_yes(pc.equal(hits[SEQUENCE_COLUMN], sequences)))
        older[tied] = self._are_earlier(hits.take(tied), base, part, places[hits["probe"].to_numpy()[tied]])
        hits = hits.filter(older)
        yield from zip(hits["part"].to_pylist(), hits["row"].to_pylist(), strict=True)

    def _are_later(
        self, hits: pa.Table, base: Mapping[str, Part], entry: Detached, part: Part, rows: _Rows
    ) -> npt.NDArray[np.bool_]:
        """Whether each delete in the base came after the row beside it, of a part of the entry.

        Where nobody knows, it did, unless it was there before the partition was detached.
        """
        oldest, newest = self._versions(hits, base)
        own_oldest, own_newest = row_versions(part, rows, self._storage)
        later: npt.NDArray[np.bool_] = oldest > own_newest
        guessed = ~later & (newest > own_oldest) & (newest > entry.version)
        if guessed.any():
            _logger.warning(
                "%d rows of %s come back dead: each meets a delete of the same sequence, and they were merged by a version of "
                "lakebed that did not record which came later; apply those rows again that should live",
                guessed.sum(), part.path,
            )  # fmt: skip
        return later | guessed

    def _are_earlier(self, hits: pa.Table, base: Mapping[str, Part], part: Part, rows: _Rows) -> npt.NDArray[np.bool_]:
        """Whether each row of the base came before the row of a part beside it. Where nobody knows, it did not."""
        earlier: npt.NDArray[np.bool_] = self._versions(hits, base)[1] < row_versions(part, rows, self._storage)[0]
        return earlier

    def _versions(self, hits: pa.Table, base: Mapping[str, Part]) -> tuple[_Rows, _Rows]:
        """See ``row_versions``, of rows of the base."""
        oldest, newest = np.empty(len(hits), np.int64), np.empty(len(hits), np.int64)
        paths, rows = np.array(hits["part"].to_pylist(), object), hits["row"].to_numpy()
        for path in dict.fromkeys(paths.tolist()):
            at = np.flatnonzero(paths == path)
            oldest[at], newest[at] = row_versions(base[path], rows[at], self._storage)
        return oldest, newest

    def _look_up(self, keys: pa.Table, base: Mapping[str, Part], spec: WriteSpec) -> pa.Table:
        if not base or not len(keys):
            return lookup_schema(spec).empty_table()
        hits = self._locator(spec).lookup(base, keys)
        return hits.filter(pc.is_in(hits["part"].cast(pa.string()), pa.array(list(base), pa.string())))

    def _live(self, hits: pa.Table, base: Mapping[str, Part]) -> npt.NDArray[np.bool_]:
        found = zip(hits["part"].to_pylist(), hits["row"].to_pylist(), strict=True)
        return np.fromiter((row not in self._deletion_vectors.of(base[path]) for path, row in found), bool, len(hits))

    def _refuse_live(self, hits: pa.Table, keys: pa.Table, base: Mapping[str, Part], whose: str) -> None:
        """B1. Raises InvalidInput naming a key that is live in the base; ``keys`` have the users' names."""
        live = self._live(hits, base)
        if live.any():
            [key] = python_rows(keys.slice(int(hits["probe"].to_numpy()[live][0]), 1))
            raise InvalidInput(f"{whose} has the key {key}, which is live in the table; delete one of the two")

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


def _deletes(
    hits: pa.Table, sequences: pa.ChunkedArray, than: Callable[[pa.ChunkedArray, pa.ChunkedArray], pa.ChunkedArray]
) -> npt.NDArray[np.bool_]:
    """Which hits are deletes whose sequences compare so with those of the rows looked up, which are given."""
    compared = _yes(than(hits[SEQUENCE_COLUMN], sequences.take(hits["probe"])))
    return compared & _yes(pc.equal(hits[OP_COLUMN], DELETE))


def _yes(mask: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Null is no."""
    return np.asarray(pc.fill_null(mask, False), dtype=bool)


def partition_values(partition: Mapping[str, Any], snapshot: Snapshot) -> PartitionValues:
    """The values as the log has them, by stored names. A text is read as the column's type; an empty one means null.

    Raises InvalidInput.
    """
    names = snapshot.metadata.partition_columns
    if not names:
        raise InvalidInput("the table has no partitions; they are set when it is created (partition_by)")
    if set(partition) != set(names):
        raise InvalidInput(f"a partition of this table is given by {list(names)}, not {list(partition)}")
    out: PartitionValues = {}
    for name in names:
        kind, value = snapshot.logical_schema.field(name).type, partition[name]
        try:
            out[snapshot.columns.stored_name(name)] = _text(value, kind)
        except (duckdb.Error, pa.ArrowInvalid) as error:
            raise InvalidInput(f"{value!r} is no value of the partition column {name!r} ({kind}): {error}") from None
    return out


@lru_cache(maxsize=4096, typed=True)
def _text(value: Any, kind: pa.DataType) -> str | None:
    if value is None or value == "":
        return None
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return partition_text(value)
    typed = connect().sql(f"select cast(? as {sql_type(kind)}) as value", params=[value]).to_arrow_table()
    return partition_text(python_values(finite_column(typed["value"].cast(kind)))[0])


def _texts(values: Mapping[str, str | None], spec: WriteSpec) -> PartitionValues:
    """A part's partition, as we would spell it: another writer may have spelled it otherwise."""
    return {name: _text(values.get(name), spec.schema.field(name).type) for name in spec.partition_by}


def _require_fitting(entry: Detached, snapshot: Snapshot) -> None:
    """Raises InvalidInput naming a column that the parts can't be read with any more."""
    if why := misfit(entry.stored, snapshot.schema):
        column = ".".join((snapshot.columns.logical_name(why.path[0]), *why.path[1:]))
        raise InvalidInput(f"the detached parts don't fit the table any more: their column {column!r} {why.reason}")
    if set(entry.partition) != set(snapshot.partition_columns):
        were = list(_named(entry.partition, snapshot))
        raise InvalidInput(f"the detached parts are partitioned by {were}, the table is not")


def _named(values: Mapping[str, str | None], snapshot: Snapshot) -> PartitionValues:
    """A partition by the names that users know."""
    return {snapshot.columns.logical_name(name): value for name, value in values.items()}


def _spell(values: Mapping[str, str | None], snapshot: Snapshot) -> str:
    named = _named(values, snapshot)
    return ", ".join(f"{name}={'' if value is None else value}" for name, value in named.items())


def _partitions_there(snapshot: Snapshot) -> str:
    spelled = sorted({_spell(part.partition_values, snapshot) for part in snapshot.parts.values()})
    listed = "; ".join(spelled[:10]) or "none"
    return f"there are: {listed}" + (f", and {len(spelled) - 10} more" if len(spelled) > 10 else "")


def _metrics(parts: Sequence[Part]) -> dict[str, int]:
    return {"parts": len(parts), "rows": sum(part.live_rows for part in parts)}
