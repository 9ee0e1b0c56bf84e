"""What a fleet of workers costs on many tables, and whether it keeps its promises while workers are killed.

    python -m benchmarks.fleet [--tables 2000] [--idle 10000] [--only idle|idle-local|busy] [--seconds 300] [--phase 60]
                               [--workers 3] [--kills 2] [--writers 1]

*Idle*: one worker and tables to which nothing has come for days, in a real S3 server on loopback and on the local disk. Printed
is the worker's share of a core, over a whole period of looks, and its looks beside those of the formula (``fleet.membership``).

*Busy*: small tables in the S3 server, three workers, each a process, and writers. One in twenty is ``p0`` with a freshness of
30 seconds, one in twenty ``p1``; the others are ``p2``, and the writer floods them. Two workers are killed when a third of the
time is over; with ``--kills 0`` none is, which shows what the flood alone does to ``p0``. The age of the oldest unsettled change
and the depth are sampled all the time, of all ``p0`` tables and of some others. At the end nothing comes, and the looks are
compared with the formula: a table that has rested for t seconds is looked at after t / 10 more, so 10 ln(t2 / t1) times from t1
to t2, and one with a freshness at least four times in that, and twice by each of two that stand by. Besides there is one beat of
a worker in 20 seconds, of one commit. With 2,000 tables it takes about ten minutes.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

import lakebed
from benchmarks.workload import table as print_table
from lakebed import events
from lakebed.discovery import SECONDS_MAX, pause_seconds, standby_pause_seconds
from lakebed.fleet.membership import BEAT_SECONDS
from lakebed.fleet.worker import FleetWorker, Limits
from lakebed.log.stores import MemoryLogStore, open_store
from lakebed.log.table_log import TableLog
from lakebed.operations.create import NewTable, create
from lakebed.planning.planner import plan
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
    parser.add_argument("--phase", type=float, default=60.0, help="busy: seconds until workers are killed")
    parser.add_argument("--workers", type=int, default=3, help="busy: how many workers there are")
    parser.add_argument("--kills", type=int, default=2, help="busy: how many workers are killed, fewer than there are")
    parser.add_argument("--writers", type=int, default=1, help="busy: processes that flood the tables")
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
        with KeepingServer() as server, aws_environment(server.endpoint):
            if args.only != "busy":
                idle("S3", f"s3://{server.create_bucket()}/lake", args.idle, args.seconds)
            if args.only in (None, "busy"):
                busy(f"s3://{server.create_bucket()}/lake", args)


class KeepingServer(S3Server):
    """One that keeps connections open for the next request, as S3 does."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "VGW_KEEP_ALIVE": "true"}


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
            "owned": state.owned, "unseen": state.unseen, "standing_by": state.standing_by,
            "active": state.active, "waiting": state.waiting, "looks": state.looks,
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


def busy(root: str, args: argparse.Namespace) -> None:
    """Workers and writers; some of the workers are killed."""
    tables, phase, kills, writers = args.tables, args.phase, args.kills, args.writers
    paths = [f"{root}/public/t{number}" for number in range(tables)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(made, range(tables), paths))
    p0 = paths[::P0_EVERY]
    workers = [Process(root, f"w{number}") for number in range(args.workers)]
    # A freshness is kept from when all know of it: each table was looked at once, and its owner has said so with a beat.
    wanted = {"owned": tables, "standing_by": min(2, len(workers) - 1) * len(p0)}
    while (known := {name: figure(workers, name) for name in wanted}) != wanted or figure(workers, "unseen"):
        say(f"{known} of {wanted}")
        time.sleep(5.0)
    say(f"{tables} tables, {len(workers)} workers")
    done = threading.Event()
    watched = {"p0": Samples(p0), "p1": Samples(paths[1::P0_EVERY][:10]), "p2": Samples(paths[2::P0_EVERY][:10])}
    watching = threading.Thread(target=watch, args=(watched, done), daemon=True)
    watching.start()
    load, commits = os.getloadavg()[0], flood(paths, p0, phase, writers)
    for each in workers[:kills]:
        each.kill()
    say(f"{commits} commits, and {kills} workers are killed")
    commits += flood(paths, p0, 2 * phase, writers)
    left, began = workers[kills:], time.monotonic()
    load = max(load, os.getloadavg()[0])
    wait_until_settled(paths, left)
    rested = time.monotonic() - began
    done.set()
    watching.join()
    print_table(
        f"{len(workers)} workers on small tables in S3, {kills or 'none'} of them killed, {writers} writers",
        ["", "tables", "oldest change (s)", "95 % of samples (s)", "depth", "of"],
        [[tier, *samples.row()] for tier, samples in watched.items()],
    )
    print_table(
        "All of them",
        ["tables", "commits", "all settled after (s)", "troubles", "RSS MB of workers", "CPU s of those left", "load"],
        [[tables, commits, round(rested), figure(left, "troubles"),
          str([round(each.said["rss"] / 1e6) for each in workers]), round(figure(left, "cpu")), round(load, 1)]],
    )  # fmt: skip
    rest(left, tables, len(p0), began, 2 * phase)
    for each in left:
        each.kill()


def wait_until_settled(paths: list[str], workers: list[Process]) -> None:
    """Until every table is settled, and has an owner that has nothing to do."""
    began, waits = time.monotonic(), paths
    while waits or figure(workers, "active") or figure(workers, "waiting") or figure(workers, "owned") < len(paths):
        waits = unsettled(waits)
        say(f"{len(waits)} tables are not settled: {[each.said for each in workers]}")
        assert time.monotonic() - began < 3600, [each.said for each in workers]
        time.sleep(5.0)


def rest(workers: list[Process], tables: int, p0: int, began: float, seconds: float) -> None:
    """Compare the looks of workers whose tables rest with the formula. ``began``: about the last commit (monotonic)."""
    first, t1 = [each.said for each in workers], time.monotonic()
    time.sleep(seconds)
    last, t2 = [each.said for each in workers], time.monotonic()
    idle_1 = t1 - began
    formula = (tables - p0) * 10 * math.log((idle_1 + t2 - t1) / idle_1)
    formula += p0 * (t2 - t1) / pause_seconds(idle_1, FRESHNESS_SECONDS)
    formula += min(2, len(workers) - 1) * p0 * (t2 - t1) / standby_pause_seconds(FRESHNESS_SECONDS)
    requests = Counter[str]()
    for before, after in zip(first, last, strict=True):
        requests.update(after["requests"])
        requests.subtract(before["requests"])
    looks = sum(after["looks"] - before["looks"] for before, after in zip(first, last, strict=True))
    print_table(
        f"Looks of {len(workers)} workers in {t2 - t1:.0f} seconds in which nothing came, {tables} tables",
        ["looks", "formula", "beats by formula", "all requests", "by kind"],
        [[
            looks, round(formula), round(len(workers) * (t2 - t1) / BEAT_SECONDS), sum(requests.values()),
            str(dict(+requests)),
        ]],
    )  # fmt: skip


def figure(workers: list[Process], name: str) -> float:
    """The sum of what they said last."""
    return sum(float(each.said.get(name, 0)) for each in workers)


def say(text: str) -> None:
    """Progress, which is no figure."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def made(number: int, path: str) -> None:
    properties = {"lakebed.tier": "p2", "lakebed.pool": "bulk"}
    if number % P0_EVERY == 1:
        properties = {"lakebed.tier": "p1"}
    if number % P0_EVERY == 0:
        properties = {"lakebed.tier": "p0", "lakebed.freshness": f"{FRESHNESS_SECONDS} seconds"}
    lakebed.create(path, SCHEMA, keys=["id"], properties=properties)


def flood(paths: list[str], p0: list[str], seconds: float, writers: int) -> int:
    """Write with so many processes; returns how many commits."""
    with ProcessPoolExecutor(writers, multiprocessing.get_context("spawn")) as pool:
        shares = [pool.submit(write, paths, p0[number::writers], seconds, number) for number in range(writers)]
        return sum(each.result() for each in shares)


def write(paths: list[str], p0: list[str], seconds: float, seed: int) -> int:
    """Flood the tables, and give each ``p0`` table a batch now and then; returns how many commits."""
    ends, count, draw = time.monotonic() + seconds, 0, random.Random(seed)

    def batch(path: str) -> None:
        ids = sorted(draw.sample(range(100_000), 200))
        lakebed.open(path).apply(pa.table({"id": ids, "v": ids}, SCHEMA))

    with ThreadPoolExecutor(2) as pool:
        while time.monotonic() < ends:
            chosen = [*draw.sample(paths, min(len(paths), 18)), *draw.sample(p0, min(len(p0), 2))]
            list(pool.map(batch, chosen))
            count += len(chosen)
    return count


class Samples:
    """What some tables were like, again and again: the age of the oldest change that is not settled, and the depth."""

    def __init__(self, paths: list[str]) -> None:
        self._logs = [TableLog(open_store(path)) for path in paths]
        self._ages: list[float] = []
        self._depths: list[int] = []
        self._budget = 0

    def take(self) -> None:
        for log in self._logs:
            snapshot = log.refresh()
            ages = [time.time() - part.modified_ms / 1000 for part in snapshot.tail.values()]
            self._ages.append(max(ages, default=0.0))
            planning = plan(snapshot, frozenset(), log.now_ms(), statistics=log.statistics)
            self._depths.append(planning.depth_max)
            self._budget = snapshot.settings.read_budget

    def row(self) -> list[object]:
        ages = sorted(self._ages)
        return [
            len(self._logs),
            round(ages[-1], 1),
            round(ages[int(0.95 * len(ages))], 1),
            max(self._depths),
            self._budget,
        ]


def watch(watched: Mapping[str, Samples], done: threading.Event) -> None:
    while not done.wait(1.0):
        for samples in watched.values():
            samples.take()


def unsettled(paths: list[str]) -> list[str]:
    return [path for path in paths if TableLog(open_store(path)).refresh().tail]


if __name__ == "__main__":
    main()
