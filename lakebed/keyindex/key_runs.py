"""Runs of a key index: immutable, memory-mapped, sorted by word.

A run is one uncompressed Arrow file of one record batch: `word` int64 (ascending), `part` uint16 (an ordinal in the
run's own list of parts), `row` uint32 (position in that part), then the encoded key columns when words are hashes, then
the payload columns. Mapped, it costs address space and page cache, not private memory.

Invariants
- A run's file is complete before it has its name, and never changes after. A run in memory never changes either.
- A run holds at most `ROWS_MAX` rows, `BYTES_MAX` bytes (or a single row) and `PARTS_MAX` parts: the memory that
  building it takes is bounded.

Searching `n` sorted words
1. Cut them to the run's range of words: most runs of a growing integer key drop out here.
2. Find each one's block of `FENCE` words by binary search in the fence (every `FENCE`-th word, kept in memory, small
   enough for the processor's cache), then halve the blocks of all of them at once. Three times as fast as a binary
   search through eight million mapped words, because of fewer cache misses.
3. Take the equal neighbours of each hit too: a key may occur in several parts.

Which runs there are, a small JSON file says (the catalog), which is replaced in one step. Parts that have left the table since it
was written may still be in it: whoever opens the index forgets them, as parts that left while nobody had it open.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import InvalidInput
from lakebed.keyindex.key_words import KeyEncoding, Words
from lakebed.storage.local_folders import lock_folder, process_folder

Rows: TypeAlias = "pa.Table | Iterable[pa.RecordBatch]"

ROWS_MAX = 8_000_000
BYTES_MAX = 128 << 20
PARTS_MAX = 1 << 16
_FENCE = 64

SUFFIX = ".run"
TEMPORARY_SUFFIX = ".tmp"
_READ_BYTES = 4 << 20

_Positions = npt.NDArray[np.int64]


class StorageFailed(Exception):
    """The local disk refused a write (it is full, say): never seen outside the key index."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """A run as the catalog describes it; `parts` maps a part's id to how many of its rows are here, in ordinal order.

    A run in memory has no name.
    """

    name: str
    bytes: int
    crc32: int
    parts: Mapping[str, int]

    @property
    def rows(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An open run."""

    file: RunFile
    words: Words
    part: npt.NDArray[np.uint16]
    row: npt.NDArray[np.uint32]
    batch: pa.RecordBatch
    fence: Words

    def find(self, words: Words) -> tuple[_Positions, _Positions]:
        """For ascending `words`: indices into them and, as many, the positions in this run that hold the same word."""
        first = int(np.searchsorted(words, self.words[0]))
        last = int(np.searchsorted(words, self.words[-1], side="right"))
        wanted = words[first:last]
        at = _search(self.words, self.fence, wanted)
        hits = np.flatnonzero(self.words[at] == wanted)
        at = at[hits]
        return _with_equal_neighbours(self.words, hits + first, at)


def _run_in_memory(layout: pa.Schema, parts: Mapping[str, int], columns: pa.RecordBatch, words: Words) -> Run:
    """A run without a file; `columns` and `words` as for `write_run`. It holds on to nothing but its rows."""
    order = np.argsort(words)
    columns = columns.take(pa.array(order))
    batch = pa.RecordBatch.from_arrays([pa.array(words[order]), *columns.columns], schema=layout)
    return _run_of(RunFile("", batch.nbytes, 0, dict(parts)), batch)


def _write_run(
    folder: Path, layout: pa.Schema, parts: Mapping[str, int], columns: pa.RecordBatch, words: Words
) -> RunFile:
    """Sort `columns` (`part`, `row`, encoded keys, payload) by `words` and write them as a run into `folder`."""
    if not np.all(words[1:] >= words[:-1]):
        order = np.argsort(words)
        words, columns = words[order], columns.take(pa.array(order))
    batch = pa.RecordBatch.from_arrays([pa.array(words), *columns.columns], schema=layout)
    name = f"{uuid.uuid4()}{SUFFIX}"
    temporary = folder / (name + TEMPORARY_SUFFIX)
    try:
        with open(temporary, "wb", buffering=0) as file:
            sink = _ChecksummedSink(file)
            with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), layout) as writer:
                writer.write_batch(batch)
        os.replace(temporary, folder / name)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageFailed(f"{temporary}: {error}") from error
    return RunFile(name, sink.bytes, sink.crc32, dict(parts))


def open_run(folder: Path, file: RunFile, layout: pa.Schema) -> Run:
    """Map a run. Trusts the file: see `is_intact`."""
    batch = pa.ipc.open_file(pa.memory_map(str(folder / file.name))).get_batch(0)
    if batch.schema != layout or batch.num_rows != file.rows:
        raise ValueError(f"{file.name} is not the run that the catalog describes")
    return _run_of(file, batch)


def _run_of(file: RunFile, batch: pa.RecordBatch) -> Run:
    words = _view(batch.column(0), np.int64)
    return Run(
        file=file,
        words=words,
        part=_view(batch.column(1), np.uint16),
        row=_view(batch.column(2), np.uint32),
        batch=batch,
        fence=np.ascontiguousarray(words[::_FENCE]),
    )


def is_intact(folder: Path, file: RunFile) -> bool:
    """Whether the file has the length and the checksum that it was written with. Reads all of it."""
    crc32 = 0
    try:
        if (folder / file.name).stat().st_size != file.bytes:
            return False
        with open(folder / file.name, "rb", buffering=0) as stream:
            while block := stream.read(_READ_BYTES):
                crc32 = zlib.crc32(block, crc32)
    except OSError:
        return False
    return crc32 == file.crc32


def layout(encoding: KeyEncoding, payload_types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The schema of every run of an index."""
    fields = [pa.field("word", pa.int64()), pa.field("part", pa.uint16()), pa.field("row", pa.uint32())]
    keys = [] if encoding.exact else list(encoding.schema)
    return pa.schema([*fields, *keys, *(pa.field(f"payload {name}", type_) for name, type_ in payload_types.items())])


class RunBuilder:
    """Collects rows of parts in their order and writes a run whenever one is full."""

    def __init__(self, folder: Path, encoding: KeyEncoding, payload_types: Mapping[str, pa.DataType]) -> None:
        self._folder = folder
        self._encoding = encoding
        self._payload_types = dict(payload_types)
        self._layout = layout(encoding, payload_types)
        self._parts: dict[str, int] = {}
        self._ordinals: dict[str, int] = {}
        self._pieces: list[pa.RecordBatch] = []
        self._words: list[Words] = []
        self._bytes = 0
        self.written: list[RunFile] = []

    @property
    def rows(self) -> int:
        """Rows collected and not yet written."""
        return sum(self._parts.values())

    @property
    def bytes(self) -> int:
        """About the bytes of the rows that were appended and are not yet written; those of runs are not counted."""
        return self._bytes

    def append(self, part: str, first_row: int, rows: pa.Table) -> None:
        """Add `rows`, which begin at position `first_row` of `part`."""
        rows_a_slice = _rows_a_slice(rows)
        for start in range(0, rows.num_rows, rows_a_slice):
            piece = rows.slice(start, rows_a_slice)
            encoded = self._encoding.encode(piece)
            words = self._encoding.words(encoded)
            positions = np.arange(first_row + start, first_row + start + piece.num_rows, dtype=np.uint32)
            keys = [] if self._encoding.exact else encoded.columns
            payload = [_payload(piece, name, type_) for name, type_ in self._payload_types.items()]
            bytes_ = 14 * piece.num_rows + sum(column.nbytes for column in (*keys, *payload))
            if not self._has_room(part, piece.num_rows, bytes_):
                self.flush()
            ordinal = self._ordinal_of(part)
            columns = [pa.array(np.full(piece.num_rows, ordinal, np.uint16)), pa.array(positions), *keys, *payload]
            self._pieces.append(pa.RecordBatch.from_arrays(columns, names=self._layout.names[1:]))
            self._words.append(words)
            self._parts[part] = self._parts.get(part, 0) + piece.num_rows
            self._bytes += bytes_

    def append_run(self, run: Run, live: Iterable[str]) -> None:
        """Add the rows of `run` that belong to the parts of `live`; the caller ensures that they fit one run."""
        kept = set(live)
        ordinals = np.zeros(len(run.file.parts), np.uint16)
        keep = np.zeros(len(run.file.parts), bool)
        for old, (part, rows) in enumerate(run.file.parts.items()):
            if part in kept:
                keep[old] = True
                ordinals[old] = self._ordinal_of(part)
                self._parts[part] = self._parts.get(part, 0) + rows
        chosen = None if keep.all() else np.flatnonzero(keep[run.part])
        batch = run.batch if chosen is None else run.batch.take(pa.array(chosen))
        renamed = ordinals[run.part if chosen is None else run.part[chosen]]
        columns = [pa.array(renamed), *batch.columns[2:]]
        self._pieces.append(pa.RecordBatch.from_arrays(columns, names=self._layout.names[1:]))
        self._words.append(run.words if chosen is None else run.words[chosen])

    def flush(self) -> None:
        """Write what was collected, if anything, as one run."""
        if self._words:
            self.written.append(_write_run(self._folder, self._layout, *self._taken()))

    def in_memory(self) -> Run | None:
        """What was collected as one run without a file; None if there are no rows."""
        return _run_in_memory(self._layout, *self._taken()) if self._words else None

    def _taken(self) -> tuple[dict[str, int], pa.RecordBatch, Words]:
        taken = self._parts, pa.concat_batches(self._pieces), np.concatenate(self._words)
        self._forget()
        return taken

    def _forget(self) -> None:
        self._pieces, self._words, self._parts, self._ordinals, self._bytes = [], [], {}, {}, 0

    def discard(self) -> None:
        """Forget what was collected and delete the runs in `written`."""
        self._forget()
        for file in self.written:
            (self._folder / file.name).unlink(missing_ok=True)
        self.written = []

    def _ordinal_of(self, part: str) -> int:
        return self._ordinals.setdefault(part, len(self._ordinals))

    def _has_room(self, part: str, rows: int, bytes_: int) -> bool:
        if self.rows + rows > ROWS_MAX or self._bytes + bytes_ > BYTES_MAX:
            return False
        return part in self._parts or len(self._parts) < PARTS_MAX


def _search(words: Words, fence: Words, wanted: Words) -> _Positions:
    """The first position of a word not below each of `wanted`, none of which is above the last word."""
    block = np.searchsorted(fence, wanted)
    # Every word before `at` is smaller than what is wanted; the answer is at most FENCE beyond.
    at = np.maximum(block.astype(np.int64) - 1, 0) * _FENCE
    last = len(words) - 1
    step = _FENCE // 2
    while step:
        ahead = at + step
        at = np.where((ahead <= last) & (words[np.minimum(ahead, last)] < wanted), ahead, at)
        step //= 2
    found: _Positions = at + (words[at] < wanted)
    return found


def _with_equal_neighbours(words: Words, indices: _Positions, at: _Positions) -> tuple[_Positions, _Positions]:
    following = np.minimum(at + 1, len(words) - 1)
    repeated = np.flatnonzero((following > at) & (words[following] == words[at]))
    if not len(repeated):
        return indices, at
    counts = np.ones(len(at), np.int64)
    counts[repeated] = np.searchsorted(words, words[at[repeated]], side="right") - at[repeated]
    starts = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum())) - np.repeat(starts, counts)
    return np.repeat(indices, counts), np.repeat(at, counts) + within


def _rows_a_slice(rows: pa.Table) -> int:
    bytes_a_row = 14 + rows.nbytes // max(rows.num_rows, 1)
    return int(max(1, min(ROWS_MAX, BYTES_MAX // bytes_a_row)))


def _payload(rows: pa.Table, name: str, type_: pa.DataType) -> pa.Array:
    if name not in rows.schema.names:
        raise InvalidInput(f"payload column {name!r} is missing from the rows, which have {rows.schema.names}")
    column = rows.column(name).cast(type_)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], type_)


def _view(column: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    return np.frombuffer(column.buffers()[1], dtype, len(column))


class _ChecksummedSink:
    """A writable file that knows the length and checksum of what went through it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.bytes = 0
        self.crc32 = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.crc32 = zlib.crc32(view, self.crc32)
        self.bytes += len(view)
        rest = view
        while len(rest):  # an unbuffered file may take less than it is offered
            rest = rest[self._file.write(rest) :]
        return len(view)

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        self.closed = True


def same_keys(run: Run, at: _Positions, encoded: pa.RecordBatch, probes: _Positions) -> npt.NDArray[np.bool_]:
    """Whether the key at each position of `run` is the key at the probe beside it; for runs whose words are hashes."""
    same = np.ones(len(at), bool)
    rows, wanted = pa.array(at), pa.array(probes)
    for name in encoded.schema.names:
        same &= pc.equal(run.batch.column(name).take(rows), encoded.column(name).take(wanted)).to_numpy(
            zero_copy_only=False
        )
    return same


CATALOG = "catalog.json"
Listed: TypeAlias = tuple[RunFile, frozenset[str]]
"""A run, and which of its parts still count."""
_log = logging.getLogger(__name__)


def write_catalog(folder: Path, identity: Mapping[str, Any], parts: Mapping[str, int], runs: Iterable[Listed]) -> None:
    """Replace the catalog. Raises StorageFailed."""
    listed = [
        {
            "name": file.name,
            "bytes": file.bytes,
            "crc32": file.crc32,
            "parts": list(file.parts.items()),
            "removed": sorted(file.parts.keys() - live),
        }
        for file, live in runs
    ]
    temporary = folder / (CATALOG + TEMPORARY_SUFFIX)
    try:
        temporary.write_bytes(orjson.dumps({**identity, "parts": dict(parts), "runs": listed}))
        os.replace(temporary, folder / CATALOG)
    except OSError as error:
        raise StorageFailed(f"{temporary}: {error}") from error


def read_catalog(folder: Path, identity: Mapping[str, Any]) -> tuple[dict[str, int], list[Listed]] | None:
    """The parts, and the runs; None where there is no catalog that fits and can be read."""
    try:
        catalog = orjson.loads((folder / CATALOG).read_bytes())
        if any(catalog[name] != value for name, value in identity.items()):
            return None
        runs = []
        for run in catalog["runs"]:
            file = RunFile(Path(run["name"]).name, run["bytes"], run["crc32"], dict(run["parts"]))
            runs.append((file, frozenset(file.parts) - set(run["removed"])))
        return catalog["parts"], runs
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("the catalog of the key index in %s can't be read, so the index is built again: %s", folder, error)
        return None


def tables_of(rows: Rows) -> Iterator[pa.Table]:
    if isinstance(rows, pa.Table):
        yield rows
        return
    for batch in rows:
        yield pa.Table.from_batches([batch])


def claim_folder(folder: Path) -> tuple[Path, Callable[[], object]]:
    """Lock `folder`, or a new temporary one when another process has it; returns it with the function that releases it."""
    lock = lock_folder(folder)
    if lock is None:
        own = Path(tempfile.mkdtemp(prefix="keys-", dir=process_folder()))
        _log.warning("another process uses the key index in %s, so this one builds its own in %s", folder, own)
        return own, lambda: shutil.rmtree(own, ignore_errors=True)
    return folder, lambda: os.close(lock)
