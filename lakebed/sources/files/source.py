"""Folders of files as a streaming source of Spark: its rows are ranges, which ``planner`` plans and ``reader`` reads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakebed.error_transport import methods_cross_spark
from lakebed.errors import InvalidInput
from lakebed.sources.files.planner import FilesPlanner
from lakebed.sources.files.reader import FilesReader
from lakebed.sources.files.settings import FilesSettings
from lakebed.sources.source import RANGE_SCHEMA_DDL, Pace, Range
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

_FORMAT = "lakebed_files"
_SETTINGS_OPTION = "secret_settings"  # Spark masks options whose name contains "secret"
_PACE_OPTION = "batch_seconds"
_IDLE_WAIT_SECONDS = 0.5
_IDLE_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class FileSource:
    """Files that appear in a folder. ``columns``, ``left_out``: as in ``FilesReader``.

    ``batch_seconds``: the pace of batches (``Pace``).
    """

    settings: FilesSettings
    columns: pa.Schema | None = None
    left_out: tuple[str, ...] = ()
    batch_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.settings.format in ("csv", "parquet") and self.columns is None:
            raise InvalidInput(f"files: format {self.settings.format!r} needs the schema of the files' columns")

    @property
    def reader(self) -> FilesReader:
        return FilesReader(self.settings, self.columns, self.left_out)

    def stream(self, spark: SparkSession) -> DataFrame:
        spark.dataSource.register(_FileRanges)
        stream = spark.readStream.format(_FORMAT).option(_SETTINGS_OPTION, self.settings.to_json())
        return stream.option(_PACE_OPTION, str(self.batch_seconds)).load()


@methods_cross_spark
class _FileRanges(DataSource):
    """The Spark data source behind ``FileSource``."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> str:
        return RANGE_SCHEMA_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        text = self.options.get(_SETTINGS_OPTION)
        if text is None:
            raise InvalidInput(f"{_FORMAT}: option {_SETTINGS_OPTION!r} is missing; use FileSource.stream")
        return for_this_spark(
            _FileRangeStream(FilesSettings.from_json(text), float(self.options.get(_PACE_OPTION, "0")))
        )


@methods_cross_spark
class _FileRangeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Asks the planner for each batch. Lives in one process beside the driver."""

    def __init__(self, settings: FilesSettings, batch_seconds: float) -> None:
        self._planner = FilesPlanner(settings)
        self._settings = settings
        self._pace = Pace(batch_seconds)
        self._is_bounded = False

    def __reduce__(self) -> tuple[type[_FileRangeStream], tuple[FilesSettings, float]]:
        """Tasks get a copy that plans nothing."""
        return _FileRangeStream, (self._settings, 0.0)

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.only_what_is_there_now()
        self._is_bounded = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._is_bounded:
            return self._planner.next(start)
        time.sleep(max(0.0, self._pace.wait_seconds()))
        deadline = time.monotonic() + _IDLE_WAIT_SECONDS
        while True:
            if self._planner.wait_seconds <= 0:
                end = self._planner.next(start)
                if end != start:
                    self._pace.began(left_some=self._planner.left_some)
                    return end
            if time.monotonic() >= deadline:
                return start
            time.sleep(_IDLE_POLL_SECONDS)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(chosen) for chosen in FilesReader(self._settings).ranges(start, end) if chosen.size]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int, int, int | None]]:
        chosen: Range = partition.value
        yield chosen.topic, chosen.partition, chosen.start, chosen.end, chosen.clock_micros
