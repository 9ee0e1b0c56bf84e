"""How fast base parts are merged on one core, and in how much memory, against pyarrow's own way for scale.

    python -m benchmarks.merge [--millions 1 3 10] [--wide]

A merge of n million rows reads n parts of a million orders each and 20 level-0 parts of 20,000 changes, a tenth of all rows
dead, sorted by (region, ts); every source spans the whole sort key. Each task runs in a process of its own with one
thread and a memory limit of 512 MB; figures are a CPU second's, MB those of compressed input. ``private MB`` is the peak of
the process's private memory, Python and its libraries included. ``--wide``: notes are 200 characters that compress to 150
bytes, so that bytes and not rows are what a merge costs.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from benchmarks.workload import KEYS, SCHEMA, SORT_KEY, Workload, table
from lakebed.merge.kernel import MergeSource, merge_parts
from lakebed.parts.changes import WriteSpec
from lakebed.parts.write import write_parts
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect

MEMORY_BYTES_MAX = 512 << 20
SHAPE = WriteSpec(schema=SCHEMA, keys=tuple(KEYS), sort_key=tuple(SORT_KEY))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--millions", type=int, nargs="+", default=[1, 3, 10])
    arguments.add_argument(
        "--task", type=int, help="only merge so many million rows, here, and print the figures as JSON"
    )
    arguments.add_argument("--pyarrow", action="store_true", help="with --task: by pyarrow")
    arguments.add_argument("--wide", action="store_true", help="rows of some 160 compressed bytes instead of 12")
    options = arguments.parse_args()
    if options.task:
        print(orjson.dumps(task(options.task, options.pyarrow, options.wide)).decode())
        return
    rows: list[list[object]] = []
    for millions in options.millions:
        for way in ("merge_parts", "pyarrow"):
            command = [sys.executable, "-m", "benchmarks.merge", "--task", str(millions)]
            done = subprocess.run(
                command + ["--pyarrow"] * (way == "pyarrow") + ["--wide"] * options.wide,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            figures = orjson.loads(done.stdout.splitlines()[-1])
            rows.append(
                [way, f"{millions} M", *(figures[name] for name in ("rows_s", "mb_s", "seconds", "private_mb"))]
            )
    table(
        f"Merge, one core{', wide rows' if options.wide else ''}",
        ["way", "rows in", "rows/s", "MB/s", "CPU s", "private MB"],
        rows,
    )


def task(millions: int, by_pyarrow: bool, is_wide: bool) -> dict[str, float]:
    """One merge: its speed and its peak of private memory."""
    with tempfile.TemporaryDirectory() as folder:
        pa.set_cpu_count(1)
        sources = _sources(folder, millions, is_wide)
        private = _Peak()
        with private.watched():
            started = time.process_time()
            if by_pyarrow:
                _pyarrow(sources, folder)
            else:
                merge_parts(sources, SHAPE, open_part_storage(folder), connect(MEMORY_BYTES_MAX, 1))
            seconds = time.process_time() - started
        rows, size = sum(source.part.rows for source in sources), sum(source.part.bytes for source in sources)
        return {
            "rows_s": round(rows / seconds),
            "mb_s": size / seconds / 1e6,
            "seconds": seconds,
            "private_mb": private.mb,
        }


def _sources(folder: str, millions: int, is_wide: bool) -> list[MergeSource]:
    storage = open_part_storage(folder)
    workload, rng = Workload(millions * 1_000_000), np.random.default_rng(1)
    tables = (workload.base(at * 1_000_000, (at + 1) * 1_000_000) for at in range(millions))
    batches = (workload.batch().drop_columns(["op"]) for _ in range(20))
    parts = [
        written.base_part(has_op_column=False)
        for rows in itertools.chain(tables, batches)
        for written in write_parts(_widened(rows, rng) if is_wide else rows, SHAPE, storage)
    ]
    dead = [BitMap64(rng.choice(part.rows, part.rows // 10, replace=False).astype(np.uint64)) for part in parts]
    return [
        MergeSource(part, gone, False, storage.duckdb_url(part.path)) for part, gone in zip(parts, dead, strict=True)
    ]


def _widened(rows: pa.Table, rng: np.random.Generator) -> pa.Table:
    text = base64.b64encode(rng.bytes(150 * len(rows)))
    notes = pa.FixedSizeBinaryArray.from_buffers(pa.binary(200), len(rows), [None, pa.py_buffer(text)])
    return rows.set_column(rows.column_names.index("note"), "note", notes.cast(pa.binary()).cast(pa.string()))


def _pyarrow(sources: list[MergeSource], folder: str) -> None:
    """Everything in memory, sorted, and written as one file."""
    pieces = []
    for source in sources:
        alive = np.ones(source.part.rows, dtype=bool)
        alive[np.array(source.dead.to_array(), dtype=np.uint64)] = False
        pieces.append(pq.read_table(source.url, partitioning=None, use_threads=False).filter(pa.array(alive)))
    rows = pa.concat_tables(pieces).sort_by([(name, "ascending") for name in SORT_KEY])
    pq.write_table(rows, Path(folder, "pyarrow.parquet"), compression="zstd", row_group_size=122_880)


class _Peak:
    """The most private memory that this process had, looked at every 20 ms."""

    def __init__(self) -> None:
        self.mb = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
                self.mb = max(self.mb, (resident - shared) * 4096 / 1e6)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


if __name__ == "__main__":
    main()
