"""The data files of the simulated table: rows as JSON in place of Parquet, in an object store that fails as the log's does.

What the kernels do with DuckDB is done here with dictionaries: read, resolve, merge, look up. They take and return what the
real ones do, so whatever decides, commits, carries over and deletes is the real code (``stand_ins``).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import orjson
import pyarrow as pa
from pyroaring import BitMap64

from lakebed.errors import LakebedError
from lakebed.log.actions import ChangePart, Part, passes_after
from lakebed.log.stores import LogStore
from lakebed.merge.kernel import MergedPart, MergeSource
from lakebed.merge.provenance import Provenance
from lakebed.parts.changes import WriteSpec
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.write import WrittenPart
from lakebed.resolve.resolution import Resolution
from lakebed.storage.counters import StoreCounters
from lakebed.storage.local_folders import delete_each
from lakebed.storage.part_storage import PartStorage
from tests.simulation.world import Actor, World

if TYPE_CHECKING:
    from lakebed.log.snapshot import Snapshot

T = TypeVar("T")
CORE = ("k", "p", "v")  # the columns that every table has, by their stored names


Value = int | None


class Row(NamedTuple):
    """A row of a part. ``value`` is None for a delete, and is never the same for two changes.

    ``extra``: the values of further columns, by their stored names; what is null is left out (``columns``).
    """

    key: int
    partition: str | None
    value: Value
    extra: tuple[tuple[str, Value], ...] = ()


class Watch(Protocol):
    """Who is told what happens to files, at the moment it does."""

    def file_written(self, path: str, data: bytes) -> None: ...

    def file_deleted(self, path: str, actor: Actor) -> None: ...


class Objects:
    """What lies in the object store."""

    def __init__(self) -> None:
        self.data: dict[str, tuple[bytes, float]] = {}  # path → bytes, modified

    def rows(self, path: str) -> tuple[Row, ...]:
        """The rows of a file. Raises FileNotFoundError."""
        if path not in self.data:
            raise FileNotFoundError(path)
        return decode(self.data[path][0])


def encode(rows: Iterable[Row]) -> bytes:
    """The bytes of a file."""
    return orjson.dumps([tuple(row) for row in rows])


_decoded: dict[bytes, tuple[Row, ...]] = {}


def decode(data: bytes) -> tuple[Row, ...]:
    """The rows of a file's bytes."""
    if data not in _decoded:
        if len(_decoded) > 5000:
            _decoded.clear()
        _decoded[data] = tuple(
            Row(key, partition, value, tuple((name, one) for name, one in extra))
            for key, partition, value, extra in orjson.loads(data)
        )
    return _decoded[data]


class SimulatedStorage:
    """``PartStorage`` as one actor sees it. Also: a name for a new file, and the rows of files."""

    root = "/simulated"
    spark_root = "file:///simulated"

    def __init__(
        self, objects: Objects, world: World, actor: Actor, watch: Watch, log_files: LogStore, folder: Path
    ) -> None:
        self.objects, self.world, self.actor = objects, world, actor
        self._watch, self._log_files, self._folder = watch, log_files, folder

    def duckdb_url(self, path: str) -> str:
        return path

    def write_bytes(self, path: str, data: bytes) -> None:
        def land() -> None:
            self.objects.data[path] = data, self.world.now
            self._watch.file_written(path, data)

        self.world.begin_file(self.actor, path)
        self.world.operate(self.actor, f"write {path}", land, can_be_delayed=True)

    def write_file(self, path: str, writer: Callable[[str], T]) -> T:
        place = self._folder / "upload"
        result = writer(str(place))
        self.write_bytes(path, place.read_bytes())
        return result

    def read_range(self, path: str, start: int, length: int) -> bytes:
        def read() -> bytes:
            if path not in self.objects.data:
                raise FileNotFoundError(path)
            return self.objects.data[path][0][start : start + length]

        return self.world.operate(self.actor, f"read {path}", read)

    def delete(self, path: str) -> None:
        def delete() -> None:
            if self.objects.data.pop(path, None) is not None:
                self.world.counts["files deleted"] += 1
                self._watch.file_deleted(path, self.actor)

        self.world.operate(self.actor, f"delete {path}", delete)

    def read_bytes(self, path: str) -> bytes:
        return self.read_range(path, 0, 1 << 30)

    def size(self, path: str) -> int:
        return len(self.read_bytes(path))

    def exists(self, path: str) -> bool:
        return path in self.objects.data

    def path_of_url(self, url: str) -> str:
        return url

    def attach(self, connection: object) -> None:
        """DuckDB reads nothing here."""

    def counters(self) -> StoreCounters:
        return StoreCounters()

    def delete_many(self, paths: Sequence[str]) -> dict[str, LakebedError]:
        return delete_each(self.delete, paths)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int, float]]:
        if prefix.startswith("_delta_log"):
            names = self.world.operate(
                self.actor, f"list {prefix}", lambda: self._log_files.list_from("_delta_log", "")
            )
            return iter([(f"_delta_log/{name}", 1, self.world.now) for name in names])
        found = self.world.operate(self.actor, f"list {prefix}", lambda: list(self.objects.data.items()))
        return iter([(path, len(data), at) for path, (data, at) in found if path.startswith(prefix)])

    def now(self) -> float:
        return self.world.now

    def rows(self, path: str) -> tuple[Row, ...]:
        """The rows of a file here, or of a materialized part."""
        if path.startswith("file://"):
            return decode(Path(path.removeprefix("file://")).read_bytes())
        return self.objects.rows(path)

    def write_rows(self, rows: Sequence[Row], spec: WriteSpec) -> WrittenPart:
        """A new part, sorted as the shape says; all rows are of one partition."""
        self.world.files += 1
        rows = sorted(rows, key=sort_key(spec.order_by))
        path, data = f"_lakebed/part-{self.world.files}.parquet", encode(rows)
        self.write_bytes(path, data)
        deletes = sum(row.value is None for row in rows)
        modified_ms = int(self.world.now * 1000)
        told = stats(rows, self.world)
        return WrittenPart(
            path=path,
            rows=len(rows),
            bytes=len(data),
            deletes=deletes,
            incomplete=0,
            partition_values=values_of(rows),
            stats=told,
            modified_ms=modified_ms,
            sort_key_version=spec.order_version,
        )


def of(storage: PartStorage) -> SimulatedStorage:
    """The storage that the code under test was given, as what it is."""
    assert isinstance(storage, SimulatedStorage)
    return storage


def in_shape(row: Row, spec: WriteSpec) -> Row:
    """A row as a file of this shape holds it: columns that are not the table's any more are left out."""
    return row._replace(extra=tuple(each for each in row.extra if each[0] in spec.schema.names)) if row.extra else row


def values_of(rows: Sequence[Row]) -> dict[str, str | None]:
    """The partition of a part's rows, as it stands in the log."""
    return {} if rows[0].partition is None else {"p": rows[0].partition}


def by_partition(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows, cut by partition, each piece by key."""
    pieces: dict[str | None, list[Row]] = {}
    for row in sorted(rows):
        pieces.setdefault(row.partition, []).append(row)
    return [pieces[name] for name in sorted(pieces, key=str)]


def sort_key(columns: Sequence[str]) -> Callable[[Row], tuple[tuple[bool, Any], ...]]:
    """What rows are sorted by: columns of the table, nulls first."""

    def value(row: Row, column: str) -> Any:
        return row["kpv".index(column)] if column in CORE else dict(row.extra).get(column)

    def key(row: Row) -> tuple[tuple[bool, Any], ...]:
        values = [value(row, column) for column in columns]
        return tuple((each is not None, each or 0) for each in values)

    return key


def stats(rows: Sequence[Row], world: World) -> str:
    """What the log says of a part's rows. In some worlds bounds are as coarse as those of texts that begin alike."""
    grain = 1000 if world.seed % 8 == 5 else 1
    columns: dict[str, list[int | None]] = {"k": [row.key for row in rows], "v": [row.value for row in rows]}
    known = {name: [value for value in values if value is not None] for name, values in columns.items()}
    return orjson.dumps(
        {
            "numRecords": len(rows),
            "minValues": {name: min(values) // grain * grain for name, values in known.items() if values},
            "maxValues": {name: -(-max(values) // grain) * grain for name, values in known.items() if values},
            "nullCount": {name: len(rows) - len(values) for name, values in known.items()},
        }
    ).decode()


# -- what the kernels do ---------------------------------------------------------------------------------------------


def live_rows(snapshot: Snapshot, storage: SimulatedStorage, deletion_vectors: DeletionVectorCache) -> list[Row]:
    """The view of a snapshot."""
    rows = {
        row.key: row
        for part in snapshot.parts.values()
        for dead in [deletion_vectors.of(part)]
        for at, row in enumerate(storage.rows(part.path))
        if at not in dead
    }
    for change_part in snapshot.tail_in_order():
        rows.update((row.key, row) for row in storage.rows(change_part.path))
    return [row for row in rows.values() if row.value is not None]


def resolve(
    base: Mapping[str, Part],
    change_parts: Sequence[ChangePart],
    spec: WriteSpec,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: object,
    *,
    crowded: object,
) -> Resolution:
    """See ``lakebed.resolve.resolve``; there is no ``sequence_by`` here, and no row gets another key."""
    store = of(storage)
    newest: dict[int, tuple[str, int]] = {}
    changes = {part.path: store.rows(part.path) for part in change_parts}
    for path, rows in changes.items():
        newest.update((row.key, (path, at)) for at, row in enumerate(rows))
    tail_dead = {
        path: BitMap64(at for at, row in enumerate(rows) if row.value is None or newest[row.key] != (path, at))
        for path, rows in changes.items()
    }
    base_dead = {}
    for path, part in base.items():
        dead = deletion_vectors.of(part)
        replaced = BitMap64(at for at, row in enumerate(store.rows(path)) if row.key in newest) - dead
        if replaced:
            base_dead[path] = dead | replaced
    tail_dead = {path: dead for path, dead in tail_dead.items() if dead}
    return Resolution(
        change_parts=tuple(change_parts), base_dead=base_dead, tail_dead=tail_dead, rows=sum(map(len, changes.values()))
    )


class Locator:
    """``KeyLocator`` that reads all there is."""

    def __init__(self, storage: SimulatedStorage) -> None:
        self._storage = storage

    def lookup(self, base: Mapping[str, Part], keys: pa.Table) -> pa.Table:
        probes = {key: probe for probe, key in enumerate(keys["k"].to_pylist())}
        found = [
            (probes[row.key], path, at)
            for path in base
            for at, row in enumerate(self._storage.rows(path))
            if row.key in probes
        ]
        kinds = {"probe": pa.int64(), "part": pa.string(), "row": pa.int64()}
        return pa.table(
            {name: pa.array([hit[at] for hit in found], kind) for at, (name, kind) in enumerate(kinds.items())}
        )

    def learn(self, path: str, rows: pa.Table) -> None:
        """Nothing is kept."""


def read_keys(part: Part, spec: WriteSpec, storage: PartStorage) -> Iterator[pa.RecordBatch]:
    """See ``lakebed.resolve.locate``."""
    yield pa.record_batch({"k": pa.array([row.key for row in of(storage).rows(part.path)], pa.int64())})


def write_table(rows: pa.Table, spec: WriteSpec, storage: PartStorage, *rest: object) -> Iterator[WrittenPart]:
    """See ``lakebed.parts.write.write_parts``."""
    for piece in by_partition(Row(row["k"], row.get("p"), row["v"]) for row in rows.to_pylist()):
        yield of(storage).write_rows(piece, spec)


def merge_rows(
    sources: Sequence[MergeSource], spec: WriteSpec, out: PartStorage, reading: SimulatedStorage, rows_max: int
) -> list[MergedPart]:
    """See ``lakebed.merge.kernel.merge_parts``; ``out`` is the table's store or a folder on the local disk."""
    found = [
        (row, ordinal, at)
        for ordinal, source in enumerate(sources)
        for at, row in enumerate(reading.rows(source.url))
        if at not in source.dead
    ]
    in_order = sort_key(spec.order_by)
    found.sort(key=lambda one: in_order(one[0]))
    found = [(in_shape(row, spec), ordinal, at) for row, ordinal, at in found]
    merged = []
    for start in range(0, len(found), rows_max):
        piece = found[start : start + rows_max]
        rows = [row for row, _, _ in piece]
        if out is reading:
            path, size = (written := reading.write_rows(rows, spec)).path, written.bytes
            checksum = written.checksum
        else:
            reading.world.files += 1
            path, data = f"_lakebed/part-{reading.world.files}.parquet", encode(rows)
            place, size = os.path.join(out.root, path), len(data)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            Path(place).write_bytes(data)
            checksum = zlib.crc32(data)
        provenance = Provenance(
            np.array([ordinal for _, ordinal, _ in piece], np.uint16), np.array([at for _, _, at in piece], np.uint32)
        )
        version = spec.order_version
        told = stats(rows, reading.world)
        merged.append(
            MergedPart(
                path=path,
                rows=len(rows),
                bytes=size,
                stats=told,
                deletes=0,
                has_op_column=False,
                dead=BitMap64(),
                provenance=provenance,
                sort_key_version=version,
                checksum=checksum,
            )
        )
    passes = passes_after([source.part for source in sources], len(found), spec.order_version)
    return [replace(part, passes=passes) for part in merged]
