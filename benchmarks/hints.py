"""What a day of looks at idle tables costs, with and without hints: ``python -m benchmarks.hints [--tables 200]``.

A worker's ``Watched`` looks at each table as in a fleet, on the local disk; only the clock is moved from one look to the next, so
the day takes as long as its looks do. Looks are counted as they are made. Prices are S3's, for 10,000 tables.

*A false hint a second*: somebody says of every table, all day long, that it has changed, and it never has.
"""

from __future__ import annotations

import argparse
import heapq
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from benchmarks.workload import table as print_table
from lakebed.compaction.maintenance import TableMaintainers
from lakebed.coordination.log_cache import LogCache
from lakebed.discovery import SECONDS_MAX
from lakebed.fleet import watched
from lakebed.fleet.membership import BEAT_SECONDS, READ_DOLLARS, day_of_looks
from lakebed.fleet.watched import Watched
from lakebed.fleet.worker import DISCOVERY_SECONDS
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.operations.create import NewTable, create

DAY_SECONDS = 86_400.0
DAYS_AGO = 10
PRICED = 10_000
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def main() -> None:
    """Print the looks of a day, and what they cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, default=200)
    tables = parser.parse_args().tables
    then = time.time() - DAYS_AGO * DAY_SECONDS
    with tempfile.TemporaryDirectory() as folder:
        roots = [f"{folder}/t{number}" for number in range(tables)]
        for root in roots:
            Path(root).mkdir()
            create(root, TableLog(open_store(root), clock=lambda: then), NewTable(schema=SCHEMA, keys=("id",)))
        rows = []
        for name, seconds, hint_seconds in (
            ("no hints", SECONDS_MAX, None),
            ("hints, --look-seconds 3600", 3600.0, None),
            ("a false hint a second", SECONDS_MAX, 1.0),
            ("a false hint a second, --look-seconds 3600", 3600.0, 1.0),
        ):
            looks = looks_of_a_day(roots, seconds, hint_seconds) / tables
            rest = day_of_looks(
                PRICED, look_seconds=seconds, beat_seconds=BEAT_SECONDS, discovery_seconds=DISCOVERY_SECONDS
            )
            dollars = looks * PRICED * READ_DOLLARS
            others = rest.dollars - rest.looks * READ_DOLLARS
            rows.append([name, round(looks), f"{looks * PRICED:,.0f}", f"{dollars:.2f}", f"{dollars + others:.2f}"])
    columns = ["", "looks at a table", f"at {PRICED:,}", "$ of these", "$ of all requests"]
    print_table(f"A day of looks at {tables} tables to which nothing comes", columns, rows)


def looks_of_a_day(roots: list[str], look_seconds: float, hint_seconds: float | None) -> int:
    """How often tables are looked at; ``hint_seconds``: so often somebody says that each has changed."""
    now = [1e6]
    fake: Any = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    watched.time = fake  # type: ignore[attr-defined]
    logs, maintenance = LogCache(64 << 20), TableMaintainers()
    tables = [Watched(root, logs, maintenance, lambda tier: True, look_seconds=look_seconds) for root in roots]
    due = [(now[0] + number / len(tables), number) for number in range(len(tables))]
    end = now[0] + DAY_SECONDS
    while due[0][0] < end:
        now[0], number = heapq.heappop(due)
        pause = tables[number].look()
        assert pause is not None and tables[number].error is None and not tables[number].is_active
        if hint_seconds is not None:
            now[0] += hint_seconds  # the next hint comes so much later, and is looked for when it may be
            pause = min(pause, hint_seconds + (tables[number].hinted() or 0.0))
            now[0] -= hint_seconds
        heapq.heappush(due, (now[0] + pause, number))
    maintenance.stop()
    watched.time = time  # type: ignore[attr-defined]
    return sum(each.looks for each in tables)


if __name__ == "__main__":
    main()
