"""What the log costs: a local commit, and following one more commit of a table of 10,000 parts.

python -m benchmarks.log [--parts 10000] [--commits 1000]
"""

from __future__ import annotations

import argparse
import tempfile
import time

import numpy as np
import pyarrow as pa

from benchmarks.workload import table
from lakebed.log.actions import AddPart, CommitInfo, Part
from lakebed.log.conflicts import BLIND
from lakebed.log.stores import open_store
from lakebed.log.table_log import Committed, TableLog
from lakebed.operations.create import create_log
from lakebed.settings import TableSettings

_STATS = (
    '{"numRecords":20000,"minValues":{"pk":%d,"region":"region-00"},'
    '"maxValues":{"pk":%d,"region":"region-19"},"nullCount":{"pk":0}}'
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=10_000)
    parser.add_argument("--commits", type=int, default=1000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        writer = TableLog(open_store(folder))
        schema = pa.schema([("pk", pa.int64()), ("region", pa.string())])
        outcome = create_log(writer, schema, TableSettings(), (), {}, "benchmark")
        assert isinstance(outcome, Committed)
        snapshot = outcome.snapshot
        parts = [AddPart(a_part(number)) for number in range(args.parts)]
        outcome = writer.commit(snapshot, parts, CommitInfo(operation="WRITE", commit_id=""), BLIND)
        assert isinstance(outcome, Committed)
        writer.write_checkpoint(outcome.snapshot)
        started = time.perf_counter()
        reader = TableLog(open_store(folder))
        reader.refresh()
        cold = time.perf_counter() - started
        commits, refreshes = [], []
        snapshot = outcome.snapshot
        for number in range(args.commits):
            started = time.perf_counter()
            outcome = writer.commit(
                snapshot,
                [AddPart(a_part(args.parts + number))],
                CommitInfo(operation="WRITE", commit_id="", blind_append=True),
                BLIND,
            )
            committed = time.perf_counter()
            assert isinstance(outcome, Committed)
            snapshot = outcome.snapshot
            reader.refresh()
            commits.append(committed - started)
            refreshes.append(time.perf_counter() - committed)
        rows: list[list[object]] = [
            [name, *(float(np.percentile(times, q)) * 1000 for q in (50, 99))]
            for name, times in (("local commit, file and folder synced", commits), ("refresh by one commit", refreshes))
        ]
        rows.append([f"first snapshot of {args.parts:,} parts from a checkpoint", cold * 1000, ""])
        table(f"The log of a table of {args.parts:,} parts", ["what", "p50 ms", "p99 ms"], rows)


def a_part(number: int) -> Part:
    stats = _STATS % (number * 20_000, number * 20_000 + 19_999)
    return Part(
        path=f"_lakebed/{number:032x}.parquet", rows=20_000, bytes=700_000, min_block=-1, max_block=-1, stats=stats
    )


if __name__ == "__main__":
    main()
