"""The floor: every batch appended as Parquet by Spark, nothing resolved. What it leaves behind is not the table."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers.peer import Inline, Place, by_sort_key, columns


class Append(Inline):
    def __init__(self, spark: SparkSession, place: Place, variant: str) -> None:
        self._spark = spark
        self._place = place
        self.resolves = place.append_only

    @staticmethod
    def session(place: Place) -> Mapping[str, str]:
        return {}

    @property
    def settings(self) -> Mapping[str, str]:
        return {"write": "DataFrameWriter.parquet, mode append"}

    def create(self, initial: DataFrame) -> None:
        by_sort_key(initial, self._place).write.parquet(self._place.table + "/rows")

    def apply(self, batch: DataFrame) -> None:
        batch.write.mode("append").parquet(self._place.table + "/rows")

    def rows(self) -> DataFrame:
        return columns(self._spark.read.parquet(self._place.table + "/rows"))
