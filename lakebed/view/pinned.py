"""What a version is read from: files, and which rows of them are dead.

1. The tail of the snapshot is resolved against the base (``resolve.resolve``), exactly as a settle does, but nothing is
   committed. The result is the dead rows of each part.
2. Materialized parts on this host are read in place of the parts that they were merged from.

The newest resolution is kept, so reading the same version again resolves nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyroaring import BitMap64

from lakebed.coordination.read_counts import ReadCounts
from lakebed.log.actions import ChangePart, Part
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.snapshot import Snapshot
from lakebed.merge.materialized import LocalParts, Materialized, overlay
from lakebed.parts.changes import WriteSpec, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.resolve.counted_tail import crowded_keys_of
from lakebed.resolve.locate import ReadLocator
from lakebed.resolve.resolution import Resolution
from lakebed.resolve.resolve import resolve
from lakebed.storage.part_storage import PartStorage
from lakebed.view.arrow_scan import ScanFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """The files and rows that a version is read from. Reads of the ``stale`` parts are counted.

    ``local``: the materialized parts that were there.
    """

    table_id: str
    version: int
    on_this_host: bool
    local: frozenset[str]
    files: tuple[ScanFile, ...]
    completed: pa.Table | None
    stale: frozenset[str]


class Pins:
    """Resolves versions of one table."""

    def __init__(
        self,
        storage: PartStorage,
        deletion_vectors: DeletionVectorCache,
        locator: Callable[[WriteSpec], ReadLocator],
        reads: ReadCounts,
        local: LocalParts,
    ) -> None:
        self._storage = storage
        self._deletion_vectors = deletion_vectors
        self._locator = locator
        self._reads = reads
        self._local = local
        self._newest: Pinned | None = None
        self._lock = threading.Lock()

    def local(self) -> frozenset[str]:
        """The materialized parts on this host."""
        return _files_of(self._local.load())

    def pin(self, snapshot: Snapshot, on_this_host: bool) -> Pinned:
        """What a version is read from: with the materialized parts on this host, or from committed files alone."""
        local_parts = self._local.load() if on_this_host else ()
        local, table_id = _files_of(local_parts), snapshot.metadata.id
        newest = self._newest
        if newest and (newest.table_id, newest.version, newest.on_this_host, newest.local) == (
            table_id,
            snapshot.version,
            on_this_host,
            local,
        ):
            return newest
        spec = write_spec_of(snapshot)
        resolution = self.resolved(snapshot, spec)
        pinned = Pinned(
            table_id=table_id,
            version=snapshot.version,
            on_this_host=on_this_host,
            local=local,
            files=self.files(snapshot, resolution, local_parts),
            completed=resolution.completed,
            stale=self._reads.counted_parts(snapshot),
        )
        with self._lock:
            newest = self._newest
            is_older = newest and (newest.version, newest.on_this_host) > (pinned.version, on_this_host)
            if newest is None or newest.table_id != table_id or not is_older:
                self._newest = pinned
        return pinned

    def resolved(self, snapshot: Snapshot, spec: WriteSpec, among: pa.Table | None = None) -> Resolution:
        """What the tail makes of the base; with ``among``, a table of keys by their stored names, of these keys alone."""
        if not snapshot.tail:
            return Resolution()
        return resolve(
            snapshot.parts,
            snapshot.tail_in_order(),
            spec,
            self._storage,
            self._deletion_vectors,
            self._locator(spec),
            crowded=crowded_keys_of(snapshot),
            among=among,
        )

    def files(
        self, snapshot: Snapshot, resolution: Resolution, local_parts: Sequence[Materialized] = ()
    ) -> tuple[ScanFile, ...]:
        """The files with live rows."""

        def dead_of(part: Part) -> BitMap64:
            return resolution.base_dead.get(part.path) or self._deletion_vectors.of(part)

        overlaid, substitutes = overlay(snapshot, local_parts, dead_of)
        out = []
        for part in overlaid.parts.values():
            dead = resolution.base_dead.get(part.path)
            if part.path in substitutes:
                dead = substitutes[part.path].dead
            if dead is not None and len(dead) == part.rows:
                continue
            if dead is None and part.deletion_vector:
                if part.dead_rows == part.rows:
                    continue
                dead = self._deletion_vectors.of(part)
            committed = part.deletion_vector if part.path not in resolution.base_dead else None
            out.append(_file_of(part, dead, committed))
        for change_part in resolution.change_parts:
            dead = resolution.tail_dead.get(change_part.path)
            if dead is None or len(dead) < change_part.rows:
                out.append(_file_of(change_part, dead, None))
        return tuple(out)


def _file_of(part: Part | ChangePart, dead: BitMap64 | None, committed: DeletionVector | None) -> ScanFile:
    return ScanFile(
        path=part.path,
        bytes=part.bytes,
        rows=part.rows,
        partition_values=part.partition_values,
        dead=dead,
        deletion_vector=committed,
        stats=part.stats,
        checksum=part.checksum,
    )


def _files_of(local_parts: Sequence[Materialized]) -> frozenset[str]:
    return frozenset(part.path for one in local_parts for part in one.parts)
