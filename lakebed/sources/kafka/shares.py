"""How a limited number of records is shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from lakebed.sources.kafka.cluster import Partitions

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
