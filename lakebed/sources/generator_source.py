"""A streaming source whose rows are ranges of event numbers of the generator.

An offset document is ``{"next": the next event number, "clock": the time of event 0 in epoch microseconds}``; ``{}`` is
the beginning. Events become due at the stream's rate. A stream that was stopped continues with the next event number;
its clock is moved, so that no events are made for the time in between.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from lakebed.error_transport import methods_cross_spark
from lakebed.errors import InvalidInput
from lakebed.sources.generator import TOPIC, OrderStream
from lakebed.sources.pace import Pace
from lakebed.sources.source import RANGE_SCHEMA_DDL, Bounds, Place, Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FORMAT = "lakebed_generator"
_SETTINGS_OPTION = "settings"
_TABLE_EVENTS_MAX = 20_000
_IDLE_WAIT_SECONDS = 0.5
_IDLE_POLL_SECONDS = 0.1
BEHIND_SECONDS_MAX = 5.0
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
        spark.dataSource.register(_GeneratedRanges)
        limit, pace = self.max_records_per_batch, self.batch_seconds
        settings = {"orders": asdict(self.orders), "tasks": self.tasks, "limit": limit, "batch_seconds": pace}
        return spark.readStream.format(_FORMAT).option(_SETTINGS_OPTION, json.dumps(settings)).load()


@methods_cross_spark
class _GeneratedRanges(DataSource):
    """The Spark data source behind ``GeneratorSource``."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> str:
        return RANGE_SCHEMA_DDL

    def streamReader(self, schema: StructType) -> GeneratedRangeStream:
        text = self.options.get(_SETTINGS_OPTION)
        if text is None:
            raise InvalidInput(f"{_FORMAT}: option {_SETTINGS_OPTION!r} is missing; use GeneratorSource.stream")
        settings = json.loads(text)
        orders = OrderStream(**settings["orders"])
        return GeneratedRangeStream(orders, settings["tasks"], settings["limit"], settings["batch_seconds"])


@methods_cross_spark
class GeneratedRangeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans which events each batch generates."""

    def __init__(self, orders: OrderStream, tasks: int, limit: int | None, batch_seconds: float = 0.0) -> None:
        self._orders = orders
        self._pace = Pace(batch_seconds)
        self._tasks = tasks
        self._limit = limit
        self._moved_clock: int | None = None
        self._asked = False
        self._stop_micros: int | None = None
        self._limited = False

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._limit is None else ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._stop_micros = time.time_ns() // 1000

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._stop_micros is None:
            time.sleep(max(0.0, self._pace.wait_seconds()))
        deadline = time.monotonic() + _IDLE_WAIT_SECONDS
        while True:
            end = self._next(start, limit)
            if end != start:
                self._pace.began(left_some=self._limited)
                return end
            if self._stop_micros is not None or time.monotonic() >= deadline:
                return end
            time.sleep(_IDLE_POLL_SECONDS)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(chosen) for chosen in _ranges_between(start, end, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int, int, int | None]]:
        chosen: Range = partition.value
        yield chosen.topic, chosen.partition, chosen.start, chosen.end, chosen.clock_micros

    def _next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        now = time.time_ns() // 1000
        made = int(start.get("next", 0))
        last = self._orders.events_max
        if last is not None and self._stop_micros is not None:
            due, clock = last, int(start.get("clock", now))  # a bounded stream is available as a whole
        else:
            clock = self._clock(start, made, now)
            due = int((min(now, self._stop_micros or now) - clock) * self._orders.events_per_second / 1e6)
        self._limited = isinstance(limit, ReadMaxRows) and due > made + limit.max_rows
        if isinstance(limit, ReadMaxRows):
            due = min(due, made + limit.max_rows)
        if last is not None:
            due = min(due, last)
        return {"next": due, "clock": clock} if due > made else start

    def _clock(self, start: dict[str, Any], made: int, now: int) -> int:
        """The time of event 0. It is moved at most once: when the stream begins, or resumes late or at another rate."""
        if not self._asked:
            self._asked = True
            made_seconds = made / self._orders.events_per_second
            if "clock" not in start or abs((now - start["clock"]) / 1e6 - made_seconds) > BEHIND_SECONDS_MAX:
                self._moved_clock = now - int(made_seconds * 1e6)
        return int(start["clock"]) if self._moved_clock is None else self._moved_clock


def _ranges_between(start: Mapping[str, Any], end: Mapping[str, Any], tasks: int) -> list[Range]:
    """The ranges of a batch between two offset documents, one a task; they follow each other in the one partition."""
    first, last = start.get("next", 0), end.get("next", 0)
    cuts = sorted({first + (last - first) * task // tasks for task in range(tasks + 1)})
    return [Range(TOPIC, 0, low, high, end["clock"], is_first=low == 0) for low, high in pairwise(cuts)]
