"""Apache Iceberg, format version 3: MERGE as merge-on-read, which writes deletion vectors.

- ``write.*.mode = merge-on-read`` for frequent small changes; version 3 has one deletion vector a file in place of ever more
  delete files (https://iceberg.apache.org/docs/latest/spark-writes/, https://iceberg.apache.org/spec/#deletion-vectors).
- The table's sort order is the sort key (WRITE ORDERED BY); batches are distributed by hash, the default of MERGE.
- Old metadata files are removed by commits (https://iceberg.apache.org/docs/latest/maintenance/#remove-old-metadata-files).
- ``iceberg-rewrite`` runs rewrite_data_files with the table's sort order after every fifth batch
  (https://iceberg.apache.org/docs/latest/spark-procedures/#rewrite_data_files). It would conflict with MERGE: the writer waits.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers.peer import DDL, SORT_KEY, Inline, Place, by_sort_key, columns, merge_statement, newest

_REWRITE_EVERY = 5
_PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_TABLE = "peers.bench.orders"
_PROPERTIES = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}


class Iceberg(Inline):
    def __init__(self, spark: SparkSession, place: Place, variant: str) -> None:
        self._spark = spark
        self._place = place
        self._rewrite = variant == "rewrite"

    @staticmethod
    def session(place: Place) -> Mapping[str, str]:
        return {
            "spark.jars.packages": _PACKAGE,
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.peers": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.peers.type": "hadoop",
            "spark.sql.catalog.peers.warehouse": place.table,
        }

    @property
    def settings(self) -> Mapping[str, str]:
        out = {
            "jar": _PACKAGE,
            "write": "append" if self._place.append_only else "MERGE",
            "WRITE ORDERED BY": ", ".join(SORT_KEY),
        }
        if self._rewrite:
            out["maintenance"] = f"rewrite_data_files(strategy => 'sort') after every {_REWRITE_EVERY}th batch"
        return out | _PROPERTIES

    def create(self, initial: DataFrame) -> None:
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in _PROPERTIES.items())
        self._spark.sql("create namespace if not exists peers.bench")
        self._spark.sql(f"create table {_TABLE} ({DDL}) using iceberg tblproperties ({properties})")
        self._spark.sql(f"alter table {_TABLE} write ordered by {', '.join(SORT_KEY)}")
        columns(by_sort_key(initial, self._place)).writeTo(_TABLE).append()

    def apply(self, batch: DataFrame) -> None:
        if self._place.append_only:
            columns(batch).writeTo(_TABLE).append()
            return
        newest(self._spark, batch).createOrReplaceTempView("newest_changes")
        self._spark.sql(merge_statement(_TABLE)).collect()

    def maintain(self, batches: int) -> bool:
        if not self._rewrite or batches % _REWRITE_EVERY:
            return False
        self._spark.sql("call peers.system.rewrite_data_files(table => 'bench.orders', strategy => 'sort')").collect()
        return True

    def rows(self) -> DataFrame:
        return columns(self._spark.table(_TABLE))
