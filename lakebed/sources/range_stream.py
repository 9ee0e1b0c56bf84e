"""The stream that Spark asks for the batches of a source, the same for every source: its rows are ranges.

``latestOffset``
    1.  Wait until the next batch may begin (``Pace``).
    2.  Ask the planner for it. If there is nothing new, ask again a few times, with pauses.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from lakebed.errors import InvalidInput
from lakebed.failures import methods_cross_spark
from lakebed.sources.source import Pace, RangePlanner, RangeReader, grouped
from lakebed.sparks.streams import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
    for_this_spark,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_RANGE_SCHEMA_DDL = "topic string, partition int, start long, end long, clock_micros long"
_SETTINGS_OPTION = "secret_settings"  # Spark masks options whose name contains "secret"
_PACE_OPTION = "batch_seconds"
IDLE_WAIT_SECONDS = 0.5
IDLE_POLL_SECONDS = 0.1


@methods_cross_spark
class RangeSource(DataSource):
    """A data source of Spark whose rows are ranges. One that is not abstract has a name in ``FORMAT``."""

    FORMAT: ClassVar[str]

    @classmethod
    def frame(cls, spark: SparkSession, settings: str, batch_seconds: float, **more: str) -> DataFrame:
        """The streaming DataFrame of ranges; ``more``: options beside the settings."""
        spark.dataSource.register(cls)
        stream = spark.readStream.format(cls.FORMAT).option(_SETTINGS_OPTION, settings).options(**more)
        return stream.option(_PACE_OPTION, str(batch_seconds)).load()

    @classmethod
    def name(cls) -> str:
        return cls.FORMAT

    def schema(self) -> str:
        return _RANGE_SCHEMA_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if _SETTINGS_OPTION not in self.options:
            raise InvalidInput(f"{self.FORMAT} is for lakebed alone: use lakebed.ingest, or a pipeline file")
        planner, reader = self.planned_by(self.options[_SETTINGS_OPTION])
        return for_this_spark(RangeStream(planner, reader, float(self.options.get(_PACE_OPTION, "0"))))

    def planned_by(self, settings: str) -> tuple[RangePlanner, RangeReader]:
        """Who plans batches, and who knows the ranges of a batch."""
        raise NotImplementedError


@methods_cross_spark
class _TaskRanges(DataSourceStreamReader):
    """What tasks get of a stream: it plans nothing."""

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int, int, int | None]]:
        for chosen in partition.value:
            yield chosen.topic, chosen.partition, chosen.start, chosen.end, chosen.clock_micros


@methods_cross_spark
class RangeStream(_TaskRanges, SupportsTriggerAvailableNow):
    """Asks the planner for each batch. Lives in one process beside the driver."""

    def __init__(self, planner: RangePlanner, reader: RangeReader, batch_seconds: float = 0.0) -> None:
        self._planner = planner
        self._reader = reader
        self._pace = Pace(batch_seconds)
        self._is_bounded = False

    def __reduce__(self) -> tuple[type[_TaskRanges], tuple[()]]:
        return _TaskRanges, ()

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The planner knows the limits."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.only_what_is_there_now()
        self._is_bounded = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if not self._is_bounded:
            time.sleep(max(0.0, self._pace.wait_seconds()))
        deadline = time.monotonic() + IDLE_WAIT_SECONDS
        while True:
            end = self._planner.next(start)
            if end != start:
                self._pace.began(left_some=self._planner.left_some)
                return end
            if self._is_bounded or time.monotonic() >= deadline:
                return start
            time.sleep(IDLE_POLL_SECONDS)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._planner.newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = [one for one in self._reader.ranges(start, end) if one.size]
        return [InputPartition(each) for each in grouped(ranges, self._planner.records_each)]
