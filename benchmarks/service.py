"""What the service takes to answer, over loopback: describing a table, planning a scan of it.

    python -m benchmarks.service [--parts 100 10000] [--requests 1000]

The table has so many parts in its log (the files are not there), read from a checkpoint. A client asks one after the other on one
connection. ``a new version each time``: somebody commits a part before each request, so the service reads a commit and makes the
description anew. ``cpu``: processor time of the process for a request, of client and server together.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lakebed
from benchmarks.ui import many_parts
from benchmarks.workload import table
from lakebed.client import RemoteTable
from lakebed.http import Listening
from lakebed.log.actions import AddPart, CommitInfo, Part
from lakebed.log.conflicts import BLIND
from lakebed.log.table_log import Committed
from lakebed.service import app
from lakebed.service.app import Server, Service
from lakebed.service.catalog import Catalog
from lakebed.service.tokens import Role, Tokens
from lakebed.table import internals_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--requests", type=int, default=1_000)
    options = parser.parse_args()
    app.BURST_MAX = math.inf  # one caller asks as fast as it can
    rows = []
    for parts in options.parts:
        with tempfile.TemporaryDirectory() as folder:
            rows += measured(Path(folder), parts, options.requests)
    table("A request, milliseconds", ["parts", "request", "median", "p99", "slowest", "cpu"], rows)


def measured(folder: Path, parts: int, requests: int) -> list[list[object]]:
    made = many_parts(folder / "orders", parts)
    log = internals_of(made).log
    server = Server(Service(Catalog([str(folder)]), Tokens(tuple, nobody=Role.READER)), Listening(port=0))
    server.start()
    remote = lakebed.connect(server.url).table("orders")
    snapshot = log.refresh()

    def commit(number: int) -> None:
        nonlocal snapshot
        part = Part(path=f"_lakebed/new-{number}.parquet", rows=1, bytes=1, modified_ms=int(time.time() * 1000))
        outcome = log.commit(snapshot, [AddPart(part)], CommitInfo(operation="WRITE", commit_id=""), BLIND)
        assert isinstance(outcome, Committed)
        snapshot = outcome.snapshot

    asked: list[tuple[str, Callable[[RemoteTable], object], Callable[[int], None], int]] = [
        ("describe", lambda one: one.describe(), lambda number: None, requests),
        ("describe, a new version each time", lambda one: one.describe(), commit, requests // 4),
        (
            "scan of a narrow range",
            lambda one: one.scan(where="key between 500 and 505", settled=True),
            lambda number: None,
            requests // 4,
        ),
        ("one page of the parts", lambda one: one.get("parts", limit=100), lambda number: None, requests // 10),
    ]
    try:
        return [[parts, what, *times(remote, ask, before, count)] for what, ask, before, count in asked]
    finally:
        server.close()


def times(
    remote: RemoteTable, ask: Callable[[RemoteTable], object], before: Callable[[int], None], count: int
) -> list[object]:
    """Median, 99th percentile, slowest and processor time of a request, in milliseconds."""
    ask(remote)
    found, cpu = [], 0.0
    for number in range(count):
        before(number)
        began, used = time.perf_counter(), time.process_time()
        ask(remote)
        found.append((time.perf_counter() - began) * 1000)
        cpu += (time.process_time() - used) * 1000
    found.sort()
    p99 = found[min(len(found) - 1, int(0.99 * len(found)))]
    return [round(each, 1) for each in (statistics.median(found), p99, found[-1], cpu / count)]


if __name__ == "__main__":
    main()
