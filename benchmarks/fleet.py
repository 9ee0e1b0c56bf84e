"""What a fleet of workers costs on many tables, and whether it keeps its promises while workers are killed.

    python -m benchmarks.fleet [--tables 2000] [--idle 10000] [--only idle|idle-local|busy] [--seconds 300] [--phase 60]

*Idle*: one worker and tables to which nothing has come for days, in a real S3 server on loopback and on the local disk. Printed
is the worker's share of a core, over a whole period of looks, and its looks beside those of the formula (``lakebed.fleet.cost``).

*Busy*: small tables in the S3 server, three workers, each a process, and a writer. One in twenty is ``p0`` with a freshness of 30
seconds; most of the others are ``p2``, and the writer floods them. Two workers are killed in the middle. The age of the oldest
unsettled change of the ``p0`` tables is sampled all the time. At the end nothing comes, and the looks are compared with the
formula: a table that has rested for t seconds is looked at after t / 10 more, so 10 ln(t2 / t1) times from t1 to t2.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

import lakebed
from benchmarks.workload import table as print_table
from lakebed import events
from lakebed.fleet.worker import FleetWorker, Limits
from lakebed.manifest.looks import SECONDS_MAX
from lakebed.manifest.stores import MemoryLogStore, open_store
from lakebed.manifest.table_log import TableLog
from lakebed.operations.create import NewTable, create
from tests.infra.s3 import S3Server, aws_environment

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
FRESHNESS_SECONDS = 30
P0_EVERY = 20
DAYS_AGO = 10
SAY_SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, default=2000)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS_MAX, help="idle: how long the processor's share is measured"
    )
    parser.add_argument("--phase", type=float, default=60.0, help="busy: seconds until two workers are killed")
    parser.add_argument("--only", choices=("idle", "idle-local", "busy"))
    parser.add_argument("--worker", nargs=2, metavar=("ROOT", "NAME"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(*args.worker)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        if args.only in (None, "idle-local"):
            idle("local disk", f"{folder}/lake", args.idle, args.seconds)
        if args.only == "idle-local":
            return
        with S3Server() as server, aws_environment(server.endpoint):
            if args.only != "busy":
                idle("S3", f"s3://{server.create_bucket()}/lake", args.idle, args.seconds)
            if args.only in (None, "busy"):
                busy(f"s3://{server.create_bucket()}/lake", args.tables, args.phase)


# -- one worker, as a process ------------------------------------------------------------------------------------------


def work(root: str, name: str) -> None:
    """Work until killed, and print a line of figures every second."""
    requests = Counter[str]()

    def count(event: events.Event) -> None:
        if isinstance(event, events.StoreRequested):
            requests[event.operation] += event.requests

    events.listen(count)
    worker = FleetWorker([root], Limits(cores=1, memory_bytes=1 << 30), name)
    worker.start()
    while True:
        time.sleep(SAY_SECONDS)
        state = worker.state()
        figures = {
            "cpu": time.process_time(), "rss": resident_bytes(), "workers": len(state.workers), "known": state.known,
            "owned": state.owned, "unseen": state.unseen, "active": state.active, "waiting": state.waiting, "looks": state.looks,
            "troubles": len(state.troubles), "requests": dict(requests),
        }  # fmt: skip
        print(orjson.dumps(figures).decode(), flush=True)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Process:
    """A worker as a process, and what it said last."""

    def __init__(self, root: str, name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.fleet", "--worker", root, name]
        environment = {**os.environ, "LAKEBED_CACHE_DIR": f"{os.environ['LAKEBED_CACHE_DIR']}-{name}"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.said: dict[str, Any] = {}
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said = orjson.loads(line)

    def wait_for(self, **wanted: int) -> None:
        """Until it says these figures."""
        while {name: self.said.get(name) for name in wanted} != wanted:
            assert self.process.poll() is None, "the worker has ended"
            time.sleep(0.2)

    def kill(self) -> None:
        """As kill -9."""
        self.process.kill()
        self.process.wait()


# -- idle tables -------------------------------------------------------------------------------------------------------


def idle(where: str, root: str, tables: int, seconds: float) -> None:
    """The share of a core, and the looks, of one worker with tables to which nothing comes."""
    store = open_store(root)
    then = time.time() - DAYS_AGO * 86_400

    def put(number: int) -> None:
        memory = MemoryLogStore()
        create(f"{root}/public/t{number}", TableLog(memory, clock=lambda: then), NewTable(schema=SCHEMA, keys=("id",)))
        for name in memory.list_from("_delta_log", ""):
            store.put(f"public/t{number}/_delta_log/{name}", memory.read(f"_delta_log/{name}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(tables)))
    worker = Process(root, "idle")
    worker.wait_for(owned=tables, unseen=0)  # from here on it has nothing to do but to look
    first, began = worker.said, time.monotonic()
    time.sleep(seconds)
    last, elapsed = worker.said, time.monotonic() - began
    worker.kill()
    looks, formula = last["looks"] - first["looks"], tables * elapsed / SECONDS_MAX
    share = 100 * (last["cpu"] - first["cpu"]) / elapsed
    columns = ["", "tables", "% of a core", "looks", "formula", "CPU ms a look", "RSS MB", "CPU s to begin"]
    row: list[object] = [
        where, tables, round(share, 2), looks, round(formula), round(10 * share * elapsed / max(1, looks), 3),
        round(last["rss"] / 1e6), round(first["cpu"], 1),
    ]  # fmt: skip
    print_table("One worker, and tables to which nothing comes", columns, [row])


# -- busy tables -------------------------------------------------------------------------------------------------------


def busy(root: str, tables: int, phase: float) -> None:
    """Three workers and a writer; two workers are killed."""
    paths = [f"{root}/public/t{number}" for number in range(tables)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(made, range(tables), paths))
    p0 = paths[::P0_EVERY]
    workers = [Process(root, name) for name in "abc"]
    for each in workers:
        while not each.said.get("owned"):
            time.sleep(0.5)
    done = threading.Event()
    oldest: list[float] = []
    watching = threading.Thread(target=watch, args=(p0, oldest, done), daemon=True)
    watching.start()
    commits = write(paths, p0, phase)
    for each in workers[:2]:
        each.kill()
    commits += write(paths, p0, 2 * phase)
    done.set()
    watching.join()
    alone, began = workers[2], time.monotonic()
    while unsettled(paths) or alone.said["active"] or alone.said["waiting"] or alone.said["owned"] < tables:
        assert time.monotonic() - began < 3600, alone.said
        time.sleep(2.0)
    rested = time.monotonic() - began
    first, t1 = alone.said, time.monotonic()
    time.sleep(2 * phase)
    last, t2 = alone.said, time.monotonic()
    alone.kill()
    idle_1 = t1 - began  # since the last commit of the writer, about
    formula = tables * 10 * math.log((idle_1 + t2 - t1) / idle_1)
    requests = Counter(last["requests"])
    requests.subtract(first["requests"])
    depth = max(depth_of(path) for path in random.Random(0).sample(paths, min(50, tables)))
    print_table(
        "Three workers on small tables in S3, two of them killed",
        ["tables", "commits", "p0: oldest change (s)", "95 % of samples (s)", "all settled after (s)", "depth", "troubles"],
        [[
            tables, commits, round(max(oldest), 1), round(sorted(oldest)[int(0.95 * len(oldest))], 1), round(rested, 1), depth,
            last["troubles"],
        ]],
    )  # fmt: skip
    print_table(
        f"Looks of the last worker in {t2 - t1:.0f} seconds in which nothing came, {tables} tables",
        ["looks", "formula", "all requests", "by kind"],
        [[last["looks"] - first["looks"], round(formula), sum(requests.values()), str(dict(+requests))]],
    )


def made(number: int, path: str) -> None:
    properties = {"lakebed.tier": "p2", "lakebed.pool": "bulk"}
    if number % P0_EVERY == 0:
        properties = {"lakebed.tier": "p0", "lakebed.freshness": f"{FRESHNESS_SECONDS} seconds"}
    lakebed.create(path, SCHEMA, keys=["id"], properties=properties)


def write(paths: list[str], p0: list[str], seconds: float) -> int:
    """Flood the tables, and give each ``p0`` table a batch now and then; returns how many commits."""
    ends, count, draw = time.monotonic() + seconds, 0, random.Random(1)

    def batch(path: str) -> None:
        ids = sorted(draw.sample(range(100_000), 200))
        lakebed.open(path).apply(pa.table({"id": ids, "v": ids}, SCHEMA))

    with ThreadPoolExecutor(2) as pool:
        while time.monotonic() < ends:
            chosen = [*draw.sample(paths, min(len(paths), 18)), *draw.sample(p0, min(len(p0), 2))]
            list(pool.map(batch, chosen))
            count += len(chosen)
    return count


def watch(p0: list[str], oldest: list[float], done: threading.Event) -> None:
    """Sample the age of the oldest change of the ``p0`` tables that is not settled."""
    logs = [TableLog(open_store(path)) for path in p0]
    while not done.wait(1.0):
        for log in logs:
            ages = [time.time() - part.modified_ms / 1000 for part in log.refresh().tail.values()]
            oldest.append(max(ages, default=0.0))


def unsettled(paths: list[str]) -> int:
    return sum(bool(TableLog(open_store(path)).refresh().tail) for path in paths)


def depth_of(path: str) -> int:
    return lakebed.open(path).status().depth


if __name__ == "__main__":
    main()
