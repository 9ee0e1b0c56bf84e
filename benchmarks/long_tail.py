"""A view over a long tail: time and memory to resolve it, for tails of many small and of few large change parts.

    python -m benchmarks.long_tail --base 1000000 --tails 2000x500,20x50000

Every tail is resolved in a process of its own, whose peak memory is the process's, without what it held before.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload
from lakebed.ingest.batch_writer import Written, commit_written, write_arrow
from lakebed.log.entries import Operation
from lakebed.parts.changes import prepare, write_spec_of
from lakebed.parts.write import WrittenPart
from lakebed.storage.engine import connect
from lakebed.table import internals_of


def make(path: str, base: int, parts: int, rows: int) -> None:
    """A settled base, and a tail of many parts in one commit."""
    workload = Workload(base, rows)
    orders = lakebed.create(path, SCHEMA, KEYS, SORT_KEY, sequence_by="seq")
    for start in range(0, base, 1_000_000):
        orders.apply(workload.base(start, min(base, start + 1_000_000)))
    orders.settle()
    snapshot = internals_of(orders).log.refresh()
    spec = write_spec_of(snapshot)
    written: list[WrittenPart] = []
    for _ in range(parts):
        changes = prepare(workload.batch(), spec, connect(), DELETES)
        written += write_arrow(changes, spec, orders.path).parts
    commit_written(internals_of(orders).log, snapshot, Written(parts=tuple(written)), None, Operation.APPLY)


def view(path: str, answers: multiprocessing.Queue[tuple[float, float, int]]) -> None:
    """Seconds to resolve the tail, MB of memory that it took at most, and rows of the tail."""
    orders = lakebed.open(path)
    snapshot = internals_of(orders).log.refresh()
    before = _memory_mb("VmRSS")
    started = time.perf_counter()
    internals_of(orders).view.pin(snapshot)
    seconds = time.perf_counter() - started
    answers.put((seconds, _memory_mb("VmHWM") - before, sum(part.rows for part in snapshot.tail.values())))


def _memory_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=int, default=1_000_000)
    parser.add_argument("--tails", default="2000x500,20x50000")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    for tail in options.tails.split(","):
        parts, rows = map(int, tail.split("x"))
        with tempfile.TemporaryDirectory() as folder:
            make(f"{folder}/orders", options.base, parts, rows)
            found = []
            for _ in range(options.runs):
                answers = spawn.Queue()
                process = spawn.Process(target=view, args=(f"{folder}/orders", answers))
                process.start()
                found.append(answers.get())
                process.join()
        seconds, megabytes, tail_rows = np.median(np.array(found), axis=0)
        print(
            f"{parts} parts of {rows} changes: {tail_rows:,.0f} rows resolved in {seconds:.2f} s, {megabytes:.0f} MB, "
            f"{megabytes * 2**20 / tail_rows:.0f} bytes a row"
        )


if __name__ == "__main__":
    main()
