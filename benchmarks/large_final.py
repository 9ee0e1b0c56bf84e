"""Memory of `recluster --final` over data much larger than it: parts in random order, sorted as a whole.

    python -m benchmarks.large_final [--gb 10] [--part-mb 64] [--row-bytes 400]

Rows have an id, a sort column in random order, and random bytes that do not compress, so a gigabyte of rows is one of files.
They come in parts of ``part-mb``. A process of its own runs the job with default settings; its memory is looked at 20 times a
second. "private" is what it can't give back (RssAnon), "resident" has the pages of mapped files too, which the system
may take away. The baseline is the process with the table open.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from multiprocessing.queues import Queue
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakebed
from benchmarks.workload import table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gb", type=float, default=10.0)
    parser.add_argument("--part-mb", type=int, default=64)
    parser.add_argument("--row-bytes", type=int, default=400)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = str(Path(folder, "cache"))
        lake, rows = fill(Path(folder, "table"), args)
        size = sum(lake.inspect.parts()["bytes"].to_pylist())
        before = lake.inspect.clustering().to_pylist()[0]["average_depth"]
        answers: Queue[dict[str, float]] = multiprocessing.get_context("spawn").Queue()
        job = multiprocessing.get_context("spawn").Process(target=final, args=(lake.path, answers))
        job.start()
        answer = answers.get(timeout=7200)
        job.join()
        after = lake.inspect.clustering().to_pylist()[0]
        assert sum(lake.inspect.parts()["rows"].to_pylist()) == rows
        header = [
            "rows",
            "GB",
            "depth",
            "then",
            "written",
            "minutes",
            "private MB before",
            "at most",
            "resident MB at most",
        ]
        table(
            f"recluster --final over {args.gb:g} GB in parts of {args.part_mb} MB",
            header,
            [
                [
                    f"{rows:,}",
                    size / 1e9,
                    before,
                    after["average_depth"],
                    answer["written"] / size,
                    answer["seconds"] / 60,
                    answer["before"],
                    answer["private"],
                    answer["resident"],
                ]
            ],
        )


def fill(path: Path, args: argparse.Namespace) -> tuple[lakebed.Table, int]:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("body", pa.binary())])
    lake = lakebed.create(path, schema, sort_key=["at"])
    rng, per_part = np.random.default_rng(3), args.part_mb * 1_000_000 // args.row_bytes
    parts = max(2, round(args.gb * 1000 / args.part_mb))
    body = args.row_bytes - 16
    for number in range(parts):
        offsets = np.arange(0, (per_part + 1) * body, body, dtype=np.int32)
        bodies = pa.Array.from_buffers(
            pa.binary(), per_part, [None, pa.py_buffer(offsets), pa.py_buffer(rng.bytes(per_part * body))]
        )
        ids = np.arange(number * per_part, (number + 1) * per_part)
        lake.apply(pa.table({"id": ids, "at": rng.integers(0, 1 << 62, per_part), "body": bodies}))
        if number % 20 == 19:
            print(f"{number + 1} of {parts} parts", flush=True)
    return lake, parts * per_part


def final(path: str, answers: Queue[dict[str, float]]) -> None:
    lake = lakebed.open(path)
    lake.inspect.detail()
    answer = {"before": memory_mb("RssAnon"), "private": 0.0, "resident": 0.0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            answer["private"] = max(answer["private"], memory_mb("RssAnon"))
            answer["resident"] = max(answer["resident"], memory_mb("VmRSS"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    result = lake.maintenance.recluster(final=True, on_progress=lambda news: print(news, flush=True))
    answer["seconds"] = time.perf_counter() - started
    done.set()
    watcher.join()
    answer["written"] = result.bytes_out
    answers.put(answer)


def memory_mb(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
