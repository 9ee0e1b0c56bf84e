"""A generated stream of orders that needs no server: Debezium-shaped events, made inside the tasks, always the same ones.

Invariants
    N1  Event i is a function of (settings, i). Its time also depends on the stream's clock, which is in the offset. So a
        replayed range gives the same bytes.
    N2  An update or delete affects an order that was created before and is not deleted; an order is deleted at most once.

How an event is computed without the events before it
    1.  Shares are of ten thousand. ``i * inserts / 10,000``, rounded up, is the number of orders before event i. Event i
        creates an order if this number is higher at i + 1. So the event that created order n can be computed. Deletes
        take slots among the other events in the same way; all remaining events are updates.
    2.  The k-th delete takes the k-th of a fixed set of orders, evenly spaced. It comes a number of deletes later, so
        that the order exists.
    3.  An update chooses an order by its age: with probability ``skew`` log-uniformly (as in Zipf's law, recent orders
        more often), else uniformly. If that order is already deleted, the next order is updated, which is never deleted.
    4.  A late update happened before it arrives: its time and log position are those of an earlier event.

The rows of the streaming source are ranges of event numbers. An offset document is ``{"next": the next event number, "clock": the
time of event 0 in epoch microseconds}``; ``{}`` is the beginning. Events become due at the stream's rate. A stream that was
stopped continues with the next event number; its clock is moved, so that no events are made for the time in between.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from lakebed.decode.decoder import RECORD_SCHEMA
from lakebed.errors import InvalidInput
from lakebed.sources.range_stream import RangeSource
from lakebed.sources.source import Bounds, Place, Range, RangePlanner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


TOPIC = "orders"
KEYS = ("order_id",)
COLUMNS = pa.schema(
    [
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("customer_id", pa.int64()),
        pa.field("region", pa.string()),
        pa.field("status", pa.string()),
        pa.field("amount", pa.decimal128(12, 2)),
        pa.field("note", pa.string()),
        pa.field("created_at", pa.timestamp("us", "UTC")),
        pa.field("updated_at", pa.timestamp("us", "UTC")),
    ]
)
"""The table that the events are changes of."""

_SHARES_OF = 10_000
_DELETES_LATE = 200
"""A delete removes an order whose turn came this many deletes earlier."""
_REGIONS = ("eu-west", "eu-north", "us-east", "us-west", "ap-south", "ap-east", "sa-east", "af-south")
_STATUSES = ("paid", "packed", "shipped", "delivered", "returned")
_NOTES = ("call first", "gift wrap", "leave at the door", "fragile", "größer als üblich", '"rush"')
_LSN_OF_EVENT_0 = 50_000_000

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Bits: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
_Fractions: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
_Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderStream:
    """The settings of the stream. Shares are fractions of all events; all but inserts and deletes are updates."""

    events_per_second: float = 1000.0
    seed: int = 1
    inserts: float = 0.25
    deletes: float = 0.05
    skew: float = 0.8
    late: float = 0.0
    late_events_max: int = 10_000
    """A late update happened at most this many events before it arrives."""
    events_max: int | None = None
    """The stream ends after this many events."""

    def __post_init__(self) -> None:
        if self.events_per_second <= 0:
            raise InvalidInput(f"generator: events_per_second is {self.events_per_second}; it must be above 0")
        if not 0 < self.inserts <= 1 or not 0 <= self.deletes <= self.inserts / 2 or self.inserts + self.deletes > 1:
            raise InvalidInput(
                f"generator: inserts {self.inserts} and deletes {self.deletes} don't fit: inserts are in (0, 1], "
                "deletes at most half of them, both together at most 1"
            )
        for name in ("skew", "late"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(f"generator: {name} is {getattr(self, name)}; it must be in [0, 1]")

    def events(self, start: int, end: int, clock_micros: int) -> pa.Table:
        """Events start <= i < end as records (``RECORD_SCHEMA``); event 0 happened at ``clock_micros``."""
        chosen = _choose(self, np.arange(start, end, dtype=np.int64))
        return _records(self, chosen, clock_micros)


@dataclass(frozen=True, slots=True)
class _Chosen:
    event: Numbers
    order: Numbers
    happened: Numbers
    operation: np.ndarray[Any, np.dtype[np.str_]]


def _random(seed: int, stream: int, numbers: Numbers) -> Bits:
    """64 random bits per number: SplitMix64 of (seed, stream, number) (Steele, Lea and Flood, 2014)."""
    salt = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z: Bits = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return z


def _uniform(seed: int, stream: int, numbers: Numbers) -> _Fractions:
    fractions: _Fractions = (_random(seed, stream, numbers) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return fractions


def _choose(settings: OrderStream, event: Numbers) -> _Chosen:
    inserts = round(settings.inserts * _SHARES_OF)
    deletes = round(settings.deletes * _SHARES_OF)
    others = _SHARES_OF - inserts
    orders = -(-event * inserts // _SHARES_OF)  # rounded up, so that event 0 creates order 0
    creates = -(-(event + 1) * inserts // _SHARES_OF) > orders
    rest = event - orders
    slot = rest * deletes // max(others, 1)
    removes = ~creates & ((rest + 1) * deletes // max(others, 1) > slot) & (slot >= _DELETES_LATE)

    span = np.maximum(orders, 1).astype(np.float64)
    draw = _uniform(settings.seed, 1, event)
    recent = _uniform(settings.seed, 2, event) < settings.skew
    age = np.where(recent, np.exp(draw * np.log(span + 1)) - 1, draw * span).astype(np.int64)
    order = np.maximum(orders - 1 - age, 0)
    if deletes:
        order = np.where(_deleted(order, slot, inserts, deletes), order + 1, order)
        order = np.where(removes, (slot - _DELETES_LATE) * inserts // deletes, order)
    order = np.where(creates, orders, order)

    late = ~creates & ~removes & (_uniform(settings.seed, 3, event) < settings.late)
    delay = 1 + (_random(settings.seed, 4, event) % np.uint64(max(settings.late_events_max, 1))).astype(np.int64)
    created = _created(order, inserts)
    happened = np.where(late, np.maximum(event - delay, created), event)
    operation = np.where(creates, "c", np.where(removes, "d", "u"))
    return _Chosen(event, order, happened, operation)


def _deleted(order: Numbers, slot: Numbers, inserts: int, deletes: int) -> _Mask:
    """Whether an order is one of those that get deleted, and was deleted within the first ``slot`` delete slots."""
    turn = -(-order * deletes // inserts)
    gone: _Mask = (turn * inserts // deletes == order) & (turn + _DELETES_LATE <= slot)
    return gone


def _created(order: Numbers, inserts: int) -> Numbers:
    """The event that creates an order."""
    return order * _SHARES_OF // inserts


def _records(settings: OrderStream, chosen: _Chosen, clock_micros: int) -> pa.Table:
    inserts = round(settings.inserts * _SHARES_OF)
    micros_per_event = 1_000_000 / settings.events_per_second
    seed = settings.seed
    arrived = clock_micros + (chosen.event * micros_per_event).astype(np.int64)
    happened = clock_micros + (chosen.happened * micros_per_event).astype(np.int64)
    created = clock_micros + (_created(chosen.order, inserts) * micros_per_event).astype(np.int64)
    of_order = _random(seed, 5, chosen.order)
    of_event = _random(seed, 6, chosen.event)
    columns = zip(
        chosen.operation.tolist(),
        chosen.order.tolist(),
        of_order.tolist(),
        of_event.tolist(),
        created.tolist(),
        happened.tolist(),
        chosen.happened.tolist(),
        arrived.tolist(),
        strict=True,
    )
    values = [_value(row) for row in columns]
    keys = [b'{"order_id":%d}' % order for order in chosen.order.tolist()]
    count = len(values)
    arrays = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.repeat(pa.scalar(TOPIC, pa.string()), count),
        pa.repeat(pa.scalar(0, pa.int32()), count),
        pa.array(chosen.event, pa.int64()),
        pa.array(arrived // 1000, pa.int64()).view(pa.timestamp("ms", "UTC")),
    ]
    return pa.Table.from_arrays(arrays, schema=RECORD_SCHEMA)


def _value(row: tuple[str, int, int, int, int, int, int, int]) -> bytes:
    operation, order, of_order, of_event, created, happened, position, arrived = row
    before, after = "null", "null"
    if operation == "d":
        before = (
            f'{{"order_id":{order},"customer_id":null,"region":null,"status":null,"amount":null,"note":null,'
            '"created_at":null,"updated_at":null}'
        )
    else:
        status = "new" if operation == "c" else _STATUSES[of_event % len(_STATUSES)]
        text = _NOTES[of_event // 7 % len(_NOTES)].replace('"', '\\"')
        note = f'"{text} #{of_event % 100_000}"' if of_event % 3 else "null"
        after = (
            f'{{"order_id":{order},"customer_id":{of_order % 100_000},"region":"{_REGIONS[of_order // 100_000 % 8]}",'
            f'"status":"{status}","amount":"{of_event % 900_000 / 100 + 1:.2f}","note":{note},'
            f'"created_at":{created},"updated_at":{happened}}}'
        )
    source_ms, arrived_ms = happened // 1000, arrived // 1000
    return (
        f'{{"before":{before},"after":{after},"source":{{"version":"3.7.0.Final","connector":"postgresql","name":"shop",'
        f'"ts_ms":{source_ms},"snapshot":"false","db":"shop","sequence":"[null,\\"{_LSN_OF_EVENT_0 + position}\\"]",'
        f'"ts_us":{happened},"ts_ns":{happened}000,"schema":"public","table":"orders","txId":{1000 + position},'
        f'"lsn":{_LSN_OF_EVENT_0 + position},"xmin":null}},"transaction":null,"op":"{operation}","ts_ms":{arrived_ms},'
        f'"ts_us":{arrived},"ts_ns":{arrived}000}}'
    ).encode()


_TABLE_EVENTS_MAX = 20_000
_BEHIND_SECONDS_MAX = 5.0
"""A stream that was stopped for longer than this continues from the present time."""


@dataclass(slots=True)
class GeneratorReader:
    """Generates the events of a range inside a task."""

    orders: OrderStream
    tasks: int
    records_lost: int = 0

    @property
    def skips_losses(self) -> bool:
        return False

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        return _ranges_between(start, end, self.tasks)

    def bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        return {place: Bounds(earliest=0, starting=0, end=None) for place in places}

    def impatient(self) -> GeneratorReader:
        return self

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        for start in range(chosen.start, chosen.end, _TABLE_EVENTS_MAX):
            yield self.orders.events(start, min(start + _TABLE_EVENTS_MAX, chosen.end), chosen.clock_micros or 0)


@dataclass(frozen=True, slots=True)
class GeneratorSource:
    """Generated orders as a source of a pipeline; ``tasks`` is the number of ranges per batch.

    ``batch_seconds``: the pace of batches (``Pace``).
    """

    orders: OrderStream = field(default_factory=OrderStream)
    tasks: int = 2
    max_records_per_batch: int | None = None
    batch_seconds: float = 0.0

    @property
    def reader(self) -> GeneratorReader:
        return GeneratorReader(self.orders, self.tasks)

    def stream(self, spark: SparkSession) -> DataFrame:
        settings = {"orders": asdict(self.orders), "tasks": self.tasks, "limit": self.max_records_per_batch}
        return _GeneratedRanges.frame(spark, json.dumps(settings), self.batch_seconds)


class _GeneratedRanges(RangeSource):
    FORMAT = "lakebed_generator"

    def planned_by(self, settings: str) -> tuple[GeneratorPlanner, GeneratorReader]:
        parsed = json.loads(settings)
        orders = OrderStream(**parsed["orders"])
        return GeneratorPlanner(orders, parsed["limit"]), GeneratorReader(orders, parsed["tasks"])


class GeneratorPlanner(RangePlanner):
    """Plans which events each batch generates."""

    def __init__(
        self, orders: OrderStream, limit: int | None, clock_micros: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        self._orders = orders
        self._clock_micros = clock_micros
        self._limit = limit
        self._moved_clock: int | None = None
        self._asked = False
        self._stop_micros: int | None = None

    def only_what_is_there_now(self) -> None:
        self._stop_micros = self._clock_micros()

    def next(self, start: Mapping[str, Any]) -> dict[str, Any]:
        now = self._clock_micros()
        made = int(start.get("next", 0))
        last = self._orders.events_max
        if last is not None and self._stop_micros is not None:
            due, clock = last, int(start.get("clock", now))  # a bounded stream is available as a whole
        else:
            clock = self._clock(start, made, now)
            due = int((min(now, self._stop_micros or now) - clock) * self._orders.events_per_second / 1e6)
        self.left_some = self._limit is not None and due > made + self._limit
        if self._limit is not None:
            due = min(due, made + self._limit)
        if last is not None:
            due = min(due, last)
        return {"next": due, "clock": clock} if due > made else dict(start)

    def _clock(self, start: Mapping[str, Any], made: int, now: int) -> int:
        """The time of event 0. It is moved at most once: when the stream begins, or resumes late or at another rate."""
        if not self._asked:
            self._asked = True
            made_seconds = made / self._orders.events_per_second
            if "clock" not in start or abs((now - start["clock"]) / 1e6 - made_seconds) > _BEHIND_SECONDS_MAX:
                self._moved_clock = now - int(made_seconds * 1e6)
        return int(start["clock"]) if self._moved_clock is None else self._moved_clock


def _ranges_between(start: Mapping[str, Any], end: Mapping[str, Any], tasks: int) -> list[Range]:
    """The ranges of a batch between two offset documents, one a task; they follow each other in the one partition."""
    first, last = start.get("next", 0), end.get("next", 0)
    cuts = sorted({first + (last - first) * task // tasks for task in range(tasks + 1)})
    return [Range(TOPIC, 0, low, high, end["clock"], is_first=low == 0) for low, high in pairwise(cuts)]
