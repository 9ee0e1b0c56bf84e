"""Steady load for minutes: parts, tail, memory and disk must stay flat. Runs the example pipeline in a process of its own.

    python -m benchmarks.steady [--minutes 30] [--rate 2000] [--volatile off] [--png steady.png]

Every few seconds the table and the process are looked at. The table printed compares the thirds of the run: what grows
does so in every third. ``disk`` leaves out what cleanup may not delete yet: it counts the live parts and the log.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lakebed
from benchmarks.workload import median, table

LOOK_SECONDS = 5.0
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
  properties: {{lakebed.volatile: "{volatile}", lakebed.checkpoint_interval: "50", lakebed.log_retention: "5 minutes"}}
source: {{kind: generator, events_per_second: {rate}, inserts: 0.02, deletes: 0.01}}
metrics: {{port: null}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--volatile", choices=("on", "off"), default="off")
    parser.add_argument("--png")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        pipeline = Path(folder, "steady.yml")
        pipeline.write_text(PIPELINE.format(path=f"{folder}/orders", rate=args.rate, volatile=args.volatile))
        command = [
            str(Path(sys.executable).with_name("lakebed")),
            "run",
            str(pipeline),
            "--duration",
            str(args.minutes * 60),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        looks: list[dict[str, float]] = []
        started = time.monotonic()
        while process.poll() is None:
            time.sleep(LOOK_SECONDS)
            try:
                looks.append(look(f"{folder}/orders", process.pid, time.monotonic() - started))
            except lakebed.errors.LakebedError:
                continue  # not created yet
    running = [each for each in looks if each["rows"]]
    if process.returncode or len(running) < 3:
        sys.exit(f"the pipeline ended with exit code {process.returncode} after {len(running)} looks")
    third = len(running) // 3
    rows: list[list[object]] = []
    for name in running[0]:
        thirds = [median([each[name] for each in running[at * third : (at + 1) * third]]) for at in range(3)]
        rows.append([name, *thirds, max(each[name] for each in running)])
    table(
        f"{args.minutes:g} minutes at {args.rate:,} events/s, volatile {args.volatile}; exit code {process.returncode}",
        ["median of", "first third", "second third", "last third", "max"],
        rows,
    )
    if args.png:
        plot(running, args.png)


def look(path: str, pid: int, seconds: float) -> dict[str, float]:
    orders = lakebed.open(path)
    snapshot = orders._log.refresh()
    log = sum(file.stat().st_size for file in Path(path, "_delta_log").iterdir() if file.exists())
    return {
        "minute": seconds / 60,
        "rows": sum(part.live_rows for part in snapshot.parts.values()),
        "parts": len(snapshot.parts),
        "tail parts": len(snapshot.tail),
        "disk MB": (sum(part.bytes for part in snapshot.parts.values()) + log) / 1e6,
        "log MB": log / 1e6,
        "driver MB": resident_mb(pid),
        "all processes MB": sum(resident_mb(each) for each in family(pid)),
    }


def resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


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

    names = [name for name in looks[0] if name != "minute"]
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
