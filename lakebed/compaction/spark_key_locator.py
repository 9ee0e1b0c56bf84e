"""Finds the keys of a large settle by Spark tasks.

The settle of a batch looks its keys up in the key index, in the maintaining process. For a backlog of millions of keys it is
cheaper to read the key columns of the base once, in parallel: each task takes a group of parts and joins their keys with the keys
that are looked up. It returns positions, at most as many as there are keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.error_transport import crosses_spark, from_spark
from lakebed.log.actions import Part
from lakebed.parts.changes import WriteSpec
from lakebed.resolve.locate import KeyLocator, ScanLocator, lookup_schema
from lakebed.storage.open import open_part_storage
from lakebed.telemetry import counted, measured, report_requests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_LOOKUP_KEYS_MIN = 500_000
_GROUP_ROWS = 4_000_000


class SparkKeyLocator:
    """Spark tasks for many keys, ``narrow`` for few."""

    def __init__(
        self, narrow: KeyLocator, spark: SparkSession, spec: WriteSpec, root: str, keys_min: int = SPARK_LOOKUP_KEYS_MIN
    ):
        self._narrow = narrow
        self._spark = spark
        self._spec = spec
        self._root = root
        self._keys_min = keys_min

    def lookup(self, base: Mapping[str, Part], keys: pa.Table) -> pa.Table:
        if len(keys) < self._keys_min:
            return self._narrow.lookup(base, keys)
        groups = _groups(base)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, keys.schema) as writer:
            writer.write_table(keys)
        broadcast = self._spark.sparkContext.broadcast(sink.getvalue().to_pybytes())
        spec, root = self._spec, self._root

        @crosses_spark
        def find(numbers: Iterable[int]) -> Iterator[tuple[bytes, str]]:
            wanted = pa.ipc.open_stream(broadcast.value).read_all()
            for number in numbers:
                with counted() as requests, measured(root, "find"):
                    found = ScanLocator(spec, open_part_storage(root)).lookup(groups[number], wanted)
                out = pa.BufferOutputStream()
                with pa.ipc.new_stream(out, found.schema) as writer:
                    writer.write_table(found)
                yield out.getvalue().to_pybytes(), requests.to_json()

        try:
            with from_spark():
                pieces = (
                    self._spark.sparkContext.parallelize(range(len(groups)), len(groups)).mapPartitions(find).collect()
                )
        finally:
            broadcast.unpersist()
        for _, requests in pieces:
            report_requests(requests)
        schema = lookup_schema(self._spec)
        return pa.concat_tables([pa.ipc.open_stream(piece).read_all() for piece, _ in pieces] or [schema.empty_table()])

    def learn(self, path: str, rows: pa.Table) -> None:
        self._narrow.learn(path, rows)


def _groups(base: Mapping[str, Part]) -> list[dict[str, Part]]:
    """Parts in groups of about as many rows; the order does not depend on the map's."""
    groups: list[dict[str, Part]] = []
    rows = _GROUP_ROWS
    for path in sorted(base):
        if rows >= _GROUP_ROWS:
            groups.append({})
            rows = 0
        groups[-1][path] = base[path]
        rows += base[path].rows
    return groups
