"""Backpressure: ingest slows down, gradually, when maintenance can't keep up. It never fails for that.

How far a table is beyond what its readers can bear follows from its newest snapshot alone. So this also works when maintenance
runs elsewhere, or not at all. The factor is 1 up to the bounds, and grows with how far they are exceeded:

1. Batches become smaller than they last were without pressure, by the factor (Kafka).
2. Before each batch ingest waits, for the time that the last batch took times (factor - 1), at most ``DELAY_SECONDS_MAX``.

So at a factor of 2 half as much comes in, in the same time; the rest waits in the source.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lakebed.log.claims import claims_of
from lakebed.log.snapshot import Snapshot

_TAIL_ROWS_MAX = 8_000_000
TAIL_PARTS_MAX = 500
SMALL_PARTS_PER_BUDGET = 25
_FACTOR_MAX = 20.0
DELAY_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """``factor`` 1: none. ``reason``: the figure that exceeds its bound most; empty if none does."""

    factor: float = 1.0
    reason: str = ""

    def delay_seconds(self, batch_seconds: float) -> float:
        """How long to wait before the next batch, given how long one takes."""
        return min(DELAY_SECONDS_MAX, batch_seconds * (self.factor - 1))

    def limit(self, rows: int) -> int:
        """How many rows the next batch may have, given how many it had without pressure."""
        return max(1, int(rows / self.factor))


def pressure(snapshot: Snapshot) -> Pressure:
    """How far the table is beyond what readers can bear. Pure.

    Counted are the rows and parts of the tail, which each view resolves, and level-0 parts of the fullest partition, against
    ``SMALL_PARTS_PER_BUDGET`` times the read budget. Claimed parts are not: a replica merges them, or has merged them and
    not uploaded yet.
    """
    claimed = {path for claim in claims_of(snapshot.domains).values() for path in claim.sources}
    levels_0 = Counter(
        part.partition_key for part in snapshot.parts.values() if part.level == 0 and part.path not in claimed
    )
    parts_max = SMALL_PARTS_PER_BUDGET * snapshot.settings.read_budget
    found = {
        "tail_rows": sum(part.rows for part in snapshot.tail.values()) / _TAIL_ROWS_MAX,
        "tail_parts": len(snapshot.tail) / TAIL_PARTS_MAX,
        "level_0_parts": max(levels_0.values(), default=0) / parts_max if snapshot.settings.merge != "off" else 0.0,
    }
    reason = max(found, key=lambda name: found[name])
    if found[reason] <= 1:
        return Pressure()
    return Pressure(min(_FACTOR_MAX, found[reason]), reason)
