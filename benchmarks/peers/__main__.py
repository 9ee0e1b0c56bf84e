"""lakebed beside its peers on the same input, each run checked against an oracle before a figure of it is printed.

    make bench-peers ARGS="--rows 1000000 --batches 20 --changes 20000 --updates skewed --systems lakebed delta"

The first time each peer gets a virtual environment below ``.build/peers`` and its jars, which takes minutes. Then:

1. The input is made once, as Parquet files: first rows, batches, and what the table must be equal to.
2. The systems run one after the other, each in a process of its own with two cores and the same memory; a second round
   (``--rounds 2``) has them in reverse order.
3. What a system leaves must be the oracle's rows, by count and hash, and every query on the way must have the right answer.
   Else it has no figures, and the exit code is 1.

``--results`` names the folder for results.json and results.png.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.peers import report
from benchmarks.peers.environments import FOLDER, REPOSITORY, python_of
from benchmarks.peers.given import Scale, make
from benchmarks.peers.measured import Run, run_system
from benchmarks.peers.systems import SYSTEMS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="lakebed beside its peers")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--changes", type=int, default=20_000)
    parser.add_argument("--warmup", type=int, default=10, help="batches before those that are measured")
    parser.add_argument("--updates", choices=["skewed", "uniform"], default="skewed")
    parser.add_argument("--append-only", action="store_true", help="no keys; batches of new rows")
    parser.add_argument(
        "--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS), metavar="SYSTEM", help=", ".join(SYSTEMS)
    )
    parser.add_argument("--read-every", type=int, default=4, help="batches from one look at the reads to the next")
    parser.add_argument(
        "--reads", type=int, default=5, help="times each query is run at each look, after three that warm up"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--memory", default="4g", help="of Spark's process, which is driver and executor")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where tables are while they are measured")
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    args = parser.parse_args(arguments)
    scale = Scale(
        args.rows, args.batches, args.warmup, args.changes, args.read_every, args.updates, args.append_only, args.memory
    )
    systems = [name for name in args.systems if not scale.append_only or SYSTEMS[name].append_only]
    pythons = {name: python_of(SYSTEMS[name].environment) for name in systems}
    now = datetime.now(UTC)
    head = report.header(
        shlex.join(["python", "-m", "benchmarks.peers", *(sys.argv[1:] if arguments is None else arguments)]),
        f"{now:%Y-%m-%d %H:%M} UTC",
    )
    print("\n".join(head), flush=True)
    folder = args.folder.resolve() / f"run-{now:%Y%m%d-%H%M%S}"
    given = make(scale, folder / "input")
    runs: list[Run] = []
    args.results.mkdir(parents=True, exist_ok=True)
    for number in range(1, args.rounds + 1):
        for name in systems if number % 2 else reversed(systems):
            started = time.perf_counter()
            own = folder / f"{name}-{number}"
            runs.append(
                run_system(name, SYSTEMS[name], pythons[name], scale, given, own, number=number, reads=args.reads)
            )
            verdict = runs[-1].error or "rows equal the oracle's"
            print(f"bench-peers: {name}, round {number}: {time.perf_counter() - started:.0f} s; {verdict}", flush=True)
            report.save(args.results / "results.json", head, runs, scale, given)
    runs.sort(key=lambda run: (systems.index(run.system), run.round))
    report.show(runs, scale, given)
    report.save(args.results / "results.json", head, runs, scale, given)
    report.draw(args.results / "results.png", runs, scale, given)
    shown = args.results.resolve()
    print(
        f"\nResults: {shown.relative_to(REPOSITORY) if shown.is_relative_to(REPOSITORY) else shown}/results.json, results.png"
    )
    shutil.rmtree(folder / "input")
    return 1 if any(run.error for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
