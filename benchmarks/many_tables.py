"""What tables cost that are maintained in one process: memory, processor, threads, files and requests to the store.

    python -m benchmarks.many_tables [--tables 100,500] [--seconds 60]

Each number of tables has a process of its own. *Idle* tables were written and settled before it began; *quiet* ones get one
batch each while they are maintained, are settled by this process, and are idle from then on. Memory (RSS) is what the process has
more than with one table. The processor's share and the requests are those of the seconds in which nothing happens. Requests are
counted where a bucket would be asked; the tables are on a local disk.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import orjson
import pyarrow as pa

import lakebed
from benchmarks.workload import table as print_table
from lakebed.compaction.maintenance import TableMaintainers
from lakebed.log.stores import LocalLogStore
from lakebed.table import internals_of

SCHEMA = pa.schema([
    pa.field("id", pa.int64(), nullable=False), ("customer", pa.string()), ("amount", pa.decimal128(12, 2)),
    ("note", pa.string()), ("updated_at", pa.timestamp("us", "UTC")),
])  # fmt: skip
BATCHES, ROWS = 2, 200
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tables", default="100,500")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long nothing happens")
    parser.add_argument("--load", nargs=3, metavar=("FOLDER", "TABLES", "KIND"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        place, count, kind = Path(args.load[0]), int(args.load[1]), args.load[2]
        if kind == "fill":
            filled(place, count)
        else:
            print(orjson.dumps(measured(place, count, kind, args.seconds)).decode())
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        counts = [int(each) for each in args.tables.split(",")]
        load = [sys.executable, "-m", "benchmarks.many_tables", "--seconds", str(args.seconds), "--load", folder]
        subprocess.run([*load, str(max(counts) + 1), "fill"], check=True)
        for kind in ("idle", "quiet"):
            for count in counts:
                done = subprocess.run([*load, str(count), kind], stdout=subprocess.PIPE, text=True, check=True)
                rows.append([kind, count, *orjson.loads(done.stdout.splitlines()[-1])])
    columns = ["", "tables", "KB a table", "% of a core", "requests a minute", "threads", "files", "CPU ms to open one"]
    print_table("Tables that one process maintains", columns, rows)


def filled(folder: Path, count: int) -> None:
    """Tables with some settled batches each."""
    for number in range(count):
        lake = lakebed.create(folder / f"t{number}", SCHEMA, keys=["id"], sequence_by="updated_at")
        for batch in range(BATCHES):
            lake.apply(changes(batch))
            lake.settle()


def changes(batch: int) -> pa.Table:
    ids = [batch * ROWS // 2 + row for row in range(ROWS)]
    return pa.table(
        {
            "id": ids, "customer": [f"customer {each}" for each in ids], "amount": [each * 100 for each in ids],
            "note": ["a note"] * ROWS, "updated_at": [1_700_000_000_000_000 + batch] * ROWS,
        },
        SCHEMA,
    )  # fmt: skip


def measured(folder: Path, count: int, kind: str, seconds: float) -> list[float]:
    """The figures of one process."""
    requests = Counter[str]()
    count_requests(requests)
    one = maintained(folder, range(count, count + 1), "quiet")  # what a process has once: engines, imports
    settle_down(one)
    memory, cpu = resident_kb(), time.process_time()
    all_tables = maintained(folder, range(count), kind)
    opened_ms = 1000 * (time.process_time() - cpu) / count
    settle_down(all_tables)
    grown = (resident_kb() - memory) / count
    requests.clear()
    cpu, began = time.process_time(), time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    share = 100 * (time.process_time() - cpu) / elapsed
    asked = sum(requests.values()) * 60 / elapsed
    files = len(os.listdir("/proc/self/fd"))
    out = [round(grown), round(share, 2), round(asked), threading.active_count(), files, round(opened_ms, 1)]
    for each in (one, all_tables):
        each.stop()
    return out


def maintained(folder: Path, numbers: range, kind: str) -> TableMaintainers:
    maintenance = TableMaintainers()
    for number in numbers:
        lake = lakebed.open(folder / f"t{number}")
        maintenance.add(internals_of(lake).duties())
        if kind == "quiet":
            lake.apply(changes(BATCHES))
    return maintenance


def settle_down(maintenance: TableMaintainers) -> None:
    """Wait until nothing is left to do but to wait."""
    for each in maintenance._tables.values():
        while each._pause < each._look_seconds[1] or (each.duties.log.newest and each.duties.log.newest.tail):
            time.sleep(0.1)
    gc.collect()
    time.sleep(1.0)


def count_requests(requests: Counter[str]) -> None:
    for name in ("read", "list_from", "put_if_absent", "put", "delete"):
        whole = getattr(LocalLogStore, name)

        def counted(*given: object, name: str = name, whole=whole, **named: object) -> object:  # type: ignore[no-untyped-def]
            requests[name] += 1
            return whole(*given, **named)

        setattr(LocalLogStore, name, counted)


def resident_kb() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


if __name__ == "__main__":
    main()
