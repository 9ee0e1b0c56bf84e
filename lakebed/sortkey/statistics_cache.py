"""What the statistics of a table's parts say, read once and kept while the parts are in the table.

Plans are made and parts left out after every commit, and a commit changes few of many parts. So the versions of a table share
what was read of their parts' statistics; a text of statistics is read when it is first met.

1. Each text has a number. By number there are two arrays for each column asked for, its least and greatest value, and for each
   order asked for a list of ranges.
2. The ends of an order's ranges are kept sorted. New ones are placed by bisection, and all ranks behind them move up in one
   addition. So ranges of the same order are compared as whole numbers.
3. When texts of other parts than the live ones are more than ``SPARE_SHARE`` of these and ``SPARE_TEXTS`` besides, they go
   (``keep``). An order by a whole number takes some 320 bytes a part, a column twice its value.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from lakebed.sortkey.ranges import Bound, Indexes, Range, Ranked, range_in
from lakebed.sortkey.sort_key import SortTerm
from lakebed.sortkey.statistics import highest, lowest, parsed_stats

SPARE_SHARE = 0.25
SPARE_TEXTS = 256
_COLUMNS_MAX = 32
_ORDERS_MAX = 4


class StatisticsCache:
    """Bounds and ranges by the text of statistics (Delta's JSON, None for a part that has none). Safe in several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[str | None, int] = {}
        self._columns: dict[tuple[str, pa.DataType], _Column] = {}
        self._orders: dict[tuple[SortTerm, ...], _Order] = {}

    def __reduce__(self) -> tuple[type[StatisticsCache], tuple[()]]:
        return StatisticsCache, ()  # a copy in another process begins with nothing

    def __len__(self) -> int:
        return len(self._numbers)

    def bounds(self, texts: Iterable[str | None], field: pa.Field) -> tuple[pa.Array, pa.Array]:
        """What no value of a column is below, and above, for each text; null where that is not known."""
        with self._lock:
            numbers = self._numbered(texts)
            key = field.name, field.type
            column = self._columns.get(key)
            if column is None:
                column = _made(self._columns, key, _Column(*key), _COLUMNS_MAX)
            self._read_on(column)
            return column.low.take(numbers), column.high.take(numbers)

    def ranges(self, texts: Iterable[str | None], terms: tuple[SortTerm, ...]) -> Ranked:
        """The range of each text by an order, as ``ranges.range_of`` has it."""
        with self._lock:
            numbers = self._numbered(texts)
            order = self._orders.get(terms)
            if order is None:
                order = _made(self._orders, terms, _Order(terms), _ORDERS_MAX)
            self._read_on(order)
            return order.of(numbers)

    def keep(self, live: Collection[str | None]) -> None:
        """Forget what is not among these texts, once it is much."""
        with self._lock:
            if len(self._numbers) <= len(live) * (1 + SPARE_SHARE) + SPARE_TEXTS:
                return
            kept = {text: number for text in live if (number := self._numbers.get(text)) is not None}
            numbers = np.fromiter(kept.values(), np.int64, len(kept))
            everything: list[_Column | _Order] = [*self._columns.values(), *self._orders.values()]
            for known in everything:
                self._read_on(known)
                known.keep(numbers)
            self._numbers = {text: number for number, text in enumerate(kept)}

    def _numbered(self, texts: Iterable[str | None]) -> Indexes:
        known = self._numbers
        found = [known.setdefault(text, len(known)) for text in texts]
        return np.array(found, dtype=np.int64)

    def _read_on(self, known: _Column | _Order) -> None:
        """Read the texts that came since."""
        if len(known) < len(self._numbers):
            texts = list(self._numbers)[len(known) :]
            known.add([_values(text, known.is_exact) for text in texts])


def _made(known: dict[Any, Any], key: object, value: Any, count_max: int) -> Any:
    """The one that was made first goes if there are too many."""
    if len(known) >= count_max:
        del known[next(iter(known))]
    known[key] = value
    return value


def _values(text: str | None, is_exact: bool) -> Mapping[str, Any]:
    if text is None:
        return {}
    if is_exact:  # decimals
        return parsed_stats(text)
    try:
        values: Mapping[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError:  # another writer's NaN
        return parsed_stats(text)
    return values


class _Column:
    """Least and greatest values by number."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self._name, self._kind = name, kind
        self.is_exact = pa.types.is_decimal(kind)
        self.low = self.high = pa.nulls(0, kind)

    def __len__(self) -> int:
        return len(self.low)

    def add(self, stats: Sequence[Mapping[str, Any]]) -> None:
        pairs = [self._bounds_in(values) for values in stats]
        try:
            low, high = (pa.array(ends, self._kind) for ends in zip(*pairs, strict=True))
        except (pa.ArrowException, OverflowError):  # another writer's way to write them
            low = high = pa.nulls(len(pairs), self._kind)
        self.low, self.high = pa.concat_arrays([self.low, low]), pa.concat_arrays([self.high, high])

    def keep(self, numbers: Indexes) -> None:
        self.low, self.high = self.low.take(pa.array(numbers)), self.high.take(pa.array(numbers))

    def _bounds_in(self, stats: Mapping[str, Any]) -> tuple[Any, Any]:
        low = (stats.get("minValues") or {}).get(self._name)
        high = (stats.get("maxValues") or {}).get(self._name)
        if low is None or high is None:
            return None, None
        try:
            return lowest(low, self._kind), highest(high, self._kind)
        except (ValueError, TypeError, AttributeError):  # another writer's way to write it, or a year that Python lacks
            return None, None


class _Order:
    """Ranges by number, and the ranks of their ends among all ends."""

    def __init__(self, terms: tuple[SortTerm, ...]) -> None:
        self._terms = terms
        self._names = [term.name for term in terms]
        self.is_exact = any(pa.types.is_decimal(kind) for term in terms for kind in (term.type, *term.kinds))
        self._ranges: list[Range] = []
        self._ends: list[Bound] = []
        self._lower = self._upper = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ranges)

    def of(self, numbers: Indexes) -> Ranked:
        ranges = self._ranges
        return Ranked([ranges[number] for number in numbers.tolist()], self._lower[numbers], self._upper[numbers])

    def add(self, stats: Sequence[Mapping[str, Any]]) -> None:
        ranges = [range_in(values, self._terms, self._names) for values in stats]
        ends = sorted({end for item in ranges for end in (item.lower, item.upper)})
        places = [bisect_left(self._ends, end) for end in ends]
        is_new = [place == len(self._ends) or self._ends[place] != end for place, end in zip(places, ends, strict=True)]
        where = np.array([place for place, new in zip(places, is_new, strict=True) if new], dtype=np.int64)
        before = np.cumsum(is_new) - is_new  # of each end, how many new ones stand before it
        rank = dict(zip(ends, (np.array(places, dtype=np.int64) + before).tolist(), strict=True))
        lower = np.fromiter((rank[item.lower] for item in ranges), np.int64, len(ranges))
        upper = np.fromiter((rank[item.upper] for item in ranges), np.int64, len(ranges))
        self._lower = np.concatenate((self._lower + np.searchsorted(where, self._lower, side="right"), lower))
        self._upper = np.concatenate((self._upper + np.searchsorted(where, self._upper, side="right"), upper))
        self._ranges += ranges
        merged: list[Bound] = []
        at = 0
        for end, place, new in zip(ends, places, is_new, strict=True):
            if new:
                merged += self._ends[at:place]
                merged.append(end)
                at = place
        self._ends = merged + self._ends[at:]

    def keep(self, numbers: Indexes) -> None:
        self._ranges = [self._ranges[number] for number in numbers.tolist()]
        self._lower, self._upper = self._lower[numbers], self._upper[numbers]
        is_kept = np.zeros(len(self._ends), dtype=bool)
        is_kept[self._lower] = is_kept[self._upper] = True
        rank = np.cumsum(is_kept) - 1
        self._ends = [self._ends[place] for place in np.flatnonzero(is_kept).tolist()]
        self._lower, self._upper = rank[self._lower], rank[self._upper]
