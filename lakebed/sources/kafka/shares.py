"""How a limited number of records is shared, and what a limit of bytes is in records, by a sample of their size."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TypeVar

from lakebed.sources.kafka.cluster import Partitions
from lakebed.sources.kafka.range import consume_range
from lakebed.sources.kafka.settings import KafkaSettings

T = TypeVar("T")


def in_proportion(waiting: Partitions, records: int) -> Partitions:
    """Of ``records`` each partition gets as much as it has of all waiting records, so all are read at the same time."""
    total = sum(waiting.values())
    if records >= total:
        return dict(waiting)
    shares = {p: count * records // total for p, count in waiting.items()}
    left = max(records, 1) - sum(shares.values())
    for p in sorted(waiting, key=lambda p: (shares[p] - waiting[p], p)):
        more = min(left, waiting[p] - shares[p], 1 + left // len(waiting))
        shares[p] += more
        left -= more
    return shares


def in_turn(order: Iterable[T], waiting: Mapping[T, int], records: int, piece: int) -> dict[T, int]:
    """In this order, each gets up to ``piece`` records; what is left then is given away in the same order.

    So many that wait for little get it at once, and a few that wait for much get pieces that are worth their batch.
    """
    shares: dict[T, int] = {}
    turn = list(order)
    for most in (piece, records):
        for each in turn:
            more = min(records, max(0, min(waiting[each], most) - shares.get(each, 0)))
            if more:
                shares[each] = shares.get(each, 0) + more
                records -= more
    return shares


_SAMPLE_SECONDS = 10.0
_SAMPLE_RECORDS = 500
_UNKNOWN_BYTES = 1024.0


class RecordBytes:
    """Samples now and then."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._mean: float | None = None
        self._sampled_at = float("-inf")

    def mean(self, topic: str, partition: int, start: int, end: int) -> float:
        """Of records like those of this range."""
        if self._mean is None or time.monotonic() - self._sampled_at >= _SAMPLE_SECONDS:
            records = size = 0
            sample = min(end, start + _SAMPLE_RECORDS)
            for table in consume_range(self._settings, topic, partition, start, sample, lambda lost: None):
                records += table.num_rows
                size += table.column("key").nbytes + table.column("value").nbytes
            if records:
                self._mean = max(1.0, size / records)
            self._sampled_at = time.monotonic()
        return self._mean or _UNKNOWN_BYTES
