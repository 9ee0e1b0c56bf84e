"""A cache of the bitmaps of deletion vectors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from pyroaring import BitMap64

from lakebed.errors import Corrupt
from lakebed.log.actions import Part, RemovePart
from lakebed.log.deletion_vector import DeletionVector, inline, pack, unpack
from lakebed.storage.part_storage import PartStorage

_BYTES_MAX = 64 << 20
_BITMAP_BYTES = 1024  # of a bitmap in memory, beside what it is when stored
_INLINE_BYTES_MAX = 2048
_GONE_MAX = 64


class DeletionVectorCache:
    """Reads and writes deletion vectors of one table. Safe to use from threads.

    It keeps the vector of each part that was used last, and of all parts the 64 MB used last: a vector that a settle replaces is
    not needed again. ``forget_removed`` drops those of parts that left the base.
    """

    def __init__(self, storage: PartStorage) -> None:
        self._storage = storage
        self._kept: OrderedDict[str, tuple[str, BitMap64, int]] = OrderedDict()  # by path: its vector's id, rows, bytes
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def kept(self) -> dict[str, int]:
        """The bytes kept, by path; the one used last is at the end."""
        with self._lock:
            return {path: size for path, (_, _, size) in self._kept.items()}

    def of(self, part: Part | RemovePart) -> BitMap64:
        """The dead rows of a part; empty without a deletion vector. Not to be changed by the caller. Raises Corrupt."""
        vector = part.deletion_vector
        if vector is None:
            return BitMap64()
        with self._lock:
            found = self._kept.get(part.path)
            if found and found[0] == vector.unique_id:
                self._kept.move_to_end(part.path)
                return found[1]
        path = vector.file_path()
        if path is None:
            dead = unpack(vector, None)
        else:
            offset = vector.offset or 1
            try:
                framed = self._storage.read_range(path, offset, vector.bytes + 8)
            except FileNotFoundError:
                raise Corrupt(
                    f"{path}, the deletion vector of {part.path}, is missing: restore the file",
                    path=path,
                    part=part.path,
                ) from None
            try:
                dead = unpack(_at_start(vector), b"\x01" + framed)
            except Corrupt as error:
                error.path, error.part = path, part.path
                raise
        self._keep(part.path, vector, dead)
        return dead

    def write(self, bitmaps: dict[str, BitMap64]) -> dict[str, DeletionVector]:
        """Deletion vectors for the bitmaps, by the same paths of parts: small ones inline, the others in one file."""
        out: dict[str, DeletionVector] = {}
        in_file: dict[str, BitMap64] = {}
        for name, dead in bitmaps.items():
            vector = inline(dead) if len(dead) <= _INLINE_BYTES_MAX // 2 else None
            if vector and vector.bytes <= _INLINE_BYTES_MAX:
                out[name] = vector
            else:
                in_file[name] = dead
        if in_file:
            path, data, vectors = pack(list(in_file.values()))
            self._storage.write_bytes(path, data)
            out.update(zip(in_file, vectors, strict=True))
        for name, vector in out.items():
            self._keep(name, vector, bitmaps[name])
        return out

    def forget_removed(self, base: Mapping[str, Part]) -> None:
        """Drop vectors of parts that are not in the base, once there are many. One that is still needed is read again."""
        with self._lock:
            if len(self._kept) <= 2 * len(base) + _GONE_MAX:
                return
            self._kept = OrderedDict((path, kept) for path, kept in self._kept.items() if path in base)
            self._bytes = sum(size for _, _, size in self._kept.values())

    def _keep(self, path: str, vector: DeletionVector, dead: BitMap64) -> None:
        size = vector.bytes + _BITMAP_BYTES
        with self._lock:
            replaced = self._kept.pop(path, None)
            self._kept[path] = (vector.unique_id, dead, size)
            self._bytes += size - (replaced[2] if replaced else 0)
            while self._bytes > _BYTES_MAX and len(self._kept) > 1:
                _, (_, _, gone) = self._kept.popitem(last=False)
                self._bytes -= gone


def _at_start(vector: DeletionVector) -> DeletionVector:
    return DeletionVector(
        storage=vector.storage,
        path_or_inline=vector.path_or_inline,
        offset=1,
        bytes=vector.bytes,
        dead_rows=vector.dead_rows,
    )
