"""The key index: for each key, every physical row of it in the parts of a table, on the local disk of one process.

It makes a settle cost what the batch costs. It is a cache, never the truth: whatever can't be trusted is dropped, and
`sync` builds it again from the parts. A row stays findable after a deletion vector has marked it; the caller filters.

Invariants
- A part is in `parts` exactly when all of its rows can be found. Parts are immutable, so adding one twice adds it once.
- The catalog, a small JSON file replaced in one step, lists every run that has a file, with its length and checksum. A run
  that is missing or differs is dropped with every part that had rows in it; a file that is not listed is deleted.
  Nothing waits for the disk (no fsync): after a power cut the checksums find what did not reach it.
- Rows of small parts are *held*: one run in memory, of ``HELD_BYTES_MAX`` at most, which has no file until it is full or the
  index is closed. A process that is killed loses it, and the next one reads these few parts again.
- One process uses a folder, guarded by a lock; a second one gets a fresh temporary folder of its own.
- A disk that refuses a write costs speed, not correctness: the index logs a warning, is empty from then on, and refuses
  to look anything up, so that nobody takes "not indexed" for "not there".

Algorithm
1. A part becomes a run, or several small parts one, or a big one several (see `key_runs`). Runs are sorted by word
   (see `key_words`) and mapped, but for the one that is held.
2. A lookup makes words of its keys, sorts them, searches each run whose range they meet, compares the keys where words
   are hashes, and drops rows of removed parts.
3. `FANOUT` runs of about one size are merged into one, so a table of n rows has some FANOUT * log(n) runs. `add` and
   `sync` merge only what takes milliseconds, `merge_runs` the rest: call it when there is time.

Lookups may run in other threads beside a change: they see the state before or after it. Changes exclude each other.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.errors import InvalidInput, InvalidSchema, MissingPrerequisite
from lakebed.keyindex.key_runs import (
    BYTES_MAX,
    CATALOG,
    PARTS_MAX,
    ROWS_MAX,
    SUFFIX,
    TEMPORARY_SUFFIX,
    Rows,
    Run,
    RunBuilder,
    RunFile,
    StorageFailed,
    claim_folder,
    is_intact,
    layout,
    open_run,
    read_catalog,
    same_keys,
    tables_of,
    write_catalog,
)
from lakebed.keyindex.key_words import KeyEncoding

_FORMAT = 1
_FANOUT = 4
HELD_BYTES_MAX = 128 << 10
"""Of rows that wait in memory for a run that is worth a file."""
_INLINE_BYTES_MAX = 8 << 20
_RUNS_MAX = 48

_SMALLEST_TIER_BYTES = 64 << 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A run and which of its parts still count."""

    run: Run
    live: frozenset[str]

    @property
    def is_held(self) -> bool:
        """Whether the run is in memory alone."""
        return not self.run.file.name

    @property
    def live_share(self) -> float:
        file = self.run.file
        return sum(file.parts[part] for part in self.live) / max(file.rows, 1)

    @property
    def live_bytes(self) -> int:
        return int(self.run.file.bytes * self.live_share)


@dataclass(frozen=True, slots=True)
class IndexState:
    """The index at one set of parts: all that a lookup needs. Immutable.

    `codes[i]` maps the ordinals of run i to places in `names`, removed parts to -1.
    """

    parts: Mapping[str, int]
    placed: tuple[_Placed, ...]
    names: pa.Array
    codes: tuple[npt.NDArray[np.int32], ...]


class KeyIndex:
    """key → (part, row) for the parts of one table."""

    def __init__(
        self,
        folder: Path,
        key_types: Mapping[str, pa.DataType],
        payload_types: Mapping[str, pa.DataType] | None = None,
    ) -> None:
        """Open the index in `folder`, with what can be trusted of an earlier one there.

        `payload_types` are columns to keep beside each row and to return from `lookup`.
        """
        self._payload_types = dict(payload_types or {})
        taken = {"probe", "part", "row"} & set(self._payload_types)
        if taken:
            raise InvalidSchema(f"payload column {taken.pop()!r} would hide a column of the lookup's result: rename it")
        self._encoding = KeyEncoding(key_types)
        self._layout = layout(self._encoding, self._payload_types)
        self._mutation = threading.RLock()
        self._abandoned = False
        self._release: weakref.finalize[[], KeyIndex] | None = None
        self._folder = Path(folder)
        self._listed: frozenset[str] = frozenset()  # the files in the catalog
        self.is_outdated = False
        """Whether the folder had an index of other keys, types or hashes, of which nothing could be taken over."""
        self._state = _state({}, ())
        try:
            self._folder, release = claim_folder(Path(folder))
            self._release = weakref.finalize(self, release)
            self._state = self._load()
            self._listed = frozenset(placed.run.file.name for placed in self._state.placed)
            self._sweep()
        except OSError as error:
            self._abandon(error)

    @property
    def parts(self) -> frozenset[str]:
        """The parts whose rows `lookup` finds; none after the index was abandoned."""
        return frozenset(self._state.parts)

    @property
    def state(self) -> IndexState:
        """The index as it is now, for `lookup`; empty after it was abandoned."""
        return self._state

    @property
    def abandoned(self) -> bool:
        """Whether the local disk refused a write: the index stays empty, keys must be looked up in the parts."""
        return self._abandoned

    @property
    def folder(self) -> Path:
        """Where the runs are: the folder asked for, or a temporary one if another process holds that."""
        return self._folder

    @property
    def runs(self) -> int:
        """How many runs a lookup may have to search."""
        return len(self._state.placed)

    @property
    def _files(self) -> list[_Placed]:
        return [placed for placed in self._state.placed if not placed.is_held]

    @property
    def _held(self) -> list[_Placed]:
        return [placed for placed in self._state.placed if placed.is_held]

    @property
    def bytes(self) -> int:
        """Bytes on the local disk."""
        return sum(placed.run.file.bytes for placed in self._files)

    def add(self, part_id: str, rows: Rows) -> None:
        """Add a part: its key and payload columns in file order, so that row i is position i. Raises InvalidInput."""
        with self._mutation:
            self.sync(self.parts | {part_id}, lambda _: rows)

    def remove(self, part_ids: Collection[str]) -> None:
        """Forget parts; unknown ones are ignored."""
        with self._mutation:
            self.sync(self.parts - set(part_ids), _nothing_to_read)

    def at(self, parts: Collection[str]) -> IndexState | None:
        """The index as it is now, if it holds these parts and no other; does not wait."""
        state = self._state
        return state if not self._abandoned and state.parts.keys() == parts else None

    def sync(self, parts: Collection[str], read_keys: Callable[[str], Rows]) -> IndexState | None:
        """Make `self.parts` equal to `parts`: drop removed parts, read and add new ones. Returns the index as it is then, None
        if it was abandoned.

        `read_keys` returns a part's key and payload columns in file order, as a table or batch by batch. When it
        raises, the parts before stay added and the error is passed on.
        """
        with self._mutation:
            if self._abandoned:
                return None
            try:
                self._forget(self.parts - set(parts))
                self._read([part for part in dict.fromkeys(parts) if part not in self._state.parts], read_keys)
                self._merge(bytes_max=_INLINE_BYTES_MAX if self.runs <= _RUNS_MAX else BYTES_MAX)
            except StorageFailed as error:
                self._abandon(error)
                return None
            return self._state

    def merge_runs(self) -> int:
        """Merge all runs that are worth it; return how many there are then. Takes up to seconds: call it when idle."""
        with self._mutation:
            if not self._abandoned:
                try:
                    self._merge(bytes_max=BYTES_MAX)
                except StorageFailed as error:
                    self._abandon(error)
            return self.runs

    def rewrite_removed(self) -> None:
        """Write runs again that still have keys of removed parts, without them."""
        with self._mutation:
            if not self._abandoned:
                try:
                    for placed in self._state.placed:
                        if placed.live != placed.run.file.parts.keys():
                            self._combine([placed])
                except StorageFailed as error:
                    self._abandon(error)

    def lookup(self, keys: pa.Table, state: IndexState | None = None) -> pa.Table:
        """Every row of each key: `probe` int64 (row of `keys`), `part` dictionary<string>, `row` int64, payload.

        Ordered by probe. A key that occurs in several parts comes several times, one that occurs in none not at all.
        `state`: the index as `at` or `sync` returned it (default: as it is now).
        Raises InvalidInput for a null key or a wrong type, MissingPrerequisite once the index is abandoned.
        """
        if state is None and self._abandoned:
            raise MissingPrerequisite(
                f"the key index in {self._folder} is closed or was given up because the local disk refused a write: "
                "look the keys up in the parts, or free space and open the index again"
            )
        state = self._state if state is None else state
        encoded = self._encoding.encode(keys)
        words = self._encoding.words(encoded)
        order = np.argsort(words)
        words = words[order]
        probes: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        codes: list[npt.NDArray[np.int32]] = [np.empty(0, np.int32)]
        rows: list[npt.NDArray[np.uint32]] = [np.empty(0, np.uint32)]
        payload_schema = pa.schema(list(self._payload_types.items()))
        payloads: list[pa.RecordBatch] = []
        for placed, code_of in zip(state.placed, state.codes, strict=True):
            run = placed.run
            found, at = run.find(words)
            probe = order[found]
            keep = code_of[run.part[at]] >= 0
            if not self._encoding.exact:
                keep &= same_keys(run, at, encoded, probe)
            if not keep.all():
                probe, at = probe[keep], at[keep]
            if len(at):
                probes.append(probe)
                codes.append(code_of[run.part[at]])
                rows.append(run.row[at])
                if self._payload_types:
                    taken = run.batch.select(self._layout.names[-len(self._payload_types) :]).take(pa.array(at))
                    payloads.append(pa.RecordBatch.from_arrays(taken.columns, schema=payload_schema))
        probe = np.concatenate(probes)
        by_probe = np.argsort(probe, kind="stable")
        part = pa.DictionaryArray.from_arrays(pa.array(np.concatenate(codes)[by_probe]), state.names)
        columns = [pa.array(probe[by_probe]), part, pa.array(np.concatenate(rows)[by_probe].astype(np.int64))]
        result = pa.table(columns, names=["probe", "part", "row"])
        if self._payload_types:
            payload = pa.Table.from_batches(payloads, payload_schema).take(pa.array(by_probe))
            for name in payload.schema.names:
                result = result.append_column(name, payload.column(name))
        return result

    def close(self) -> None:
        """Release the folder for another process; the index is empty from then on."""
        with self._mutation:
            if not self._abandoned:
                with contextlib.suppress(StorageFailed):  # the next process reads these parts again
                    self._take_in(self._builder(), {}, may_hold=False)
                    self._list(self._state.parts, self._state.placed)
            self._abandoned = True
            self._state = _state({}, ())
            if self._release is not None:
                self._release()

    def __enter__(self) -> KeyIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- changes, under the mutation lock ----------------------------------------------------------------------------

    def _forget(self, left: frozenset[str]) -> None:
        if not left:
            return
        state = self._state
        parts = {part: rows for part, rows in state.parts.items() if part not in left}
        self._replace(parts, [_Placed(placed.run, placed.live - left) for placed in state.placed])

    def _read(self, missing: Sequence[str], read_keys: Callable[[str], Rows]) -> None:
        builder = self._builder()
        complete: dict[str, int] = {}
        try:
            for part in missing:
                first_row = 0
                for rows in tables_of(read_keys(part)):
                    builder.append(part, first_row, rows)
                    first_row += rows.num_rows
                complete[part] = first_row
                if builder.written:  # a run was full: this is the next moment at which every part is whole
                    self._take_in(builder, complete)
                    complete = {}
        except StorageFailed:
            complete = {}
            raise
        finally:
            # Also when reading a part failed: the parts before it are whole.
            if complete:
                self._take_in(builder, complete)
            builder.discard()

    def _builder(self) -> RunBuilder:
        return RunBuilder(self._folder, self._encoding, self._payload_types)

    def _take_in(self, builder: RunBuilder, complete: Mapping[str, int], *, may_hold: bool = True) -> None:
        """Add what was collected. Of its parts, those of ``complete`` count. If it is small, it joins what is held."""
        parts, held = {**self._state.parts, **complete}, self._held
        if not builder.written and builder.bytes <= HELD_BYTES_MAX:
            may_hold = may_hold and builder.bytes + sum(placed.live_bytes for placed in held) <= HELD_BYTES_MAX
            for placed in held:
                builder.append_run(placed.run, placed.live)
            run = builder.in_memory() if may_hold else None
            held = [_Placed(run, frozenset(run.file.parts.keys() & parts.keys()))] if run else []
        builder.flush()
        written, builder.written = builder.written, []
        placed_in_files = [_Placed(self._open(file), frozenset(file.parts.keys() & parts.keys())) for file in written]
        self._replace(parts, [*self._files, *placed_in_files, *held])

    def _merge(self, bytes_max: int) -> None:
        while chosen := _runs_to_merge(self._files, bytes_max):
            self._combine(chosen)

    def _combine(self, chosen: Sequence[_Placed]) -> None:
        """Write runs again, as few ones and without removed parts."""
        builder = self._builder()
        for placed in chosen:
            builder.append_run(placed.run, placed.live)
        builder.flush()
        merged = [_Placed(self._open(file), frozenset(file.parts)) for file in builder.written]
        gone = {placed.run.file.name for placed in chosen}
        kept = [placed for placed in self._state.placed if placed.run.file.name not in gone]
        self._replace(self._state.parts, kept + merged)

    def _replace(self, parts: Mapping[str, int], placed: Sequence[_Placed]) -> None:
        """Make this the state: first in the catalog, if it has other files, then in memory; then delete those of removed runs."""
        kept = tuple(p for p in placed if p.live)
        names = frozenset(p.run.file.name for p in kept if not p.is_held)
        if names != self._listed:
            self._list(parts, kept)
        before = {p.run.file.name for p in (*self._state.placed, *placed) if not p.is_held}
        self._state = _state(parts, kept)
        for name in before - names:
            (self._folder / name).unlink(missing_ok=True)  # a lookup under way still has it mapped

    def _list(self, parts: Mapping[str, int], placed: Sequence[_Placed]) -> None:
        """Write the catalog of what is in files."""
        held = frozenset().union(*(p.live for p in placed if p.is_held))
        files = [(p.run.file, p.live) for p in placed if not p.is_held]
        in_files = {part: rows for part, rows in parts.items() if part not in held}
        write_catalog(self._folder, self._identity(), in_files, files)
        self._listed = frozenset(file.name for file, _ in files)

    def _open(self, file: RunFile) -> Run:
        try:
            return open_run(self._folder, file, self._layout)
        except OSError as error:
            raise StorageFailed(f"{self._folder / file.name}: {error}") from error

    def _abandon(self, error: Exception) -> None:
        _log.warning("the key index in %s is given up, keys must be looked up in the parts: %s", self._folder, error)
        self._abandoned = True
        self._state = _state({}, ())
        with contextlib.suppress(OSError):
            self._sweep()

    # -- the folder --------------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        payload = [f"{name} {type_}" for name, type_ in self._payload_types.items()]
        return {"format": _FORMAT, "keys": self._encoding.identity, "payload": payload}

    def _load(self) -> IndexState:
        catalog = read_catalog(self._folder, self._identity())
        if catalog is None:
            self.is_outdated = (self._folder / CATALOG).exists()
            return self._state
        parts, files = catalog
        with ThreadPoolExecutor() as pool:
            intact = list(pool.map(lambda entry: is_intact(self._folder, entry[0]), files))
        placed = []
        for (file, live), whole in zip(files, intact, strict=True):
            if whole:
                try:
                    placed.append(_Placed(open_run(self._folder, file, self._layout), live))
                except (ValueError, OSError, pa.ArrowException):
                    whole = False
            if not whole:
                _log.warning("run %s of the key index in %s is damaged and is built again", file.name, self._folder)
        return _only_whole_parts(parts, placed)

    def _sweep(self) -> None:
        """Delete files that the state does not list: runs of a process that died before it wrote them into the catalog."""
        named = {placed.run.file.name for placed in self._state.placed}
        for path in self._folder.iterdir():
            if path.name not in named and path.suffix in (SUFFIX, TEMPORARY_SUFFIX):
                path.unlink(missing_ok=True)
        if not self._state.parts:
            (self._folder / CATALOG).unlink(missing_ok=True)


def _runs_to_merge(placed: Sequence[_Placed], bytes_max: int) -> list[_Placed]:
    """Which runs to merge next into one of at most `bytes_max`: none, if no merge is worth it. Smaller ones go first.

    A merge is worth it for `FANOUT` runs of one tier (tiers are a factor FANOUT apart in size), and for a run of which less
    than half is live.
    """
    tiers: dict[int, list[_Placed]] = {}
    for run in sorted(placed, key=lambda p: (p.live_bytes, p.run.file.name)):
        tiers.setdefault(_tier(run.live_bytes), []).append(run)
    for _, runs in sorted(tiers.items()):
        if len(runs) >= _FANOUT:
            chosen: list[_Placed] = []
            bytes_ = rows = parts = 0
            for run in runs:
                bytes_ += run.live_bytes
                rows += int(run.run.file.rows * run.live_share) + 1
                parts += len(run.live)
                if bytes_ > bytes_max or rows > ROWS_MAX or parts > PARTS_MAX:
                    break
                chosen.append(run)
            if len(chosen) > 1:
                return chosen
    for run in placed:
        if run.live_share < 0.5 and run.live_bytes <= bytes_max:
            return [run]
    return []


def _tier(bytes_: int) -> int:
    return max(0, math.floor(math.log(max(bytes_, 1) / _SMALLEST_TIER_BYTES, _FANOUT)))


def _state(parts: Mapping[str, int], placed: Sequence[_Placed]) -> IndexState:
    names = sorted(parts)
    code = {part: i for i, part in enumerate(names)}
    codes = tuple(
        np.array([code[part] if part in p.live else -1 for part in p.run.file.parts], np.int32) for p in placed
    )
    return IndexState(dict(parts), tuple(placed), pa.array(names, pa.string()), codes)


def _only_whole_parts(parts: Mapping[str, int], placed: Sequence[_Placed]) -> IndexState:
    present: dict[str, int] = dict.fromkeys(parts, 0)
    for p in placed:
        for part in p.live:
            present[part] = present.get(part, 0) + p.run.file.parts[part]
    whole = {part: rows for part, rows in parts.items() if present[part] == rows}
    return _state(whole, [_Placed(p.run, live) for p in placed if (live := p.live & whole.keys())])


def _nothing_to_read(part: str) -> pa.Table:
    raise InvalidInput(f"part {part} is to be removed, not read")
