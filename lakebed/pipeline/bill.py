"""What the requests to a store cost that keep a database fresh: commits by the pace of its tables, times prices. Pure.

1.  A table's next batch begins when its oldest unread record is ``max_age_seconds`` old, or when so many are unread that a batch
    is worth its cost (``HOT_RECORDS``), but never sooner than the pace of batches. So the time from one batch to the next
    follows from how many records come.
2.  A batch is a commit, and mostly a settle follows it. Both together take the requests that docs/guides/s3.md counts. Merges
    come on top: they depend on the bytes, not on the number of tables, and most of them stay on the local disk.
3.  A table into which nothing comes is looked at after the longest of ``LOOK_SECONDS``, as another process may write to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakebed.compaction.maintenance import LOOK_SECONDS
from lakebed.sources.pace import HOT_RECORDS

DAY_SECONDS = 86_400.0
PUTS_PER_BATCH = 3
"""A part, the version of the commit, and that of the settle."""
GETS_PER_BATCH = 4
"""One before and one after each of them."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Of a day. ``dollars``: for the requests alone, neither storage nor traffic."""

    commits: float
    puts: float
    gets: float
    dollars: float


def batches_a_day(records: float, max_age_seconds: float, batch_seconds: float) -> float:
    """The batches of a table that gets ``records`` a day at an even rate."""
    if records <= 0:
        return 0.0
    between = DAY_SECONDS / records
    oldest = max_age_seconds + between
    return DAY_SECONDS / max(batch_seconds, between, min(oldest, HOT_RECORDS * between))


def bill(batches: Iterable[float], puts_price: float, gets_price: float) -> Bill:
    """``batches``: of each table a day; prices: of 1,000 requests."""
    each = list(batches)
    total = sum(each)
    looks = sum(max(0.0, DAY_SECONDS / max(LOOK_SECONDS) - one) for one in each)
    puts, gets = total * PUTS_PER_BATCH, total * GETS_PER_BATCH + looks
    return Bill(2 * total, puts, gets, puts / 1000 * puts_price + gets / 1000 * gets_price)
