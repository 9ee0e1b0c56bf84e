"""lakebed as a user runs it: a batch is committed and settled, and ``table.maintain`` merges beside the writer.

``lakebed-volatile``: merges stay on the local disk until it pays to upload them; ``finish`` uploads what is there then.
The table has lakebed's own defaults, except that settling is left to the writer. Changes of a key count in order of arrival, as
those of MERGE do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import lakebed
from benchmarks.frontier import wait_for_rest
from benchmarks.peers.peer import KEY, SORT_KEY, Place, columns
from lakebed.compaction.volatile import VolatileMerger
from lakebed.planning.settling import UploadRules
from lakebed.sparks.session import settings
from lakebed.table import internals_of

# The writer settles each batch itself. Maintenance, which would race it, settles what was left behind.
_PROPERTIES = {"lakebed.settle_after_age": "interval 10 seconds"}
_SCHEMA = pa.schema(
    [
        ("pk", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("region", pa.string()), ("status", pa.string()),
        ("amount", pa.float64()), ("note", pa.string()), ("seq", pa.int64()),
    ]
)  # fmt: skip


class Lakebed:
    resolves = True

    def __init__(self, spark: SparkSession, place: Place, variant: str) -> None:
        self._spark = lakebed.spark(session=spark)
        self._volatile = "on" if variant == "volatile" else "off"
        self._append_only = place.append_only
        os.environ["LAKEBED_CACHE_DIR"] = f"{place.local}/lakebed"
        keys = [] if place.append_only else [KEY]
        self._table = lakebed.create(
            f"{place.table}/orders",
            _SCHEMA,
            keys,
            SORT_KEY,
            properties=_PROPERTIES | {"lakebed.volatile": self._volatile},
        )

    @staticmethod
    def session(place: Place) -> Mapping[str, str]:
        return settings(s3=False)

    @property
    def settings(self) -> Mapping[str, str]:
        own = {name: value for name, value in self._table.properties.items() if name.startswith("lakebed.")}
        return own | {"lakebed.volatile": self._volatile, "maintenance": "beside (table.maintain)"}

    def create(self, initial: DataFrame) -> None:
        self._table.apply(initial)
        self._table.settle()
        self._table.maintenance.compact()
        self._maintenance = self._table.maintain(self._spark)

    def apply(self, batch: DataFrame) -> None:
        self._table.apply(batch, apply_as_deletes=None if self._append_only else "op = 'd'")
        self._table.settle()

    def maintain(self, batches: int) -> bool:
        return False

    def rest(self) -> None:
        wait_for_rest(self._table)

    def finish(self) -> None:
        self.rest()
        self._maintenance.stop()
        internals_of(self._table).compaction.close()
        if self._volatile == "on":
            table = self._table
            replica = VolatileMerger(
                internals_of(table).log,
                internals_of(table).storage,
                internals_of(table).deletion_vectors,
                internals_of(table).compaction.volatile_base,
            )
            replica.upload_due(UploadRules(age_seconds=0, local_bytes_max=0))
            replica.close()

    def rows(self) -> DataFrame:
        return columns(self._table.read(self._spark))
