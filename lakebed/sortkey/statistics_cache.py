"""A cache of the parsed statistics of a table's parts. All versions of the table share it.

After every commit plans are made and reads skip parts, but a commit changes only few parts. So a text of statistics is parsed
when it is first needed, and not again while its part is in the table.

1. Each text has a number. For each column that was asked for there are two arrays by number, with its least and its greatest
   value. For each order that was asked for there is a list of ranges.
2. The ends of an order's ranges are kept sorted. New ends are placed by bisection, and all ranks behind them move up in one
   addition. So ranges of the same order are compared as whole numbers.
3. Texts of parts that are no longer live are dropped (``keep``) when they are more than ``SPARE_TEXTS`` plus the share
   ``SPARE_SHARE`` of the live ones. An order by a whole number takes some 320 bytes a part, a column twice its value.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    """Bounds and ranges by the text of statistics (Delta's JSON, None for a part that has none). Safe in several threads.

    No text is read under its own lock: threads wait for each other only where they need the same column or order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of what is in ``_now``
        self._now = _Numbering()

    def __len__(self) -> int:
        return len(self._now.texts)

    def bounds(self, texts: Iterable[str | None], field: pa.Field) -> tuple[pa.Array, pa.Array]:
        """The lower and the upper bounds of a column for each text; null where unknown."""
        now = self._now
        numbers = self._numbered(now, texts)
        key = field.name, field.type
        with self._lock:
            column = now.columns.get(key)
            if column is None:
                column = _made(now.columns, key, _Column(*key), _COLUMNS_MAX)
        low, high = column.up_to_date(now.texts)
        return low.take(numbers), high.take(numbers)

    def ranges(self, texts: Iterable[str | None], terms: tuple[SortTerm, ...]) -> Ranked:
        """The range of each text by an order, as ``ranges.range_of`` has it."""
        now = self._now
        numbers = self._numbered(now, texts)
        with self._lock:
            order = now.orders.get(terms)
            if order is None:
                order = _made(now.orders, terms, _Order(terms), _ORDERS_MAX)
        ranges, lower, upper = order.up_to_date(now.texts)
        return Ranked([ranges[number] for number in numbers.tolist()], lower[numbers], upper[numbers])

    def keep(self, live: Collection[str | None]) -> None:
        """Drop texts that are not among these, once there are many; not while others read: the next call is soon enough."""
        now = self._now
        if len(now.texts) <= len(live) * (1 + SPARE_SHARE) + SPARE_TEXTS:
            return
        with self._lock:
            columns, orders = dict(now.columns), dict(now.orders)
            kept = {text: number for text in live if (number := now.numbers.get(text)) is not None}
        numbers = np.fromiter(kept.values(), np.int64, len(kept))
        after = _Numbering(list(kept), {text: number for number, text in enumerate(kept)})
        for key, column in columns.items():
            if (some := column.of(now.texts, numbers)) is None:
                return
            after.columns[key] = some
        for terms, order in orders.items():
            if (few := order.of(now.texts, numbers)) is None:
                return
            after.orders[terms] = few
        # Other threads go on with the numbering that they began with; what they add to it is read again when it is needed.
        with self._lock:
            if self._now is now:
                self._now = after

    def _numbered(self, now: _Numbering, texts: Iterable[str | None]) -> Indexes:
        known, asked = now.numbers, list(texts)
        found = [known.get(text, -1) for text in asked]
        if -1 in found:
            with self._lock:
                for place, number in enumerate(found):
                    if number < 0:
                        found[place] = now.number_of(asked[place])
        return np.array(found, dtype=np.int64)


@dataclass(slots=True)
class _Numbering:
    """Texts by number, numbers by text, and what was parsed of the texts, by number. Only grows."""

    texts: list[str | None] = field(default_factory=list)
    numbers: dict[str | None, int] = field(default_factory=dict)
    columns: dict[tuple[str, pa.DataType], _Column] = field(default_factory=dict)
    orders: dict[tuple[SortTerm, ...], _Order] = field(default_factory=dict)

    def number_of(self, text: str | None) -> int:
        """The number of a text that may be new."""
        number = self.numbers.get(text)
        if number is None:
            number = len(self.texts)
            self.texts.append(text)
            self.numbers[text] = number
        return number


def _made(known: dict[Any, Any], key: object, value: Any, count_max: int) -> Any:
    """Add a value and return it; the one added first is dropped if there are too many."""
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
        self._is_exact = pa.types.is_decimal(kind)
        self._lock = threading.Lock()  # a text is read by one thread
        self._low = self._high = pa.nulls(0, kind)

    def up_to_date(self, texts: Sequence[str | None]) -> tuple[pa.Array, pa.Array]:
        """Least and greatest values of all texts."""
        with self._lock:
            if len(self._low) < len(texts):
                self._add([_values(text, self._is_exact) for text in texts[len(self._low) :]])
            return self._low, self._high

    def of(self, texts: Sequence[str | None], numbers: Indexes) -> _Column | None:
        """The same for some of the texts, with new numbers; None while another thread reads."""
        if self._lock.locked():
            return None
        low, high = self.up_to_date(texts)
        some = _Column(self._name, self._kind)
        some._low, some._high = low.take(pa.array(numbers)), high.take(pa.array(numbers))
        return some

    def _add(self, stats: Sequence[Mapping[str, Any]]) -> None:
        pairs = [self._bounds_in(values) for values in stats]
        try:
            low, high = (pa.array(ends, self._kind) for ends in zip(*pairs, strict=True))
        except (pa.ArrowException, OverflowError):  # another writer's way to write them
            low = high = pa.nulls(len(pairs), self._kind)
        self._low, self._high = pa.concat_arrays([self._low, low]), pa.concat_arrays([self._high, high])

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
        self._is_exact = any(pa.types.is_decimal(kind) for term in terms for kind in (term.type, *term.kinds))
        self._ranges: list[Range] = []
        self._ends: list[Bound] = []
        self._lower = self._upper = np.zeros(0, dtype=np.int64)
        self._lock = threading.Lock()  # a text is read by one thread

    def up_to_date(self, texts: Sequence[str | None]) -> tuple[Sequence[Range], Indexes, Indexes]:
        """The ranges of all texts, to be read only, and the ranks of their ends."""
        with self._lock:
            self._read_on(texts)
            return self._ranges, self._lower, self._upper

    def of(self, texts: Sequence[str | None], numbers: Indexes) -> _Order | None:
        """The same for some of the texts, with new numbers; None while another thread reads."""
        if self._lock.locked():
            return None
        with self._lock:
            self._read_on(texts)
            ranges, ends, lower, upper = self._ranges, self._ends, self._lower[numbers], self._upper[numbers]
        some = _Order(self._terms)
        some._ranges = [ranges[number] for number in numbers.tolist()]
        is_kept = np.zeros(len(ends), dtype=bool)
        is_kept[lower] = is_kept[upper] = True
        rank = np.cumsum(is_kept) - 1
        some._ends = [ends[place] for place in np.flatnonzero(is_kept).tolist()]
        some._lower, some._upper = rank[lower], rank[upper]
        return some

    def _read_on(self, texts: Sequence[str | None]) -> None:
        if len(self._ranges) < len(texts):
            self._add([_values(text, self._is_exact) for text in texts[len(self._ranges) :]])

    def _add(self, stats: Sequence[Mapping[str, Any]]) -> None:
        ranges = [range_in(values, self._terms, self._names) for values in stats]
        ends = sorted({end for item in ranges for end in (item.lower, item.upper)})
        places = [bisect_left(self._ends, end) for end in ends]
        is_new = [place == len(self._ends) or self._ends[place] != end for place, end in zip(places, ends, strict=True)]
        where = np.array([place for place, new in zip(places, is_new, strict=True) if new], dtype=np.int64)
        before = np.cumsum(is_new) - is_new  # of each end, how many new ones are before it
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
