"""Puts the simulation's kernels, clock and names in place of the real ones, for as long as a run lasts."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyroaring import BitMap64

from lakebed.compaction import merge, recluster_job, replicate, settle
from lakebed.compaction.merge import Merger
from lakebed.errors import InvalidChanges
from lakebed.log import log_reader
from lakebed.log.actions import ChangePart, Commit, Part
from lakebed.log.checkpoint import decode_checkpoint
from lakebed.log.claims import Claim
from lakebed.log.commit_codec import decode_commit
from lakebed.log.snapshot import Snapshot
from lakebed.operations import commit_changes, joining, mutate_keyed, partitions, time_to_live
from lakebed.operations import mutate as mutate_unkeyed
from lakebed.operations.commit_changes import Kind, Pending, PendingPart
from lakebed.operations.mutation import Mutation
from lakebed.operations.purge import rows as purge_rows
from lakebed.parts import deletion_vector_cache, row_origins
from lakebed.parts.changes import WriteSpec
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.write import WrittenPart
from lakebed.resolve import locators
from lakebed.storage.part_storage import PartStorage
from tests.simulation import files, purge_stand_ins
from tests.simulation.files import Row, of
from tests.simulation.world import World

VALUES = 10**9


@dataclass(frozen=True)
class Change(Mutation):
    """A mutation in Python: ``matches`` says of which rows, ``number`` makes the new values of an update."""

    matches: Callable[[Row], bool] = field(default=lambda row: True, compare=False)
    number: int = 0

    def check(self, spec: WriteSpec) -> None:
        """There is no SQL in it."""

    def changed(self, row: Row) -> Row | None:
        """What becomes of a row that matches; None if it is deleted."""
        return (
            None if self.assignments is None else row._replace(value=self.number * VALUES + (row.value or 0) % VALUES)
        )


@lru_cache(maxsize=64)
def _decoded(version: int, data: tuple[bytes, ...]) -> Snapshot:
    return decode_checkpoint(version, data)


def _decode_once(version: int, data: list[bytes]) -> Snapshot:
    """A pure function of bytes that every log that is opened calls."""
    return _decoded(version, tuple(data))


@lru_cache(maxsize=512)
def _decode_commit_once(version: int, data: bytes) -> Commit:
    """The same of a commit."""
    return decode_commit(version, data)


class _InTurn:
    """A thread pool whose work is done by the one who asks: only one thread runs at a time here."""

    def __init__(self, workers: int) -> None:
        pass

    def __enter__(self) -> _InTurn:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(work, items)


def _written(
    mutation: Change, read: Snapshot, spec: WriteSpec, storage: PartStorage, register: object, among: pa.Table | None
) -> Pending:
    """Step 1 of ``mutate``."""
    store = of(storage)
    wanted = None if among is None else set(among["k"].to_pylist())
    rows = [row for row in files.live_rows(read, store, DeletionVectorCache(storage)) if mutation.matches(row)]
    rows = [row for row in rows if wanted is None or row.key in wanted]
    changes = [mutation.changed(row) or row._replace(value=None) for row in rows]
    kind: Kind = "deleted" if mutation.assignments is None else "updated"
    written = [PendingPart(store.write_rows(piece, spec), kind) for piece in files.by_partition(changes)]
    return Pending(tuple(written), len(read.parts))


def _keys_in_both(
    pending: Sequence[WrittenPart], came: Sequence[ChangePart | Part], spec: WriteSpec, storage: PartStorage
) -> pa.Table:
    """See ``lakebed.operations.commit_changes``."""
    store = of(storage)
    ours, theirs = ({row.key for part in parts for row in store.rows(part.path)} for parts in (pending, came))
    return pa.table({"k": pa.array(sorted(ours & theirs), pa.int64())})


def _without_keys(pending: Pending, keys: pa.Table, spec: WriteSpec, storage: PartStorage) -> Pending:
    """See ``lakebed.operations.commit_changes``."""
    store, gone, kept = of(storage), set(keys["k"].to_pylist()), list[PendingPart]()
    for each in pending.parts:
        rows = [row for row in store.rows(each.part.path) if row.key not in gone]
        if len(rows) == each.part.rows:
            kept.append(each)
        elif rows:
            kept.append(PendingPart(store.write_rows(rows, spec), each.kind))
    commit_changes.discard([each.part for each in pending.parts if each not in kept], storage)
    return Pending(tuple(kept), pending.parts_read)


def _matches(part: Part, rows: str, dead: BitMap64, mutation: Change, storage: PartStorage) -> BitMap64:
    """Step 1 of ``mutate_unkeyed``."""
    return BitMap64(at for at, row in enumerate(of(storage).rows(part.path)) if mutation.matches(row))


def _new_rows(
    dying: Mapping[str, BitMap64],
    snapshot: Snapshot,
    mutation: Change,
    spec: WriteSpec,
    named: WriteSpec,
    storage: PartStorage,
) -> Iterator[WrittenPart]:
    """Step 2 of ``mutate_unkeyed``."""
    store = of(storage)
    rows = [mutation.changed(store.rows(path)[at]) for path, dead in dying.items() for at in dead]
    for piece in files.by_partition(row for row in rows if row is not None):
        yield store.write_rows(piece, spec)


def _prepared(rows: pa.Table, spec: WriteSpec, *rest: object) -> pa.Table:
    """See ``lakebed.parts.changes.prepare``: rows whose columns have other names by now are refused."""
    if unknown := set(rows.column_names) - set(spec.schema.names):
        raise InvalidChanges(f"the rows have the columns {sorted(unknown)}, which the table lacks")
    if lacking := {*spec.keys, *spec.partition_by}.difference(rows.column_names):
        raise InvalidChanges(f"the rows lack the columns {sorted(lacking)}")
    return rows


def old_before(world: World) -> int:
    """Rows with a smaller value are old. It rises with the rows that are written."""
    return 2 * world.counts["write"]


def _rows_before(part: Part, column: pa.Field, before: int, storage: PartStorage) -> BitMap64:
    """See ``lakebed.operations.time_to_live``."""
    rows = of(storage).rows(part.path)
    return BitMap64(at for at, row in enumerate(rows) if row.value is not None and row.value < before)


def _keys_of_tail(part: ChangePart, spec: WriteSpec, storage: PartStorage) -> pa.Table:
    """See ``lakebed.operations.time_to_live``."""
    return pa.table({"k": pa.array([row.key for row in of(storage).rows(part.path)], pa.int64())})


@contextmanager
def installed(world: World, beats: dict[str, tuple[Claim, Callable[[], object]]]) -> Iterator[None]:
    """``beats``: gets, by replica, its claim, and how the kernel that runs there extends it: no thread does it here."""

    @contextmanager
    def heartbeat(self: Merger, claim: Claim, restoring: Sequence[Claim] = ()) -> Iterator[None]:
        beats[self.replica] = claim, lambda: self.extend([claim])
        yield

    names = random.Random(world.seed)

    def sleep(seconds: float) -> None:
        world.now += seconds

    def now() -> float:
        return world.now

    clock = SimpleNamespace(time=now, perf_counter=now, monotonic=now, sleep=sleep)
    with ExitStack() as stack:
        for module in (settle, commit_changes, mutate_unkeyed, partitions, merge, recluster_job):
            stack.enter_context(patch.object(module, "time", clock))
        stand_ins: list[tuple[object, str, object]] = [
            (uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128), version=4)),
            (log_reader, "decode_checkpoint", _decode_once),
            (log_reader, "decode_commit", _decode_commit_once),
            (deletion_vector_cache, "_INLINE_BYTES_MAX", random.Random(world.seed).choice((0, 2048))),
            (Merger, "heartbeat", heartbeat),
            (replicate, "SAVED_MIN", 0),  # most merges here are of a single part
            (log_reader, "ThreadPoolExecutor", _InTurn),
            *(
                (module, "require_intact_pages", lambda *arguments, **chosen: None)  # files here have no pages
                for module in (joining, row_origins, time_to_live)
            ),
            (row_origins, "require_intact", lambda *arguments, **chosen: None),
            (settle, "resolve", files.resolve),
            (mutate_keyed, "_write", _written),
            (commit_changes, "keys_in_both", _keys_in_both),
            (commit_changes, "without_keys", _without_keys),
            (mutate_unkeyed, "parts_that_may_match", lambda connection, parts, *rest: parts),
            (mutate_unkeyed, "_matches", _matches),
            (mutate_unkeyed, "_write", _new_rows),
            (time_to_live, "moment_before", lambda *arguments: old_before(world)),
            (time_to_live, "check_time_to_live", lambda *arguments: None),
            (time_to_live, "rows_before", _rows_before),
            (time_to_live, "keys_of_tail", _keys_of_tail),
            (purge_rows, "parts_that_may_match", lambda connection, parts, *rest: parts),
            (purge_rows, "found_in", purge_stand_ins.found_in),
            (purge_rows, "merge_parts", purge_stand_ins.merge_parts),
            (partitions, "prepare", _prepared),
            (partitions, "newest_per_key", lambda rows, *rest: rows),
            (partitions, "write_parts", files.write_table),
            (joining, "read_keys", files.read_keys),
            (joining, "ScanLocator", lambda spec, storage: files.Locator(of(storage))),
            (locators, "ScanLocator", lambda spec, storage: files.Locator(of(storage))),
            (locators, "_SCANS_MAX", 1 << 30),
        ]
        for place, name, stand_in in stand_ins:
            stack.enter_context(patch.object(place, name, stand_in))
        yield
