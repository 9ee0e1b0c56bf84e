"""Folders of files as a source, through Spark's file source. Which files were read is in the table's log (``files_read``).

json, debezium-json     one document per line: the stream carries records, decoded like those of Kafka; the topic is
                        the file's path, so the quarantine shows the file of a bad line
parquet                 the stream carries rows
csv                     the stream carries rows, with a header line that has the names of the given schema, in its
                        order; a file or a line that does not fit ends the stream with an error
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from lakebed.errors import InvalidInput
from lakebed.ingest.changes_frame import FILE_COLUMN
from lakebed.ingest.source import Carries
from lakebed.storage.roots import spark_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FileFormat = Literal["json", "debezium-json", "csv", "parquet"]
FORMATS: tuple[FileFormat, ...] = ("json", "debezium-json", "csv", "parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Files that appear in ``folder``. ``schema`` gives the columns of CSV and Parquet files.

    ``options`` go to Spark's reader (``sep``, ``compression``, ``pathGlobFilter``, ``recursiveFileLookup``, ...).
    """

    folder: str
    format: FileFormat
    schema: pa.Schema | None = None
    files_per_batch_max: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InvalidInput(f"files: format is {self.format!r}; use one of {', '.join(FORMATS)}")
        if self.carries == "rows" and self.schema is None:
            raise InvalidInput(f"files: format {self.format!r} needs the schema of the files' columns")

    @property
    def carries(self) -> Carries:
        return "rows" if self.format in ("csv", "parquet") else "records"

    @property
    def reader(self) -> None:
        return None

    def stream(self, spark: SparkSession) -> DataFrame:
        stream = spark.readStream.options(**self.options)
        if self.files_per_batch_max is not None:
            stream = stream.option("maxFilesPerTrigger", self.files_per_batch_max)
        if self.carries == "rows":
            assert self.schema is not None
            if self.format == "csv":
                stream = stream.options(
                    **{"header": "true", "mode": "FAILFAST", "enforceSchema": "false", **self.options}
                )
            rows = stream.format(self.format).schema(from_arrow_schema(self.schema)).load(spark_path(self.folder))
            return rows.select("*", F.col("_metadata.file_path").alias(FILE_COLUMN))
        lines = stream.format("text").load(spark_path(self.folder))
        return lines.where(F.length(F.trim("value")) > 0).select(
            F.lit(None).cast("binary").alias("key"),
            F.col("value").cast("binary").alias("value"),
            F.col("_metadata.file_path").alias("topic"),
            F.lit(0).cast("int").alias("partition"),
            F.lit(None).cast("long").alias("offset"),
            F.col("_metadata.file_modification_time").alias("timestamp"),
        )
