"""Folders of files as a streaming source of Spark: its rows are ranges, which ``planner`` plans and ``reader`` reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.sources.files.planner import FilesPlanner
from lakebed.sources.files.reader import FilesReader
from lakebed.sources.files.settings import FilesSettings
from lakebed.sources.range_stream import RangeSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        return _FileRanges.frame(spark, self.settings.to_json(), self.batch_seconds)


class _FileRanges(RangeSource):
    FORMAT = "lakebed_files"

    def planned_by(self, settings: str) -> tuple[FilesPlanner, FilesReader]:
        parsed = FilesSettings.from_json(settings)
        return FilesPlanner(parsed), FilesReader(parsed)
