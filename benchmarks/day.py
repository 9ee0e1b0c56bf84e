"""A day of small flushes: how often each byte is written to the store, and how many runs readers meet.

    python -m benchmarks.day [--flushes 1440] [--bytes 500000 1800000 6000000] [--budgets 8 16]

The planner is simulated, one flush of 20,000 new rows a minute, anywhere on the sort key. "write ratio" is bytes written to the
store ÷ bytes of the parts ingested: 1 for ingest, the rest for merges. "here" are readers on the host that merges, "elsewhere"
all others. "least: most" is the exact least that any plan of merges writes which never lets a reader elsewhere meet more runs
than the most that is printed; "least: average" is a bound for the average (``least_written_on_average``). "local" is what is
written to the local disk ÷ what is ingested.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from benchmarks.workload import table
from lakebed.planning.candidates import least_written
from lakebed.planning.simulator import simulate
from lakebed.planning.workload import Arrival, Sample, Workload
from lakebed.settings import TableSettings

ROWS = 20_000
_PRICES = np.geomspace(0.02, 20, 60).tolist()


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


def least_written_on_average(flushes: int, runs_average: float) -> float:
    """What merges of plans with ``runs_average`` runs on average write at least, in flushes.

    Let a run cost p a flush, and c(m) as in ``planning.candidates``:

        G(n) = min over m of G(m − 1) + c(m) + p (n − m + 1) + G(n − m).

    Such plans write at least G(n) − p n r, for any price p. The best bound of some prices counts.
    """
    return float(max(0.0, *(with_price(flushes, price) - price * flushes * runs_average for price in _PRICES)))


def with_price(flushes: int, price: float) -> float:
    """G(n)."""
    least = np.zeros(flushes + 1)
    for n in range(1, flushes + 1):
        m = np.arange(1, n + 1)
        least[n] = (least[m - 1] + np.where(m == 1, 0, m) + price * (n - m + 1) + least[n - m]).min()
    return float(least[-1])


if __name__ == "__main__":
    main()
