"""Apache Hudi: a merge-on-read table with the bucket index, compacted inline after every fifth batch.

- The bucket index needs no look-up of keys (https://hudi.apache.org/docs/indexes#bucket-index); two buckets, one a core.
- Compaction inline after five delta commits, the defaults of inline compaction (https://hudi.apache.org/docs/compaction).
- ``_hoodie_is_deleted`` tells deletes within upserts (https://hudi.apache.org/docs/writing_data#deletes).
- Kryo, the extension and the catalog as in the quick start (https://hudi.apache.org/docs/quick-start-guide).
- Parallelism of shuffles: the cores (https://hudi.apache.org/docs/tuning-guide).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers.peer import COLUMNS, KEY, ORDER, Inline, Place, by_sort_key, columns

PACKAGE = "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0"
SESSION = {
    "spark.jars.packages": PACKAGE,
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
}
_COMPACT_EVERY = 5
_OPTIONS = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": KEY,
    "hoodie.datasource.write.precombine.field": ORDER,
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.compact.inline": "true",
    "hoodie.compact.inline.max.delta.commits": str(_COMPACT_EVERY),
    "hoodie.parquet.compression.codec": "zstd",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.insert.shuffle.parallelism": "2",
    "hoodie.bulkinsert.shuffle.parallelism": "2",
}


class Hudi(Inline):
    def __init__(self, spark: SparkSession, place: Place, variant: str) -> None:
        self._spark = spark
        self._place = place
        self._path = f"{place.table}/orders"

    @staticmethod
    def session(place: Place) -> Mapping[str, str]:
        return SESSION

    @property
    def settings(self) -> Mapping[str, str]:
        return {"jar": PACKAGE, "operation": "insert" if self._place.append_only else "upsert"} | _OPTIONS

    def create(self, initial: DataFrame) -> None:
        rows = by_sort_key(initial, self._place) if self._place.append_only else initial
        self._write(rows, "bulk_insert", "overwrite")

    def apply(self, batch: DataFrame) -> None:
        self._write(batch, "insert" if self._place.append_only else "upsert", "append")

    def _write(self, rows: DataFrame, operation: str, mode: str) -> None:
        told = rows.selectExpr(*COLUMNS, "op = 'd' as _hoodie_is_deleted") if "op" in rows.columns else rows
        writer = told.write.format("hudi").options(**_OPTIONS).option("hoodie.datasource.write.operation", operation)
        writer.mode(mode).save(self._path)

    def rows(self) -> DataFrame:
        return columns(self._spark.read.format("hudi").load(self._path))
