"""What readers of Iceberg cost a table of many parts: CPU, files and bytes of a publication, and dollars a day.

    python -m benchmarks.iceberg [--parts 10000] [--commits 150] [--row-ids]

The table is made up: a log in memory whose parts have statistics of seven columns, and a third of them a deletion vector. Each
commit adds a part, and marks rows in four of the forty newest ones, as a settle of recent keys does.

``--row-ids``: instead, how much larger parts get if rows keep Iceberg's ``_row_id`` and ``_last_updated_sequence_number``: a real
table of orders of eight batches in random order, merged into one sorted part, without these columns, with one, with both.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
import uuid
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

import lakebed
from benchmarks.workload import KEYS, SCHEMA, SORT_KEY, Workload, table
from lakebed.iceberg.publisher import METADATA_FOLDER, Publisher
from lakebed.log.actions import Part
from lakebed.log.deletion_vector import bitmap, inline
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import MemoryLogStore
from lakebed.log.table_log import TableLog
from lakebed.operations.create import numbered_for_iceberg, protocol_for
from lakebed.schema.conversion import schema_to_json
from lakebed.schema.metadata import Metadata
from lakebed.storage.part_storage import PartStorage

_MARKED, _RECENT = 4, 40
_DOLLARS_A_PUT = 5e-6
_SECONDS = 10
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=int, default=10_000)
    parser.add_argument("--commits", type=int, default=150)
    parser.add_argument("--row-ids", action="store_true")
    options = parser.parse_args()
    if options.row_ids:
        return with_row_ids()
    random.seed(1)
    store, snapshot = MemoryLogStore(_Root.root), made_up(options.parts)
    log, storage = TableLog(store), cast(PartStorage, _Root())
    publisher = Publisher(log, storage)
    started = time.process_time()
    first = publisher.publish(snapshot)
    seconds = time.process_time() - started
    print(f"first: {seconds:.2f} s of CPU, {first.files:,} files, {first.bytes:,} bytes for {options.parts:,} parts")
    cpu, vectors, files, sizes = [], list[int](), [], []
    for _ in range(options.commits):
        snapshot = after_commit(snapshot)
        started = time.process_time()
        found = publisher.publish(snapshot)
        cpu.append(time.process_time() - started)
        vectors.append(_MARKED + (snapshot.version % 3 == 0))  # a new part may have one
        files.append(found.files - vectors[-1])
        sizes.append(found.bytes)
    print(
        f"a commit: {statistics.median(cpu) * 1000:.0f} ms of CPU (at most {max(cpu) * 1000:.0f}), "
        f"{statistics.mean(files):.1f} files besides {statistics.mean(vectors):.1f} vectors (at most {max(files)}), "
        f"{statistics.mean(sizes) / 1000:.1f} KB (at most {max(sizes) / 1000:.1f})"
    )
    puts = (statistics.mean(files) + statistics.mean(vectors)) * 86_400 / _SECONDS
    print(f"a day of a commit each {_SECONDS} s: {puts:,.0f} PUTs, ${puts * _DOLLARS_A_PUT:.2f}")
    names = store.list_from(METADATA_FOLDER, "")
    print(f"files: {len(names):,}")
    started = time.process_time()
    Publisher(log, storage).publish(after_commit(snapshot))
    print(f"a process that begins: {time.process_time() - started:.2f} s of CPU")


if __name__ == "__main__":
    main()
