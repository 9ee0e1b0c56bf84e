"""Delta Lake: MERGE into a table with deletion vectors.

- Deletion vectors let MERGE mark rows in place of rewriting files (https://docs.delta.io/latest/delta-deletion-vectors.html).
- The source has one row a key, as MERGE demands (https://docs.delta.io/latest/delta-update.html#upsert-into-a-table-using-merge).
- ``delta-optimize`` is clustered by the sort key and runs OPTIMIZE after every fifth batch, as the documentation recommends for
  tables that are written often (https://docs.delta.io/latest/delta-clustering.html). OPTIMIZE and MERGE would conflict, so the
  writer waits.

The session is lakebed's, which is Delta's own plus ``snapshotPartitions`` for two cores.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers.peer import DDL, SORT_KEY, Inline, Place, by_sort_key, columns, merge_statement, newest
from lakebed.sparks.session import settings

_OPTIMIZE_EVERY = 5


class Delta(Inline):
    def __init__(self, spark: SparkSession, place: Place, variant: str) -> None:
        self._spark = spark
        self._place = place
        self._optimize = variant == "optimize"
        self._path = f"{place.table}/orders"

    @staticmethod
    def session(place: Place) -> Mapping[str, str]:
        return settings(s3=False)

    @property
    def settings(self) -> Mapping[str, str]:
        out = {"delta.enableDeletionVectors": "true", "write": "append" if self._place.append_only else "MERGE"}
        if self._optimize:
            out |= {"CLUSTER BY": ", ".join(SORT_KEY), "maintenance": f"OPTIMIZE after every {_OPTIMIZE_EVERY}th batch"}
        return out

    def create(self, initial: DataFrame) -> None:
        clustering = f"cluster by ({', '.join(SORT_KEY)})" if self._optimize else ""
        self._spark.sql(
            f"create table delta.`{self._path}` ({DDL}) using delta {clustering} "
            "tblproperties ('delta.enableDeletionVectors' = 'true')"
        )
        rows = columns(by_sort_key(initial, self._place))
        rows.write.format("delta").mode("append").save(self._path)
        if self._optimize:
            self._spark.sql(f"optimize delta.`{self._path}`").collect()

    def apply(self, batch: DataFrame) -> None:
        if self._place.append_only:
            columns(batch).write.format("delta").mode("append").save(self._path)
            return
        newest(self._spark, batch).createOrReplaceTempView("newest_changes")
        self._spark.sql(merge_statement(f"delta.`{self._path}`")).collect()

    def maintain(self, batches: int) -> bool:
        if not self._optimize or batches % _OPTIMIZE_EVERY:
            return False
        self._spark.sql(f"optimize delta.`{self._path}`").collect()
        return True

    def rows(self) -> DataFrame:
        return columns(self._spark.read.format("delta").load(self._path))
