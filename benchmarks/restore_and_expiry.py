"""What a restore and an expiry of rows cost in a table of many parts: CPU seconds, commits, and files that are read.

    python -m benchmarks.restore_and_expiry --parts 10000

The parts are in the log and as empty files on a local disk: neither operation reads a part that comes back or leaves as a whole.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow as pa

import lakebed
from lakebed.log.actions import AddPart, CommitInfo, Part
from lakebed.log.conflicts import BLIND
from lakebed.log.table_log import Committed
from lakebed.table import internals_of

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def fill(table: lakebed.Table, parts: int) -> None:
    """Add parts whose rows are one hour old each more than the one before."""
    now, folder = datetime.datetime.now(datetime.UTC), Path(table.path) / "_lakebed"
    folder.mkdir(exist_ok=True)
    actions = []
    for number in range(parts):
        at = (now - datetime.timedelta(hours=number)).isoformat()
        bounds = {"minValues": {"id": number, "at": at}, "maxValues": {"id": number, "at": at}}
        stats = orjson.dumps({"numRecords": 1000, **bounds, "nullCount": {"id": 0, "at": 0}}).decode()
        path = f"_lakebed/{number:08}.parquet"
        (Path(table.path) / path).touch()
        actions.append(AddPart(Part(path=path, rows=1000, bytes=100_000, stats=stats)))
    log = internals_of(table).log
    outcome = log.commit(log.refresh(), actions, CommitInfo(operation="FILL", commit_id=""), BLIND)
    assert isinstance(outcome, Committed)


def measured(what: str, table: lakebed.Table, run: Callable[[], object]) -> None:
    """Run it and print what it cost."""
    before, cpu = table.version, time.process_time()
    run()
    print(f"| {what} | {time.process_time() - cpu:.2f} | {table.version - before} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=10_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakebed-benchmark-") as folder:
        table = lakebed.create(Path(folder) / "t", SCHEMA, properties={"lakebed.ttl": f"at: {asked.parts // 2} hours"})
        fill(table, asked.parts)
        full = table.version
        table.truncate()
        print(f"| {asked.parts:,} parts | CPU s | commits |\n| --- | --- | --- |")
        measured("restore all of them", table, lambda: table.restore(full))
        measured("restore again: nothing to do", table, lambda: table.restore(full))
        measured("half of them expire, unread", table, internals_of(table).row_expiry.run_due)
        measured("look for rows that expire: none", table, internals_of(table).row_expiry.run_due)


if __name__ == "__main__":
    main()
