"""Where decoded changes are in the order of their source, whether that order begins again (``lateness``), and transactions.

One change after the other is compared with all before it in its partition, also with those that were read before. One that is
lower, and later by the source's clock, shows that the order has begun again; so does one that is far lower, and not earlier. What
a connector sends again is earlier by the clock. Where neither is certain, the settle sees whether changes lose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.metadata import metadata_path
from lakebed.decode.source_order import ORDERS, Described
from lakebed.lateness import CLOCK_STEP_US, FAR, Newest, Place
from lakebed.parts.changes import SEQUENCE_COLUMN
from lakebed.parts.key_moves import UNKNOWN_TRANSACTION
from lakebed.positions.positions import Last
from lakebed.positions.source_columns import Met, RecordColumns, Span, met_in
from lakebed.positions.truncates import Cutoff

_ORDERS = frozenset(ORDERS) | {("source", "commit_ts"), ("kafka", "offset")}
"""Metadata that grow from record to record of a partition, as the clock does."""
_INT64 = np.iinfo(np.int64)
_PIECES_MAX = 64
"""Rows that are in order but for a few are put together from so many pieces, which copies nothing."""
_LOOKS_MAX = 32
_UNSEEN = -2
_LOOKED_BACK_MAX = 16
"""Among so many records at its end a transaction is looked for; tombstones and rows of a snapshot say none."""
_Numbers = npt.NDArray[np.int64]
_Partitions = Mapping[Place, npt.NDArray[np.bool_] | None]
"""The partitions of some records, and which records each has; None: all of them."""


def in_order(rows: pa.Table, name: str) -> pa.Table:
    """The rows in the order of a column of numbers."""
    at = rows.column(name).to_numpy()
    if len(at) < 2 or not (np.diff(at) < 0).any():
        return rows
    order = np.argsort(at, kind="stable")
    begins = [0, *(np.flatnonzero(np.diff(order) != 1) + 1).tolist(), len(order)]
    if len(begins) > _PIECES_MAX:
        return rows.take(pa.array(order))
    return pa.concat_tables([rows.slice(int(order[begin]), end - begin) for begin, end in pairwise(begins)])


def restarted(rows: pa.Table, records: pa.Table, numbers: _Numbers, cutoff: Cutoff) -> pa.Table:
    """The rows with the places that they have since the order was restarted. ``numbers``: of their records."""
    if not cutoff.restarts or SEQUENCE_COLUMN not in rows.column_names:
        return rows
    topics, offsets = records["topic"], np.asarray(pc.fill_null(records["offset"], -1))
    partitions = np.asarray(pc.fill_null(records["partition"], -1))
    add = np.zeros(len(records), dtype=np.int64)
    for one in cutoff.restarts:
        of_topic = np.asarray(pc.fill_null(pc.equal(topics, one.topic), False))
        for partition in np.unique(partitions[of_topic]).tolist():
            start = one.offset(partition, cutoff.topic_ids.get(one.topic))
            add[of_topic & (partitions == partition) & (offsets >= start)] = one.add
    more = add[numbers]
    places = np.asarray(rows[SEQUENCE_COLUMN])
    at = rows.column_names.index(SEQUENCE_COLUMN)
    moved = np.minimum(places, _INT64.max - more) + more  # the greatest number stands for all beyond it
    return rows.set_column(at, rows.schema.field(at), pa.chunked_array([pa.array(moved)]))


def compared(
    rows: pa.Table,
    partitions: _Partitions,
    numbers: _Numbers,
    times: pa.ChunkedArray,
    schema: DecoderSchema,
    cutoff: Cutoff,
) -> tuple[dict[Place, Newest], int]:
    """How far the rows are in the order of their source, by partition, if it has one; and how many show that it began again.

    ``numbers``: of their records; ``times``: of the rows.
    """
    if metadata_path(schema.sequence_metadata) not in _ORDERS or not len(rows):
        return {}, 0
    known = np.asarray(times.is_valid())
    places, micros, numbers = np.asarray(rows[SEQUENCE_COLUMN])[known], np.asarray(times.drop_null()), numbers[known]
    found: dict[Place, Newest] = {}
    again = 0
    for place, is_there in partitions.items():
        mine = slice(None) if is_there is None else is_there[numbers]
        if not len(places[mine]):
            continue
        found[place] = Newest(int(places[mine].max()), int(micros[mine].max()))
        again += _begun_again(places[mine], micros[mine], cutoff.newest.get(place))
    return found, again


def regions_of(records: pa.Table) -> list[tuple[int, int]]:
    """The records of one partition that follow each other, as the numbers of the first and behind the last."""
    if not len(records):
        return []
    changes = np.zeros(len(records) - 1, bool)
    for name in ("topic", "partition"):
        column = records.column(name)
        changes |= np.asarray(pc.fill_null(pc.not_equal(column.slice(1), column.slice(0, len(changes))), True))
    ends = [*(np.flatnonzero(changes) + 1).tolist(), len(records)]
    return list(zip([0, *ends], ends, strict=False))


def partitions_of(records: pa.Table, regions: Sequence[tuple[int, int]]) -> _Partitions:
    """The partitions of some records, in ``regions_of`` them."""
    firsts = records.select(["topic", "partition"]).take(pa.array([begin for begin, _ in regions], pa.int64()))
    found: dict[Place, npt.NDArray[np.bool_]] = {}
    for (begin, end), place in zip(regions, zip(*(each.to_pylist() for each in firsts), strict=True), strict=True):
        found.setdefault(place, np.zeros(len(records), bool))[begin:end] = True
    return found if len(found) > 1 else dict.fromkeys(found)


def met_by(
    records: pa.Table,
    partitions: _Partitions,
    numbers: _Numbers,
    times: pa.ChunkedArray,
    schemas: Mapping[RecordColumns, Sequence[_Numbers]],
) -> Met:
    """The first and the last record of each schema that has rows. ``numbers``: of their records; ``times``: of the rows."""
    if not schemas or not len(numbers):
        return {}
    of_record = np.full(len(records), -1)
    for at, places in enumerate(schemas.values()):
        of_record[np.concatenate(places)] = at
    of_row = of_record[numbers]
    found = []
    for (topic, _), is_there in partitions.items():
        for at, columns in enumerate(schemas):
            mine = np.flatnonzero((of_row == at) & (True if is_there is None else is_there[numbers]))
            if len(mine):
                first, last = (
                    (times[row].as_py() or 0, _offset(records, numbers[row])) for row in mine[[0, -1]].tolist()
                )
                found.append({(str(topic), columns): Span(first, last)})
    return met_in(found)


def _offset(records: pa.Table, number: int) -> int:
    offset = records["offset"][int(number)].as_py()
    return -1 if offset is None else int(offset)


def _begun_again(places: _Numbers, micros: _Numbers, before: Newest | None) -> int:
    """How many changes of one partition show that the order began again."""
    highest = _highest_before(places, before.place if before else _INT64.min)
    lower = places < highest
    if not lower.any():
        return 0
    latest = _highest_before(micros, before.time_us if before else _INT64.min)[lower]
    places, micros, highest = places[lower], micros[lower], highest[lower]
    is_later = micros > latest + CLOCK_STEP_US
    is_far = (places < highest - FAR) & (micros >= latest)
    return int(np.count_nonzero(is_later | is_far))


def _highest_before(values: _Numbers, first: int) -> _Numbers:
    """For each value, the highest one before it."""
    return np.maximum.accumulate(np.concatenate(([first], values[:-1])))


class Describing(Protocol):
    """Says what records are, by their numbers. It raises what it likes for records that can't be read."""

    def described(self, number: int) -> Described | None:
        """What a record is; None if it changes no row."""

    def transactions(self, numbers: _Numbers) -> Iterable[tuple[_Numbers, pa.StringArray]]:
        """The transactions of records in ascending order, as far as they are found quickly: the numbers of some, and theirs."""


class Transactions:
    """The transactions of a batch's records, by the numbers of these."""

    def __init__(
        self,
        records: pa.Table,
        events: Describing,
        regions: Sequence[tuple[int, int]],
        before: Mapping[Place, Last],
    ) -> None:
        """Find them when they are asked for.

        Args:
            records: The records of the batch.
            events: What the records say.
            regions: The records of each partition that follow each other (``regions_of``).
            before: The last record of each partition that earlier batches read.
        """
        self.regions = regions
        self._records = records
        self._values = records.column("value")
        self._events = events
        self._before = before
        self._described: dict[int, Described | None] = {}

    def may_go_on(self, number: int) -> bool:
        """Whether the transaction of a record may have begun before the first record of its partition here."""
        begin, _ = self.region(number)
        end, transaction = self._before.get(self._partition_of(begin), (None, None))
        here = self.described(number)
        if end is None or end != _offset(self._records, begin) or here is None or here.transaction is None:
            return True
        return number_of(here.transaction) == transaction

    def last(self) -> dict[Place, Last]:
        """The last record of each partition, where its transaction is known."""
        found: dict[Place, Last] = {}
        for begin, end in self.regions:
            place, offset = self._partition_of(begin), _offset(self._records, end - 1)
            before = found.pop(place, None) or self._before.get(place)
            for number in range(end - 1, max(begin, end - _LOOKED_BACK_MAX) - 1, -1):
                here = self.described(number)
                if offset < 0 or (here is None and self._values[number].is_valid):
                    break  # what this record says is not known, so its transaction is not
                if here is not None and here.transaction is not None:
                    found[place] = (offset + 1, number_of(here.transaction))
                    break
            else:
                first = _offset(self._records, begin)
                if end - begin <= _LOOKED_BACK_MAX and before is not None and before[0] == first:
                    found[place] = (offset + 1, before[1])
        return found

    def _partition_of(self, number: int) -> Place:
        return self._records.column("topic")[number].as_py(), self._records.column("partition")[number].as_py()

    def run(self, number: int) -> tuple[int, int, int | None]:
        """The transaction of a record: its first record, the one behind its last, and its number.

        The records of a transaction follow each other, but for some that say no transaction: tombstones, rows of a snapshot. Its
        ends are looked for in steps that double, then by halves.
        """
        low, high = self.region(number)
        here = self.described(number)
        if here is None or here.transaction is None:
            return number, number + 1, None

        def is_other(at: int) -> bool:
            towards = 1 if at < number else -1
            while (found := self.described(at)) is None or found.transaction is None:
                at += towards  # it ends: the record that is asked about says its transaction
            return found.transaction != here.transaction

        begin, end = _first(number, low - 1, -1, is_other) + 1, _first(number, high, 1, is_other)
        return begin, end, number_of(here.transaction)

    def ids(self, numbers: _Numbers) -> _Numbers:
        """A number for the transaction of each of these records; -1 if it has none.

        The numbers hold for the records that are asked for together.
        """
        records, at_record = np.unique(numbers, return_inverse=True)
        known = [(records[:0], pa.array([], pa.string()))]
        with suppress(Exception):  # then each of the others is looked at alone
            known.extend(self._events.transactions(records))
        encoded = pa.concat_arrays([texts for _, texts in known]).dictionary_encode()
        ids = np.full(len(records), _UNSEEN)
        places = np.searchsorted(records, np.concatenate([some for some, _ in known]))
        ids[places] = np.asarray(encoded.indices.fill_null(-1))
        if (ids == _UNSEEN).any():
            found = {None: -1, **{text: at for at, text in enumerate(encoded.dictionary.to_pylist())}}
            for at in np.flatnonzero(ids == _UNSEEN).tolist():
                here = self.described(int(records[at]))
                ids[at] = found.setdefault(None if here is None else here.transaction, len(found))
        return ids[at_record]

    def are_one(self, one: _Numbers, other: _Numbers) -> npt.NDArray[np.bool_]:
        """Which pairs of records, each with one behind it in its partition, are of one transaction.

        As a transaction is a run of records, no pair around the beginning of one is. A few looks tell that of most pairs.
        """
        kept = np.arange(len(one))
        for _ in range(_LOOKS_MAX):
            if not len(kept):
                break
            number = int(other[kept].min())
            low, high = self.region(number)
            begin, _, transaction = self.run(number)
            if transaction is None:
                begin, high = number, number + 1
            are_two = (low <= one[kept]) & (one[kept] < begin) & (begin <= other[kept]) & (other[kept] < high)
            if not are_two.any():
                break
            kept = kept[~are_two]
        numbers = np.union1d(one[kept], other[kept])
        ids = self.ids(numbers)
        here, there = (ids[np.searchsorted(numbers, some[kept])] for some in (one, other))
        found = np.zeros(len(one), bool)
        found[kept] = (here == there) & (here >= 0)
        return found

    def region(self, number: int) -> tuple[int, int]:
        """The region of a record."""
        return next(one for one in self.regions if one[0] <= number < one[1])

    def described(self, number: int) -> Described | None:
        """What a record is; None if it changes no row or can't be read."""
        if number not in self._described:
            try:
                found = self._events.described(number)
            except Exception:  # whatever is wrong with a record, it has no row then
                found = None
            self._described[number] = found
        return self._described[number]


def _first(number: int, bound: int, direction: int, is_other: Callable[[int], bool]) -> int:
    """The first record from a number on, in a direction, that is of another transaction; the bound if there is none."""
    same, step = number, 1
    while True:
        probe = number + direction * step
        if (probe - bound) * direction >= 0:
            other = bound
            break
        if is_other(probe):
            other = probe
            break
        same, step = probe, 2 * step
    while abs(other - same) > 1:
        middle = (same + other) // 2
        if is_other(middle):
            other = middle
        else:
            same = middle
    return other


def number_of(transaction: str) -> int:
    """A number for the text of a transaction."""
    digest = hashlib.blake2b(transaction.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True) or UNKNOWN_TRANSACTION
