"""What the processes of ``replicas`` run: a replica without Spark or as a streaming query, ``lakebed maintain``, or a writer.

    python -m tests.end_to_end.replica_process replica|reader|query|maintain|writer <table> <lease seconds> <writer>

A reader is a replica that also reads the table again and again as readers on its host do, and compares.

Each ends in good order by SIGTERM. A writer goes on after the last batch that it committed, doing that one once more.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import tempfile
import threading
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa

import lakebed
from lakebed import events
from lakebed.compaction.compaction import Compaction
from lakebed.errors import Retry, VersionNotFound
from lakebed.log.entries import NAMED_BATCH
from lakebed.log.snapshot import Snapshot
from lakebed.merge.materialized import REPLICATED
from lakebed.table import internals_of
from tests.internals import log_of
from tests.oracle import in_order

KEYS, CHANGES, PAUSE_SECONDS = 600, 80, 0.4
SCHEMA = pa.schema(
    [pa.field("writer", pa.int64(), nullable=False), pa.field("id", pa.int64(), nullable=False), ("note", pa.string())]
)
READY, TRY_AGAIN = "ready", "will try again"
READ_SECONDS, DIFFERS, READ_REPLICATED = 0.3, "the rows differ", "read a replicated part"


def changes_of(writer: int, batch: int) -> list[dict[str, Any]]:
    """The same changes every time: a quarter are deletes, keys come more than once and are the writer's own."""
    chance = random.Random(f"{writer}.{batch}")
    return [
        {"writer": writer, "id": chance.randrange(KEYS), "note": f"{batch}.{row}", "op": chance.choice("uuud")}
        for row in range(CHANGES)
    ]


def batch_name(writer: int, batch: int) -> str:
    """Numbers alone would be one row of batches for the whole table; names are each writer's own."""
    return f"writer {writer} batch {batch}"


def committed(snapshot: Snapshot, writer: int) -> int:
    """How many batches the writer has committed."""
    return next(n for n in count() if snapshot.transaction_version(NAMED_BATCH + batch_name(writer, n)) < 0)


def write(path: str, writer: int, stop: threading.Event) -> None:
    table = lakebed.open(path)
    batch = max(0, committed(log_of(table).refresh(), writer) - 1)
    while not stop.is_set():
        try:
            changes = pa.Table.from_pylist(changes_of(writer, batch))
            table.apply(changes, apply_as_deletes="op = 'd'", batch_id=batch_name(writer, batch))
        except Retry as error:
            print(f"batch {batch} {TRY_AGAIN}: {error}", flush=True)
        else:
            batch += 1
        stop.wait(PAUSE_SECONDS)


def read(path: str, table: lakebed.Table, stop: threading.Event) -> None:
    """Compare what is read here with what is read from the store alone."""
    with tempfile.TemporaryDirectory() as nothing:
        mine = os.environ["LAKEBED_CACHE_DIR"]
        os.environ["LAKEBED_CACHE_DIR"] = nothing
        elsewhere = lakebed.open(path)
        os.environ["LAKEBED_CACHE_DIR"] = mine
        while not stop.wait(READ_SECONDS):
            try:
                newest = log_of(table).refresh()
                files = internals_of(table).view.pin(newest).files
                for version in (newest.version, max(0, newest.version - 10)):
                    rows = [in_order(each.to_arrow(version=version).to_pylist()) for each in (table, elsewhere)]
                    if rows[0] != rows[1]:
                        print(f"{DIFFERS} at version {version}", flush=True)
            except (Retry, VersionNotFound):
                continue
            except duckdb.Error:
                if stop.is_set():
                    return  # the end of the process interrupts a query
                raise
            if any(f"/{REPLICATED}/" in file.path for file in files):
                print(READ_REPLICATED, flush=True)


def query(path: str, stop: threading.Event) -> None:
    spark = lakebed.spark("replica", "local[1]", s3=False)
    maintenance = lakebed.open(path).maintain(spark, as_query=True)
    while not stop.wait(0.1):
        maintenance.awaitTermination(0)
    maintenance.stop()
    spark.stop()


def main() -> None:
    role, path, lease_seconds, writer = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s", stream=sys.stdout)
    Compaction.lease_seconds = float(lease_seconds)
    events.listen(lambda event: print(event, flush=True) if isinstance(event, events.MergeFailed) else None)
    if role == "maintain":
        from lakebed.cli import main as command

        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # until the command takes its signals itself
        print(READY, flush=True)
        sys.exit(command(["maintain", path]))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    print(READY, flush=True)
    if role in ("replica", "reader"):
        table = lakebed.open(path)
        if role == "reader":
            threading.Thread(target=read, args=(path, table, stop), daemon=True).start()
        internals_of(table).follow(stop)
    elif role == "query":
        query(path, stop)
    else:
        write(path, int(writer), stop)


if __name__ == "__main__":
    main()
