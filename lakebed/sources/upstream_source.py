"""Another table of lakebed as a streaming source of Spark: its rows are ranges of versions (``upstream``)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lakebed.error_transport import methods_cross_spark
from lakebed.errors import InvalidInput
from lakebed.sources.source import RANGE_SCHEMA_DDL, Pace, Range
from lakebed.sources.upstream import UpstreamPlanner, UpstreamReader, UpstreamSettings, ranges_between
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

_FORMAT = "lakebed_upstream"
_SETTINGS_OPTION = "settings"
_IDLE_WAIT_SECONDS = 0.5
_IDLE_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class UpstreamSource:
    """The changes of another table as a source of a pipeline. ``batch_seconds``: the pace of batches (``Pace``)."""

    settings: UpstreamSettings
    batch_seconds: float = 0.0

    @property
    def reader(self) -> UpstreamReader:
        return UpstreamReader(self.settings)

    def stream(self, spark: SparkSession) -> DataFrame:
        spark.dataSource.register(_UpstreamRanges)
        settings = {**asdict(self.settings), "batch_seconds": self.batch_seconds}
        return spark.readStream.format(_FORMAT).option(_SETTINGS_OPTION, json.dumps(settings)).load()


@methods_cross_spark
class _UpstreamRanges(DataSource):
    """The Spark data source behind ``UpstreamSource``."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> str:
        return RANGE_SCHEMA_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        text = self.options.get(_SETTINGS_OPTION)
        if text is None:
            raise InvalidInput(f"{_FORMAT}: option {_SETTINGS_OPTION!r} is missing; use UpstreamSource.stream")
        settings = json.loads(text)
        pace = settings.pop("batch_seconds")
        return for_this_spark(_UpstreamRangeStream(UpstreamSettings(**settings), pace))


@methods_cross_spark
class _UpstreamRangeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Asks the planner for each batch. Lives in one process beside the driver."""

    def __init__(self, settings: UpstreamSettings, batch_seconds: float) -> None:
        self._planner = UpstreamPlanner(settings)
        self._settings = settings
        self._pace = Pace(batch_seconds)
        self._is_bounded = False

    def __reduce__(self) -> tuple[type[_UpstreamRangeStream], tuple[UpstreamSettings, float]]:
        """Tasks get a copy that plans nothing."""
        return _UpstreamRangeStream, (self._settings, 0.0)

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_bounded = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if not self._is_bounded:
            time.sleep(max(0.0, self._pace.wait_seconds()))
        deadline = time.monotonic() + _IDLE_WAIT_SECONDS
        while True:
            end = self._planner.next(start)
            if end != start:
                self._pace.began(left_some=self._planner.left_some)
                return end
            if self._is_bounded or time.monotonic() >= deadline:
                return end
            time.sleep(_IDLE_POLL_SECONDS)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(chosen) for chosen in ranges_between(start, end) if chosen.size]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int, int, None]]:
        chosen: Range = partition.value
        yield chosen.topic, chosen.partition, chosen.start, chosen.end, None
