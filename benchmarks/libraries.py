"""What we wrote ourselves beside the library that does the same: the figures of the ADRs in docs/adr.

    python -m benchmarks.libraries [log] [s3] [base64] [bucket] [curve]

Without arguments all of it. Libraries that lakebed does not need are measured if they can be imported, and named if not:
pip install obstore mmh3 pyiceberg-core numpy-hilbert-curve. Of the log and of S3 times are medians, and other work on the machine
counts; the others are the least CPU time of some rounds.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import ModuleType

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from benchmarks.log import a_part
from benchmarks.workload import Workload, table
from lakebed.decode.json.encoded_columns import to_decimal
from lakebed.log.actions import AddPart, CommitInfo
from lakebed.log.conflicts import BLIND
from lakebed.log.stores import open_store
from lakebed.log.table_log import Committed, TableLog
from lakebed.operations.create import create_log
from lakebed.settings import TableSettings
from lakebed.sortkey.order_values import hilbert, murmur3
from lakebed.storage.data_files import open_part_storage
from tests.infra.downloads import _run, fetch_once
from tests.infra.fault_proxy import FaultProxy
from tests.infra.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server, aws_environment

ROUNDS = 7
VALUES = 1_000_000
COMMITS = 200
PARTS = (0, 10_000)
READS = 100
RANGE_BYTES = 256 << 10
DELAYS_MS = (0, 20)
HTTPFS = ("duckdb==1.4.4", "duckdb-ext==0.1.2", "duckdb-ext-httpfs==1.4.4.20260205")
SCHEMA = pa.schema([("pk", pa.int64()), ("region", pa.string())])

Rows = list[list[object]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", choices=[*MEASURED, []])
    for name in parser.parse_args().what or MEASURED:
        MEASURED[name]()


def seconds(ways: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """The least CPU time of each way, all ways in turn within a round."""
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.process_time()
            way()
            least[name] = min(least[name], time.process_time() - started)
    return least


def optional(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"({name} is not installed)", file=sys.stderr)
        return None


# -- the log -----------------------------------------------------------------------------------------------------------


def log() -> None:
    """A commit of one part, following one, and a checkpoint: our log on our table, delta-rs on a plain one."""
    rows: Rows = []
    for parts in PARTS:
        with tempfile.TemporaryDirectory() as folder:
            rows += [[f"{parts:,}", "lakebed", *our_log(f"{folder}/ours", parts)]]
            rows += [[f"{parts:,}", f"delta-rs {deltalake.__version__}", *delta_rs(f"{folder}/theirs", parts)]]
    table("A log on local disk, milliseconds", ["parts", "", "commit", "follow a commit", "open", "checkpoint"], rows)


def our_log(path: str, parts: int) -> list[object]:
    writer = TableLog(open_store(path))
    outcome = create_log(writer, SCHEMA, TableSettings(), (), {}, "benchmark")
    assert isinstance(outcome, Committed)
    outcome = writer.commit(
        outcome.snapshot, [AddPart(a_part(n)) for n in range(parts)], CommitInfo(operation="WRITE", commit_id=""), BLIND
    )
    assert isinstance(outcome, Committed)
    snapshot = outcome.snapshot
    checkpoint = median_ms(lambda _: writer.write_checkpoint(snapshot), range(ROUNDS))
    opened = median_ms(lambda _: TableLog(open_store(path)).refresh(), range(ROUNDS))
    reader = TableLog(open_store(path))
    reader.refresh()
    commits, follows = [], []
    for number in range(parts, parts + COMMITS):
        started = time.perf_counter()
        outcome = writer.commit(
            snapshot, [AddPart(a_part(number))], CommitInfo(operation="WRITE", commit_id="", blind_append=True), BLIND
        )
        committed = time.perf_counter()
        assert isinstance(outcome, Committed)
        snapshot = outcome.snapshot
        reader.refresh()
        commits.append(committed - started)
        follows.append(time.perf_counter() - committed)
    return [statistics.median(commits) * 1000, statistics.median(follows) * 1000, opened, checkpoint]


def delta_rs(path: str, parts: int) -> list[object]:
    writer = deltalake.DeltaTable.create(path, SCHEMA)

    def add(numbers: Iterable[int]) -> None:
        found = [a_part(number) for number in numbers]
        actions = [AddAction(part.path, part.bytes, {}, 0, True, part.stats or "") for part in found]
        writer.create_write_transaction(actions, "append", SCHEMA)

    if parts:
        add(range(parts))
    checkpoints = []
    for number in range(ROUNDS):  # of a version that has one already delta-rs writes none
        add([-1 - number])
        writer.update_incremental()
        started = time.perf_counter()
        writer.create_checkpoint()
        checkpoints.append(time.perf_counter() - started)
    opened = median_ms(lambda _: deltalake.DeltaTable(path), range(ROUNDS))
    commits, follows = [], []
    for number in range(parts, parts + COMMITS):
        started = time.perf_counter()
        add([number])
        committed = time.perf_counter()
        writer.update_incremental()
        commits.append(committed - started)
        follows.append(time.perf_counter() - committed)
    milliseconds = [statistics.median(times) * 1000 for times in (commits, follows, checkpoints)]
    return [*milliseconds[:2], opened, milliseconds[2]]


def median_ms(step: Callable[[int], object], numbers: Iterable[int]) -> float:
    times = []
    for number in numbers:
        started = time.perf_counter()
        step(number)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


# -- S3 ----------------------------------------------------------------------------------------------------------------


def s3() -> None:
    """A range of 256 KB from an S3 server on loopback, and a query of eight parts that DuckDB reads twice."""
    ranges: Rows = []
    queries: Rows = []
    with S3Server() as server, FaultProxy(server.ports[0]) as proxy, aws_environment(proxy.endpoint):
        bucket = server.create_bucket()
        root = f"s3://{bucket}/parts"
        storage = open_part_storage(root)
        work = Workload(1_000_000)
        for part in range(8):
            rows = work.base(part * 100_000, (part + 1) * 100_000)
            storage.write_file(f"{part}.parquet", partial(pq.write_table, rows, row_group_size=40_960))
        for delay in DELAYS_MS:
            proxy.delay_seconds = delay / 1000
            ranges += [[delay, *row] for row in range_reads(proxy, bucket)]
            queries += [[delay, "lakebed", *our_query(proxy, root)]]
            queries += [[delay, f"httpfs, DuckDB {HTTPFS[0][8:]}", *httpfs_query(proxy, root)]]
    table("One range of 256 KB, one after the other", ["delay ms", "", "median ms"], ranges)
    table(
        "select sum(amount) from eight parts where pk < 1,000, ms and requests",
        ["delay ms", "", "first", "requests", "again", "requests"],
        queries,
    )


def range_reads(proxy: FaultProxy, bucket: str) -> Rows:
    from lakebed.storage.s3_client import s3_client

    client, key = s3_client(), "parts/0.parquet"
    size = client.head_object(Bucket=bucket, Key=key)["ContentLength"]
    starts = [random.Random(7).randrange(size - RANGE_BYTES) for _ in range(READS)]

    def boto(start: int) -> int:
        wanted = f"bytes={start}-{start + RANGE_BYTES - 1}"
        return len(client.get_object(Bucket=bucket, Key=key, Range=wanted)["Body"].read())

    ways: dict[str, Callable[[int], int]] = {"boto3": boto}
    if obstore := optional("obstore"):
        stores = importlib.import_module("obstore.store")
        store = stores.S3Store(
            bucket,
            endpoint=proxy.endpoint,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region=REGION,
            client_options={"allow_http": True},
        )
        ways["obstore"] = lambda start: len(obstore.get_range(store, key, start=start, length=RANGE_BYTES))
    for way in ways.values():
        way(0)
    return [[name, median_ms(way, starts)] for name, way in ways.items()]


def our_query(proxy: FaultProxy, root: str) -> list[object]:
    # Another process, so that nothing of the parts is cached: those that wrote them have them in memory.
    program = (
        "import sys, time\n"
        "from lakebed.storage.engine import connect\n"
        "from lakebed.storage.data_files import open_part_storage\n"
        "storage = open_part_storage(sys.argv[1])\n"
        "connection = connect()\n"
        "storage.attach(connection)\n"
        "files = [storage.duckdb_url(f'{part}.parquet') for part in range(8)]\n"
        "for _ in sys.stdin:\n"
        "    started = time.perf_counter()\n"
        "    connection.execute('select sum(amount) from read_parquet(?) where pk < 1000', [files]).fetchall()\n"
        "    print((time.perf_counter() - started) * 1000, flush=True)\n"
    )
    return asked_twice(proxy, [sys.executable, "-c", program, root])


def httpfs_query(proxy: FaultProxy, root: str) -> list[object]:
    def install(staging: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run([*pip, "--target", str(staging), *HTTPFS], {})

    folder = fetch_once("httpfs", f"{HTTPFS} {sys.version_info[:2]}".encode(), install)
    program = (
        "import pathlib, sys, time\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import duckdb\n"
        "[extension] = pathlib.Path(sys.argv[1]).rglob('httpfs.duckdb_extension')\n"
        "connection = duckdb.connect()\n"
        "connection.execute(f\"load '{extension}'\")\n"
        "connection.execute(sys.argv[2])\n"
        "for _ in sys.stdin:\n"
        "    started = time.perf_counter()\n"
        "    connection.execute(sys.argv[3]).fetchall()\n"
        "    print((time.perf_counter() - started) * 1000, flush=True)\n"
    )
    secret = (
        f"create secret (type s3, key_id '{ACCESS_KEY}', secret '{SECRET_KEY}', region '{REGION}', use_ssl false, "
        f"url_style 'path', endpoint '{proxy.endpoint.removeprefix('http://')}')"
    )
    files = ", ".join(f"'{root}/{part}.parquet'" for part in range(8))
    query = f"select sum(amount) from read_parquet([{files}]) where pk < 1000"
    return asked_twice(proxy, [sys.executable, "-c", program, str(folder), secret, query])


def asked_twice(proxy: FaultProxy, command: list[str]) -> list[object]:
    row: list[object] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        for _ in range(2):
            proxy.traffic(reset=True)
            process.stdin.write("\n")
            process.stdin.flush()
            row += [float(process.stdout.readline()), sum(proxy.traffic().requests.values())]
        process.stdin.close()
    return row


# -- values ------------------------------------------------------------------------------------------------------------


def base64_decimals() -> None:
    """Decimals as Debezium sends them: base64 of the unscaled value."""
    rng = random.Random(7)
    numbers = [rng.randrange(-(10**9), 10**12) for _ in range(VALUES)]
    texts = [base64.b64encode(n.to_bytes((n.bit_length() + 8) // 8, "big", signed=True)).decode() for n in numbers]
    column = pa.array(texts)

    def one_by_one() -> pa.Array:
        decoded = (int.from_bytes(base64.b64decode(text), "big", signed=True) for text in column.to_pylist())
        return pa.array([Decimal(number).scaleb(-2) for number in decoded], pa.decimal128(38, 2))

    assert one_by_one().equals(to_decimal(column, 2))
    taken = seconds({"lakebed": lambda: to_decimal(column, 2), "base64 and int, one by one": one_by_one})
    per_value("base64 to decimals", taken)


def bucket() -> None:
    """Iceberg's bucket transform of whole numbers and of short texts."""
    for kind, column in {
        "whole numbers": pa.array(np.random.default_rng(7).integers(0, 1 << 40, VALUES)),
        "texts of 36 characters": pa.array([str(uuid.UUID(int=number * 2**64 // 7)) for number in range(VALUES)]),
    }.items():
        ways: dict[str, Callable[[], object]] = {"lakebed": partial(buckets, column)}
        if mmh3 := optional("mmh3"):
            ways["mmh3, one by one"] = partial(buckets_one_by_one, mmh3.hash, column)
        if optional("pyiceberg_core"):
            transform = importlib.import_module("pyiceberg_core.transform")
            ways["pyiceberg-core"] = partial(transform.bucket, column, 16)
        results = [way() for way in ways.values()]
        assert all(np.array_equal(np.asarray(result), results[0]) for result in results)
        per_value(f"bucket(16, …) of {kind}", seconds(ways))


def buckets(column: pa.Array) -> np.ndarray:
    if pa.types.is_integer(column.type):
        data = np.asarray(column).astype("<i8").view(np.uint8)
        hashes = murmur3(data, np.arange(len(column)) * 8, np.full(len(column), 8))
    else:
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, np.int32)[: len(column) + 1].astype(np.int64)
        hashes = murmur3(np.frombuffer(data, np.uint8), ends[:-1], np.diff(ends))
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int32) % 16


def buckets_one_by_one(hashed: Callable[[bytes], int], column: pa.Array) -> np.ndarray:
    if pa.types.is_integer(column.type):
        values = [value.to_bytes(8, "little", signed=True) for value in column.to_pylist()]
    else:
        values = [value.encode() for value in column.to_pylist()]
    return np.array([(hashed(value) & 0x7FFFFFFF) % 16 for value in values])


def curve() -> None:
    """The number on the Hilbert curve of points of two dimensions, 31 bits each."""
    rng = np.random.default_rng(7)
    axes = [rng.integers(0, 1 << 31, VALUES) for _ in range(2)]
    points = np.stack(axes, axis=1)
    ways: dict[str, Callable[[], object]] = {"lakebed": lambda: hilbert(axes, 31)}
    if library := optional("hilbert"):
        ways["numpy-hilbert-curve"] = lambda: library.encode(points, 2, 31)
    per_value("Hilbert's curve", seconds(ways, rounds=3))


def per_value(title: str, taken: dict[str, float]) -> None:
    rows: Rows = [[name, f"{value / VALUES * 1e9:.0f}"] for name, value in taken.items()]
    table(f"{title}: nanoseconds a value", ["", "ns"], rows)


MEASURED = {"log": log, "s3": s3, "base64": base64_decimals, "bucket": bucket, "curve": curve}


if __name__ == "__main__":
    main()
