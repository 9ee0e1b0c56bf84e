"""How long finding the rows of 20,000 changed keys takes, and what the key index costs.

    python benchmarks/key_lookup.py [--rows 1000000 10000000 50000000] [--keys int uuid] [--folder FOLDER]

A batch: 70 % updates of recent keys (skewed), 20 % new keys, 10 % keys from anywhere. Each case runs in a process of
its own, so that its peak memory is its own. `first` is the first lookup after the index was opened again (its pages are
in the page cache but not mapped). Private memory is what the process allocated; mapped memory is page cache that the
system takes back when it needs to. `in 2,000 parts` adds the rows part by part, as settled batches come.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.keyindex.key_index import KeyIndex

BATCH = 20_000
PART_ROWS = 1_000_000
LOOKUPS = 25
MB = 1 << 20


def keys_of(numbers: npt.NDArray[np.int64], kind: str) -> pa.Table:
    """The keys with these numbers: the numbers, or strings that look like uuids, spread by a bijective mix."""
    if kind == "int":
        return pa.table({"pk": numbers})
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    halves = np.stack([mixed, mixed ^ (mixed >> np.uint64(31))], axis=1).astype(">u8").view(np.uint8)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)[np.stack([halves >> 4, halves & 15], axis=2)].reshape(-1, 32)
    text = np.full((len(numbers), 36), ord("-"), np.uint8)
    text[:, [i for i in range(36) if i not in (8, 13, 18, 23)]] = digits
    offsets = np.arange(0, 36 * (len(numbers) + 1), 36, dtype=np.int32)
    strings = pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text)))
    return pa.table({"pk": strings})


def batch(random: np.random.Generator, rows: int) -> npt.NDArray[np.int64]:
    """Numbers of the keys that one batch of changes into `rows` rows touches."""
    recent = rows - 1 - np.minimum(random.exponential(rows / 20, BATCH * 7 // 10).astype(np.int64), rows - 1)
    new = np.arange(rows, rows + BATCH // 5)
    return np.concatenate([recent, new, random.integers(0, rows, BATCH - len(recent) - len(new))])


class PeakMemory:
    """Samples the process's private and mapped resident bytes while it is entered."""

    def __enter__(self) -> PeakMemory:
        self.private_bytes = self.mapped_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sample()
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._sample()

    def _sample(self) -> None:
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        self.private_bytes = max(self.private_bytes, int(fields["RssAnon"].split()[0]) << 10)
        self.mapped_bytes = max(self.mapped_bytes, int(fields["RssFile"].split()[0]) << 10)


def timed_lookups(index: KeyIndex, rows: int, kind: str) -> tuple[float, list[float]]:
    random = np.random.default_rng(7)
    seconds = []
    for _ in range(LOOKUPS + 1):
        keys = keys_of(batch(random, rows), kind)
        start = time.perf_counter()
        found = index.lookup(keys)
        seconds.append(time.perf_counter() - start)
        assert found.num_rows == BATCH - BATCH // 5, found.num_rows
    return seconds[0], seconds[1:]


def big(folder: Path, rows: int, kind: str) -> dict[str, float]:
    """`rows` rows in parts of a million, each part shuffled, as after a sort by something else than the key."""
    types = {"pk": pa.int64() if kind == "int" else pa.string()}

    def read_keys(part: str) -> Iterator[pa.RecordBatch]:
        first = int(part)
        numbers = np.random.default_rng(first).permutation(np.arange(first, min(first + PART_ROWS, rows)))
        for start in range(0, len(numbers), 250_000):
            yield from keys_of(numbers[start : start + 250_000], kind).to_batches()

    with PeakMemory() as building:
        with KeyIndex(folder, types) as index:
            start = time.perf_counter()
            index.sync([str(first) for first in range(0, rows, PART_ROWS)], read_keys)
            index.merge_runs()
            build_seconds = time.perf_counter() - start
        start = time.perf_counter()
        index = KeyIndex(folder, types)
        open_seconds = time.perf_counter() - start
    with PeakMemory() as looking, index:
        first, seconds = timed_lookups(index, rows, kind)
        return figures(
            index, build_seconds, open_seconds, first=first, seconds=seconds, building=building, looking=looking
        )


def many_parts(folder: Path, rows: int, kind: str) -> dict[str, float]:
    """2,000 parts, added one by one."""
    types = {"pk": pa.int64() if kind == "int" else pa.string()}
    with PeakMemory() as building, KeyIndex(folder, types) as index:
        numbers = np.random.default_rng(1).permutation(np.arange(rows))
        adds = []
        for part, piece in enumerate(np.array_split(numbers, 2_000)):
            start = time.perf_counter()
            index.add(str(part), keys_of(piece, kind))
            adds.append(time.perf_counter() - start)
        first, seconds = timed_lookups(index, rows, kind)
        result = figures(index, sum(adds), 0.0, first=first, seconds=seconds, building=building, looking=building)
        return {**result, "add ms p50": statistics.median(adds) * 1e3, "add ms p99": sorted(adds)[-20] * 1e3}


def figures(
    index: KeyIndex,
    build_seconds: float,
    open_seconds: float,
    *,
    first: float,
    seconds: list[float],
    building: PeakMemory,
    looking: PeakMemory,
) -> dict[str, float]:
    return {
        "runs": index.runs,
        "build s": build_seconds,
        "open s": open_seconds,
        "first ms": first * 1e3,
        "p50 ms": statistics.median(seconds) * 1e3,
        "p95 ms": sorted(seconds)[int(len(seconds) * 0.95)] * 1e3,
        "disk MB": index.bytes / MB,
        "build private MB": building.private_bytes / MB,
        "lookup private MB": looking.private_bytes / MB,
        "mapped MB": looking.mapped_bytes / MB,
    }


def case(kind: str, rows: int, many: bool, folder: Path, results: multiprocessing.SimpleQueue[str]) -> None:
    results.put(json.dumps((many_parts if many else big)(folder, rows, kind)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000, 50_000_000])
    parser.add_argument("--keys", nargs="+", choices=["int", "uuid"], default=["int", "uuid"])
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to build the indexes (default: a temporary folder)"
    )
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    cases = [(kind, rows, False) for kind in arguments.keys for rows in arguments.rows]
    cases += [(kind, min(arguments.rows), True) for kind in arguments.keys]
    for kind, rows, many in cases:
        folder = Path(tempfile.mkdtemp(prefix="key-lookup-", dir=arguments.folder))
        try:
            results = spawn.SimpleQueue()
            process = spawn.Process(target=case, args=(kind, rows, many, folder, results))
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"the case {kind} {rows} ended with {process.exitcode}")
            values = json.loads(results.get())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        label = f"{kind:4} {rows:>11,} rows {'in 2,000 parts' if many else ''}"
        print(label, "  ".join(f"{name} {value:,.1f}" for name, value in values.items()), flush=True)


if __name__ == "__main__":
    main()
