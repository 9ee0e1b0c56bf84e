"""What settling 20,000 changes costs as the table grows, with its key index warm; and the memory of this process.

    python -m benchmarks.settle [--rows 1000000 10000000 50000000] [--batches 12]

Memory: private bytes are this process's own; file-backed ones are the key index's mapped pages, which the system may drop.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, median, p95, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000, 50_000_000])
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.batches, Path(args.folder))))
        return
    rows: list[list[object]] = []
    for size in args.rows:
        with tempfile.TemporaryDirectory() as folder:
            build(size, Path(folder))
            # A process of its own, so that memory is the settling's and not the generator's.
            command = [
                sys.executable,
                "-m",
                "benchmarks.settle",
                "--one",
                str(size),
                "--batches",
                str(args.batches),
                "--folder",
                folder,
            ]
            found = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            )
        rows.append(
            [
                f"{size:,}",
                found["index_seconds"],
                median(found["settle"]),
                p95(found["settle"]),
                max(found["settle"]),
                median(found["apply"]),
                found["parts_marked"],
                found["private_mb"],
                found["file_mb"],
            ]
        )
    table(
        "Settling 20,000 changes",
        [
            "rows",
            "index built s",
            "settle median s",
            "p95 s",
            "max s",
            "apply (Arrow) s",
            "parts marked",
            "private MB",
            "file-backed MB",
        ],
        rows,
    )


def build(size: int, folder: Path) -> None:
    work = Workload(size)
    orders = lakebed.create(folder / "orders", SCHEMA, keys=KEYS, sort_key=SORT_KEY)
    for start in range(0, size, 1_000_000):
        orders.apply(work.base(start, min(size, start + 1_000_000)))
    for number in range(40):
        import pyarrow.feather as feather

        feather.write_feather(work.batch(), folder / f"batch-{number}.arrow")


def measure(size: int, batches: int, folder: Path) -> dict[str, object]:
    import pyarrow.feather as feather

    orders = lakebed.open(folder / "orders")
    started = time.perf_counter()
    orders.settle()
    index_seconds = time.perf_counter() - started
    apply_seconds, settle_seconds, marked = [], [], 0
    for number in range(3 + batches):
        changes = feather.read_table(folder / f"batch-{number}.arrow", memory_map=False)
        started = time.perf_counter()
        orders.apply(changes, apply_as_deletes=DELETES)
        applied = time.perf_counter()
        result = orders.settle()
        if number >= 3:
            apply_seconds.append(applied - started)
            settle_seconds.append(time.perf_counter() - applied)
            marked = result.base_parts_marked
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return {
        "index_seconds": index_seconds,
        "apply": apply_seconds,
        "settle": settle_seconds,
        "parts_marked": marked,
        "private_mb": int(status["RssAnon"].split()[0]) // 1024,
        "file_mb": int(status["RssFile"].split()[0]) // 1024,
    }


if __name__ == "__main__":
    main()
