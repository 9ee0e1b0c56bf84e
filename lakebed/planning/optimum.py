"""The least that any plan of merges writes: n equal flushes, and at most k runs after each of them.

A flush is written on its own first, then a merge may write some of the newest runs as one; so a flush that is not merged at
once costs nothing here. Look at the last time that everything was merged into one run, at flush m: before it there were
m − 1 flushes and k runs to keep them in, after it n − m flushes and k − 1 runs. Hence

    F(n, k) = min over m of F(m − 1, k) + c(m) + F(n − m, k − 1),  c(1) = 0, c(m) = m,  F(0, k) = 0,

1 ≤ m ≤ n, and no flush can be kept in no run.

Published with c(1) = 1 (Mathieu, Staelin, Young, Yousefi: "Bigtable Merge Compaction", arXiv 1407.3008),
where the memory's content itself is an input of a merge; ``first_write=1`` gives that.
"""

from __future__ import annotations

import numpy as np

_NEVER = np.int64(1) << 60
_WINDOW = 64


def least_written(flushes: int, runs: int, first_write: int = 0) -> int:
    """F(n, k): flushes written by merges (``first_write=1``: also those written by no merge at once)."""
    return int(least_written_up_to(flushes, runs, first_write)[flushes])


def least_written_up_to(flushes: int, runs: int, first_write: int = 0) -> np.ndarray:
    """F(0 … n, k)."""
    last = np.full(flushes + 1, _NEVER, dtype=np.int64)
    last[0] = 0
    cost = np.arange(flushes + 1, dtype=np.int64)
    cost[1:2] = first_write
    for _ in range(min(runs, flushes)):
        now = np.zeros(flushes + 1, dtype=np.int64)
        best = 1
        for n in range(1, flushes + 1):
            best = _step(now, last, cost, n, best)
        last = now
    return last


def _step(now: np.ndarray, last: np.ndarray, cost: np.ndarray, n: int, before: int) -> int:
    """Fill in ``now[n]``; the best m, which never moves down as n grows and then by little."""
    start = max(1, before - _WINDOW)
    while True:
        end = min(n, before + _WINDOW)
        m = np.arange(start, end + 1)
        total = now[m - 1] + cost[m] + last[n - m]
        best = start + int(total.argmin())
        if best < before + _WINDOW or end == n:
            now[n] = total[best - start]
            return best
        before = best
