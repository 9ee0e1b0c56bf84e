"""What readers of Iceberg cost a table of many parts: CPU, files and bytes of a publication, and dollars a day.

    python -m benchmarks.iceberg [--parts 10000] [--commits 900] [--row-ids | --loads 2000 | --ingest 2]

The table is made up: a log in memory whose parts have statistics of seven columns, and a third of them a deletion vector. Each
commit adds a part, and marks rows in four of the forty newest ones, as a settle of recent keys does.

``--loads``: instead, how long the service takes for so many loads of the table through Iceberg's REST catalog, over loopback, one
after the other: of metadata that it has read before, of metadata that is new each time (publishing it is not counted), and for a
caller who has it already.

``--ingest``: instead, so many rounds of a process that applies a batch of changes after the other to two real tables in turn,
settles each and merges: one has ``lakebed.iceberg``. CPU of the whole process, without Spark, whose own CPU would make the ratio
smaller. There is a publication each ten batches, as with a batch a second. Nothing waits.

``--row-ids``: instead, how much larger parts get if rows keep Iceberg's ``_row_id`` and ``_last_updated_sequence_number``: a real
table of orders of eight batches in random order, merged into one sorted part, without these columns, with one, with both.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import random
import statistics
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from typing import cast
from urllib.parse import urlsplit

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, table
from lakebed.http import Listening
from lakebed.iceberg.metadata import HOURS, METADATA_FOLDER, metadata_name
from lakebed.iceberg.publisher import Publisher
from lakebed.log.actions import Part
from lakebed.log.deletion_vector import bitmap, inline
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import LocalLogStore, MemoryLogStore
from lakebed.log.table_log import TableLog
from lakebed.operations.create import numbered_for_iceberg, protocol_for
from lakebed.schema.conversion import schema_to_json
from lakebed.schema.metadata import Metadata
from lakebed.service import app
from lakebed.service.app import Server, Service
from lakebed.service.catalog import Catalog
from lakebed.service.tokens import Role, Tokens
from lakebed.storage.part_storage import PartStorage
from lakebed.table import internals_of

_MARKED, _RECENT = 4, 40
_DOLLARS_A_PUT = 5e-6
_SECONDS = 10
_BASE_ROWS, _CHANGES = 500_000, 2_000
_LOAD = "/iceberg/v1/namespaces/shop/tables/orders"
_SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("region", pa.string()), ("status", pa.string()),
        ("amount", pa.decimal128(12, 2)), ("note", pa.string()), ("seq", pa.int64()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class _Root:
    """What a publication asks of a storage, if all vectors are in the log."""

    root: str = "/lake/orders"


def _kilobytes_by_kind(store: MemoryLogStore, names: set[str], commits: int) -> str:
    """What files of these names have a commit, by what their names begin with."""
    sizes = Counter[str]()
    for name in names:
        kind = "metadata" if name.endswith(".json") else name.partition("-")[0]
        sizes[kind] += len(store.read(f"{METADATA_FOLDER}/{name}"))
    return ", ".join(f"{kind} {size / 1000 / commits:.1f}" for kind, size in sizes.most_common())


def made_up(parts: int) -> Snapshot:
    """A version with so many parts."""
    protocol = protocol_for(_SCHEMA)
    properties = {"lakebed.iceberg": "on", "lakebed.keys": '["id"]', "lakebed.sort_key": '["region", "ts"]'}
    metadata = Metadata(
        id=str(uuid.uuid4()), schema_string=schema_to_json(_SCHEMA), partition_columns=(), configuration=properties
    )
    found = {part.path: part for part in map(_part, range(parts))}
    return Snapshot(
        version=parts,
        timestamp_ms=1_790_000_000_000,
        protocol=protocol,
        metadata=numbered_for_iceberg(metadata, protocol),
        parts=found,
    )


def _part(number: int) -> Part:
    first = {"id": number * 1000, "ts": "2026-01-01T00:00:00.000Z", "region": "eu", "status": "new", "amount": 1.5}
    last = {
        "id": number * 1000 + 999,
        "ts": "2026-01-02T00:00:00.000Z",
        "region": "us",
        "status": "paid",
        "amount": 99.5,
    }
    stats = {
        "numRecords": 1_000_000,
        "minValues": first | {"note": f"note {number}", "seq": number},
        "maxValues": last | {"note": f"note z{number}", "seq": number + 9},
        "nullCount": dict.fromkeys(_SCHEMA.names, 0),
    }
    part = Part(
        path=f"_lakebed/{uuid.UUID(int=random.getrandbits(128))}.parquet",
        rows=1_000_000,
        bytes=12_345_678 + number,
        level=1,
        min_block=number,
        max_block=number,
        sort_key_version=1,
        stats=orjson.dumps(stats).decode(),
    )
    return part.marked(inline(bitmap(range(number % 7 + 1)))) if number % 3 == 0 else part


def after_commit(snapshot: Snapshot) -> Snapshot:
    """The version after one more commit."""
    parts = dict(snapshot.parts)
    for path in random.sample(list(parts)[-_RECENT:], _MARKED):
        parts[path] = parts[path].marked(inline(bitmap(range(parts[path].dead_rows + 3))))
    new = _part(snapshot.version + 1)
    parts[new.path] = new
    return replace(
        snapshot, version=snapshot.version + 1, timestamp_ms=snapshot.timestamp_ms + _SECONDS * 1000, parts=parts
    )


def with_row_ids(rows: int = 1_000_000, batches: int = 8) -> None:
    """Print the size of a merged part with and without ids of rows."""
    keys = np.random.default_rng(1).permutation(rows)
    printed: list[list[object]] = []
    plain = 0.0
    for name, beside in (("none", ()), ("_row_id", ("row_id",)), ("both", ("row_id", "updated"))):
        work = Workload(rows)
        schema = pa.schema([*SCHEMA, *(pa.field(each, pa.int64()) for each in beside)])
        with tempfile.TemporaryDirectory() as folder:
            orders = lakebed.create(f"{folder}/orders", schema, keys=KEYS, sort_key=SORT_KEY)
            for number, some in enumerate(np.array_split(keys, batches)):
                batch = work.orders(some)
                ids = {"row_id": np.arange(len(some)) + number * len(some), "updated": np.full(len(some), number)}
                for each in beside:
                    batch = batch.append_column(each, pa.array(ids[each]))
                orders.apply(batch)
                orders.settle()
            orders.maintenance.recluster(final=True)
            parts = orders.inspect.parts()
        megabytes = pc.sum(parts["bytes"]).as_py() / 1e6
        plain = plain or megabytes
        printed.append([name, len(parts), megabytes, megabytes / plain])
    table("Ids of rows in merged parts", ["columns", "parts", "MB", "ratio"], printed)


def loads(parts: int, commits: int, requests: int) -> None:
    """Print how long loads take."""
    app.BURST_MAX = math.inf  # one caller asks as fast as it can
    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/shop/orders"
        snapshot, publisher = made_up(parts), Publisher(TableLog(LocalLogStore(root)), cast(PartStorage, _Root(root)))
        publisher.publish(snapshot)
        for _ in range(commits):  # so that there are as many snapshots as metadata ever has
            snapshot = after_commit(snapshot)
            publisher.publish(snapshot)
        server = Server(Service(Catalog([folder]), Tokens(tuple, nobody=Role.READER)), Listening(port=0))
        server.start()
        connection = HTTPConnection(urlsplit(server.url).netloc)
        printed: list[list[object]] = []
        for what, publishes, knows in (("known", False, False), ("new", True, False), ("nothing new", False, True)):
            found, tag, size = [], "", 0
            for _ in range(requests // (20 if publishes else 1)):
                if publishes:
                    snapshot = after_commit(snapshot)
                    publisher.publish(snapshot)
                began = time.perf_counter()
                connection.request("GET", _LOAD, headers={"If-None-Match": tag} if knows else {})
                answer = connection.getresponse()
                body = answer.read()
                found.append((time.perf_counter() - began) * 1000)
                assert answer.status == (304 if tag and knows else 200)
                tag, size = answer.headers["ETag"], max(size, len(body))
            found.sort()
            printed.append([what, statistics.median(found), found[int(0.99 * len(found))], found[-1], size / 1000])
        server.close()
    table(
        f"A load of a table of {parts:,} parts, milliseconds", ["metadata", "median", "p99", "slowest", "KB"], printed
    )


def ingest(rounds: int, batches: int) -> None:
    """Print the CPU of ingest and maintenance with publications beside that without."""
    _ingested(batches // 4)  # warms up
    found = [each for _ in range(rounds) for each in _ingested(batches)]
    logs = [math.log(on / off) for off, on, _ in found]
    middle, half = statistics.mean(logs), 2 * statistics.stdev(logs) / math.sqrt(len(logs))
    off, on, own = (sum(each) / rounds for each in zip(*found, strict=True))
    ends = f"{math.exp(middle - half):.3f} to {math.exp(middle + half):.3f}"
    table(
        f"{rounds} times {batches} batches of {_CHANGES:,} changes, a publication each {_SECONDS}; seconds of CPU",
        ["off", "on", "on ÷ off", "of ten batches, middle", "interval of 95 %", "on ÷ on without what published"],
        [[off, on, on / off, math.exp(middle), ends, on / (on - own)]],
    )


def _ingested(batches: int) -> list[tuple[float, float, float]]:
    """The CPU of each ten batches without publications, with them, and of what published."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        both = {is_on: _begun(f"{folder}/{is_on}", is_on) for is_on in (False, True)}
        gc.collect()
        out, took, own = [], {False: 0.0, True: 0.0}, 0.0
        for number in range(1, batches + 1):
            for is_on in (
                number % 2 == 0,
                number % 2 == 1,
            ):  # in turn, so that both meet the same of what is beside them
                (work, orders), started = both[is_on], time.process_time()
                orders.apply(work.batch(), DELETES, ["op"])
                orders.settle()
                if number % _SECONDS == 0:
                    orders.maintenance.compact()
                    before = time.process_time()
                    if is_on:
                        internals_of(orders).iceberg.publish_newest()
                    own += time.process_time() - before
                took[is_on] += time.process_time() - started
            if number % _SECONDS == 0:
                out.append((took[False], took[True], own))
                took, own = {False: 0.0, True: 0.0}, 0.0
        return out


def _begun(root: str, is_on: bool) -> tuple[Workload, lakebed.Table]:
    """A table with rows, whose first publication is done."""
    work = Workload(_BASE_ROWS, _CHANGES)
    orders = lakebed.create(root, SCHEMA, KEYS, SORT_KEY, properties={"lakebed.iceberg": "on" if is_on else "off"})
    orders.apply(work.base())
    orders.settle()
    internals_of(orders).iceberg.publish_newest()
    return work, orders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=int, default=10_000)
    parser.add_argument("--commits", type=int, default=900)
    parser.add_argument("--row-ids", action="store_true")
    parser.add_argument("--loads", type=int, metavar="N")
    parser.add_argument("--ingest", type=int, metavar="ROUNDS")
    options = parser.parse_args()
    if options.row_ids:
        return with_row_ids()
    if options.ingest:
        return ingest(options.ingest, options.commits)
    if options.loads:
        return loads(options.parts, options.commits, options.loads)
    random.seed(1)
    store, snapshot = MemoryLogStore(_Root.root), made_up(options.parts)
    log, storage = TableLog(store), cast(PartStorage, _Root())
    publisher = Publisher(log, storage)
    started = time.process_time()
    first = publisher.publish(snapshot)
    seconds = time.process_time() - started
    print(f"first: {seconds:.2f} s of CPU, {first.files:,} files, {first.bytes:,} bytes for {options.parts:,} parts")
    cpu, vectors, files, sizes = [], list[int](), [], []
    before = set(store.list_from(METADATA_FOLDER, ""))
    for _ in range(options.commits):
        snapshot = after_commit(snapshot)
        started = time.process_time()
        found = publisher.publish(snapshot)
        cpu.append(time.process_time() - started)
        vectors.append(_MARKED + (snapshot.version % 3 == 0))  # a new part may have one
        files.append(found.files - vectors[-1])
        sizes.append(found.bytes)
    names = set(store.list_from(METADATA_FOLDER, ""))
    print(
        f"a commit: {statistics.median(cpu) * 1000:.0f} ms of CPU (at most {max(cpu) * 1000:.0f}), "
        f"{statistics.mean(files):.2f} files besides {statistics.mean(vectors):.1f} vectors (at most {max(files)}; the five of "
        f"which one can't do without in {sum(each <= 5 for each in files) / len(files):.0%} of commits), "
        f"{statistics.mean(sizes) / 1000:.1f} KB (at most {max(sizes) / 1000:.1f}): "
        f"{_kilobytes_by_kind(store, names - before, options.commits)}"
    )
    puts = (statistics.mean(files) + statistics.mean(vectors)) * 86_400 / _SECONDS
    print(f"a day of a commit each {_SECONDS} s: {puts:,.0f} PUTs, ${puts * _DOLLARS_A_PUT:.2f}")
    print(f"files: {len(names):,}")
    for _ in range(HOURS):
        snapshot = replace(after_commit(snapshot), timestamp_ms=snapshot.timestamp_ms + 3_600_000)
        publisher.publish(snapshot)
    newest = store.read(metadata_name(publisher.newest().last))
    print(f"metadata with a snapshot of each of {HOURS} hours: {len(newest) / 1000:.1f} KB")
    started = time.process_time()
    Publisher(log, storage).publish(after_commit(snapshot))
    print(f"a process that begins: {time.process_time() - started:.2f} s of CPU")


if __name__ == "__main__":
    main()
