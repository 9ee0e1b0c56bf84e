"""A day of small flushes: how often each byte is written to the store, and how many runs readers meet.

    python -m benchmarks.day [--flushes 1440] [--bytes 500000 1800000 6000000] [--budgets 8 16]

The planner is simulated, one flush of 20,000 new rows a minute, anywhere on the sort key. "write ratio" is bytes written to the
store ÷ bytes of the parts ingested: 1 for ingest, the rest for merges. "here" are readers on the host that merges, "elsewhere"
all others. "least: most" is the exact least that any plan of merges writes which never lets a reader elsewhere meet more runs
than the most that is printed; "least: average" is a bound for the average (``lakebed.planning.optimum``). "local" is what is
written to the local disk ÷ what is ingested.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks.workload import table
from lakebed.planning.optimum import least_written, least_written_on_average
from lakebed.planning.simulator import simulate
from lakebed.planning.workload import Arrival, Sample, Workload
from lakebed.settings import TableSettings

ROWS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flushes", type=int, default=1440)
    parser.add_argument("--bytes", type=int, nargs="+", default=[500_000, 1_800_000, 6_000_000])
    parser.add_argument("--budgets", type=int, nargs="+", default=[8, 16])
    args = parser.parse_args()
    rows = [
        day(args.flushes, size, budget, volatile)
        for size in args.bytes
        for budget in args.budgets
        for volatile in (False, True)
    ]
    table(
        f"{args.flushes:,} flushes of {ROWS:,} rows",
        [
            "MB a flush", "read budget", "volatile", "write ratio", "least: most", "least: average", "runs here: average",
            "most", "elsewhere: average", "most", "local",
        ],
        rows,
    )  # fmt: skip


def day(flushes: int, size: int, budget: int, volatile: bool) -> list[object]:
    arrivals = [Arrival(at_ms=60_000 * (number + 1), rows=ROWS, bytes=size) for number in range(flushes)]
    samples = simulate(Workload(arrivals=arrivals, volatile=volatile), TableSettings(read_budget=budget)).samples

    def average(of: Callable[[Sample], float]) -> float:
        return sum(map(of, samples)) / len(samples)

    elsewhere, most = (
        average(lambda sample: sample.depth_average_elsewhere),
        max(s.depth_max_elsewhere for s in samples),
    )
    last = samples[-1]
    return [
        size / 1e6,
        budget,
        "on" if volatile else "off",
        last.write_amplification,
        1 + least_written(flushes, most) / flushes,
        1 + least_written_on_average(flushes, elsewhere) / flushes,
        average(lambda sample: sample.depth_average),
        max(sample.depth_max for sample in samples),
        elsewhere,
        most,
        last.local_bytes / last.ingested_bytes,
    ]


if __name__ == "__main__":
    main()
