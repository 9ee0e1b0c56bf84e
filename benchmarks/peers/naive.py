"""Naive merge-on-read: every change appended as Parquet; reads take the newest row of each key with a window."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers.peer import Inline, Place, by_sort_key, columns, newest


class Naive(Inline):
    def __init__(self, spark: SparkSession, place: Place, variant: str) -> None:
        self._spark = spark
        self._place = place

    @staticmethod
    def session(place: Place) -> Mapping[str, str]:
        return {}

    @property
    def settings(self) -> Mapping[str, str]:
        return {
            "write": "DataFrameWriter.parquet, mode append",
            "read": "row_number() over (partition by pk order by seq desc) = 1",
        }

    def create(self, initial: DataFrame) -> None:
        by_sort_key(initial, self._place).write.parquet(self._place.table + "/rows")

    def apply(self, batch: DataFrame) -> None:
        batch.write.mode("append").parquet(self._place.table + "/rows")

    def rows(self) -> DataFrame:
        changes = self._spark.read.parquet(self._place.table + "/rows")
        return columns(newest(self._spark, changes).where("op <> 'd'"))
