"""Steady load for minutes: parts, tail, memory and disk must stay flat. Runs the example pipeline in a process of its own.

    python -m benchmarks.steady [--minutes 30] [--rate 2000] [--volatile off] [--png steady.png]
    python -m benchmarks.steady --accelerated [--minutes 10] [--changes 500]

``--accelerated`` runs a process without Spark instead, which applies and settles batch after batch as quickly as it can, with
merges in the background and metrics beside: the commits of an hour in minutes, in a table whose rows stay the same.

Every few seconds the table and the process are looked at. The table printed compares the thirds of the run: what grows
does so in every third. ``disk`` leaves out what cleanup may not delete yet: it counts the live parts and the log. The slope is
that of the driver's private memory over the commits, in the last half of the looks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import lakebed
from benchmarks.workload import KEYS, SCHEMA, SORT_KEY, Workload, median, table
from lakebed import events
from lakebed.monitoring.metrics import Metrics
from lakebed.monitoring.progress import Progress
from lakebed.table import internals_of

LOOK_SECONDS = 5.0
SAMPLE_SECONDS = 1.0
ROWS = 50_000
PIPELINE = """
table:
  path: {path}
  keys: [order_id]
  sort_key: [region, created_at]
  schema:
    order_id: long not null
    customer_id: long
    region: string
    status: string
    amount: decimal(12,2)
    note: string
    created_at: timestamp
    updated_at: timestamp
  properties: {properties}
source: {{kind: generator, events_per_second: {rate}, inserts: 0.02, deletes: 0.01}}
metrics: {{port: null}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=int, default=2000, help="events a second of the pipeline")
    parser.add_argument("--volatile", choices=("on", "off"), default="off")
    parser.add_argument("--accelerated", action="store_true")
    parser.add_argument("--changes", type=int, default=500, help="rows a batch of --accelerated")
    parser.add_argument("--png")
    parser.add_argument("--load", metavar="TABLE", help=argparse.SUPPRESS)  # the process that --accelerated watches
    args = parser.parse_args()
    properties = {
        "lakebed.volatile": args.volatile,
        "lakebed.checkpoint_interval": "50",
        "lakebed.log_retention": "5 minutes",
    }
    if args.load:
        load(args.load, args.minutes * 60, args.changes, properties)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        command = _accelerated(folder, args) if args.accelerated else _pipeline(folder, args, properties)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        looks: list[dict[str, float]] = []
        started = time.monotonic()
        while process.poll() is None:
            time.sleep(LOOK_SECONDS)
            try:
                looks.append(look(f"{folder}/orders", process.pid, time.monotonic() - started))
            except lakebed.errors.LakebedError:
                continue  # not created yet
    running = [each for each in looks if each["rows"] and each["driver MB"]]
    if process.returncode or len(running) < 6:
        sys.exit(f"the process ended with exit code {process.returncode} after {len(running)} looks")
    third = len(running) // 3
    rows: list[list[object]] = []
    for name in running[0]:
        thirds = [median([each[name] for each in running[at * third : (at + 1) * third]]) for at in range(3)]
        rows.append([name, *thirds, max(each[name] for each in running)])
    load_name = f"batches of {args.changes:,} rows, without Spark" if args.accelerated else f"{args.rate:,} events/s"
    table(
        f"{args.minutes:g} minutes of {load_name}, volatile {args.volatile}; exit code {process.returncode}",
        ["median of", "first third", "second third", "last third", "max"],
        rows,
    )
    last = running[len(running) // 2 :]
    commits = last[-1]["version"] - last[0]["version"]
    print(f"\nlast half: {commits:,.0f} commits, {slope_kb(last):.2f} KB of the driver's private memory a commit")
    if args.png:
        plot(running, args.png)


def _pipeline(folder: str, args: argparse.Namespace, properties: Mapping[str, str]) -> list[str]:
    pipeline = Path(folder, "steady.yml")
    text = PIPELINE.format(path=f"{folder}/orders", rate=args.rate, properties=json.dumps(properties))
    pipeline.write_text(text)
    command = str(Path(sys.executable).with_name("lakebed"))
    return [command, "run", str(pipeline), "--duration", str(args.minutes * 60)]


def _accelerated(folder: str, args: argparse.Namespace) -> list[str]:
    options = ["--minutes", str(args.minutes), "--changes", str(args.changes), "--volatile", args.volatile]
    return [sys.executable, "-m", "benchmarks.steady", "--load", f"{folder}/orders", *options]


def load(path: str, seconds: float, changes: int, properties: Mapping[str, str]) -> None:
    """What ``lakebed run`` does to a table in its driver, without Spark and without a pause: updates of ``ROWS`` rows."""
    orders = lakebed.create(path, SCHEMA, KEYS, SORT_KEY, properties=properties)
    workload, random = Workload(ROWS), np.random.default_rng(7)
    orders.apply(workload.base())
    metrics, progress = Metrics(), Progress(path)
    events.listen(metrics)
    events.listen(progress)
    sampler = internals_of(orders).sampler()
    maintenance = internals_of(orders).maintain()
    until, sample_at = time.monotonic() + seconds, 0.0
    while (now := time.monotonic()) < until:
        start = int(random.integers(0, ROWS - changes))
        orders.apply(workload.base(start, start + changes))
        internals_of(orders).step()
        if now >= sample_at:
            metrics.observe(path, sampler.sample())
            progress.figures()
            sample_at = now + SAMPLE_SECONDS
    maintenance.stop()


def look(path: str, pid: int, seconds: float) -> dict[str, float]:
    orders = lakebed.open(path)
    snapshot = internals_of(orders).log.refresh()
    log = sum(file.stat().st_size for file in Path(path, "_delta_log").iterdir() if file.exists())
    return {
        "minute": seconds / 60,
        "version": snapshot.version,
        "rows": sum(part.live_rows for part in snapshot.parts.values()),
        "parts": len(snapshot.parts),
        "tail parts": len(snapshot.tail),
        "disk MB": (sum(part.bytes for part in snapshot.parts.values()) + log) / 1e6,
        "log MB": log / 1e6,
        "driver MB": resident_mb(pid),
        "driver private MB": private_mb(pid),
        "all processes MB": sum(resident_mb(each) for each in family(pid)),
    }


def resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def private_mb(pid: int) -> float:
    """Memory that no file stands behind."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in status.splitlines() if line.startswith("RssAnon")), 0.0)


def slope_kb(looks: Sequence[Mapping[str, float]]) -> float:
    """KB of private memory a commit: the median slope of all pairs of looks (Theil 1950, Sen 1968), so peaks count little."""
    versions, private = (np.array([each[name] for each in looks]) for name in ("version", "driver private MB"))
    first, second = np.triu_indices(len(looks), 1)
    commits = versions[second] - versions[first]
    return 1000 * float(np.median((private[second] - private[first])[commits > 0] / commits[commits > 0]))


def family(pid: int) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(after[1]), []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += children.get(one, [])
    return found


def plot(looks: list[dict[str, float]], path: str) -> None:
    from matplotlib import pyplot

    names = [name for name in looks[0] if name not in ("minute", "version")]
    figure, axes = pyplot.subplots(len(names), 1, sharex=True, figsize=(8, 1.6 * len(names)))
    panel: Any
    for panel, name in zip(axes, names, strict=True):
        panel.plot([each["minute"] for each in looks], [each[name] for each in looks])
        panel.set_ylabel(name)
        panel.set_ylim(bottom=0)
    axes[-1].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
