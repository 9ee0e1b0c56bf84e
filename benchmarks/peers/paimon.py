"""Apache Paimon: a primary key table whose writer compacts by itself, the default.

- Two fixed buckets, one a core; of 200 MB to 1 GB at most
  (https://paimon.apache.org/docs/master/primary-key-table/data-distribution/).
- ``sequence.field`` orders the changes of a key, ``rowkind.field`` tells deletes
  (https://paimon.apache.org/docs/master/primary-key-table/sequence-rowkind/).
- ``paimon``: merge on read, the default; ``paimon-dv``: ``deletion-vectors.enabled``, where the writer looks up old rows so that
  reads need no merge (https://paimon.apache.org/docs/master/primary-key-table/table-mode/).

Rows of a bucket are ordered by the primary key: a primary key table has no other sort key.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers.peer import COLUMNS, DDL, KEY, ORDER, Inline, Place, by_sort_key, columns

PACKAGE = "org.apache.paimon:paimon-spark-3.5:0.9.0"
_IN_SPARK = (
    "org.scala-lang:*,org.scala-lang.modules:*,org.lz4:*,org.xerial.snappy:*,org.slf4j:*,com.google.code.findbugs:*"
)
_TABLE = "peers.bench.orders"
_KIND = "case op when 'd' then '-D' when 'u' then '+U' else '+I' end as kind"


def session(warehouse: str) -> dict[str, str]:
    """Spark's settings, with the catalog ``peers`` in a folder."""
    return {
        "spark.jars.packages": PACKAGE,
        "spark.jars.excludes": _IN_SPARK,
        "spark.sql.extensions": "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions",
        "spark.sql.catalog.peers": "org.apache.paimon.spark.SparkCatalog",
        "spark.sql.catalog.peers.warehouse": f"file://{warehouse}",
    }


class Paimon(Inline):
    def __init__(self, spark: SparkSession, place: Place, variant: str) -> None:
        self._spark = spark
        self._place = place
        self._properties = {"file.format": "parquet"}
        if not place.append_only:
            self._properties |= {"primary-key": KEY, "bucket": "2", "sequence.field": ORDER, "rowkind.field": "kind"}
            if variant == "dv":
                self._properties["deletion-vectors.enabled"] = "true"

    @staticmethod
    def session(place: Place) -> Mapping[str, str]:
        return session(place.table)

    @property
    def settings(self) -> Mapping[str, str]:
        return {"jar": PACKAGE, "maintenance": "by the writer, as it sees fit"} | self._properties

    def create(self, initial: DataFrame) -> None:
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in self._properties.items())
        kind = "" if self._place.append_only else ", kind string"
        self._spark.sql("create database if not exists peers.bench")
        self._spark.sql(f"create table {_TABLE} ({DDL}{kind}) tblproperties ({properties})")
        self.apply(by_sort_key(initial, self._place) if self._place.append_only else initial)

    def apply(self, batch: DataFrame) -> None:
        rows = columns(batch) if self._place.append_only else batch.selectExpr(*COLUMNS, _KIND)
        rows.writeTo(_TABLE).append()

    def rows(self) -> DataFrame:
        return columns(self._spark.table(_TABLE))
