"""Streaming data sources in Python: written as Spark 4.2 has them, and given to Spark 4.0 and 4.1 in the older shape.

Since 4.2 Spark tells a stream where the next batch starts and how much it may read, and which rows were there when a query with
the trigger ``availableNow`` began. A data source passes its stream through ``for_this_spark``, and all others do the rest.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from lakebed.sparks.versions import require_supported, spark_version

require_supported(spark_version())

from pyspark.sql.datasource import (  # noqa: E402
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

TELLS_THE_START = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether this is Spark 4.2 or newer."""

if TYPE_CHECKING or TELLS_THE_START:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    from lakebed.sparks.older_streams import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

__all__ = [
    "TELLS_THE_START",
    "DataSource",
    "DataSourceReader",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SimpleDataSourceStreamReader",
    "SupportsTriggerAvailableNow",
    "for_this_spark",
]


def for_this_spark(stream: DataSourceStreamReader) -> DataSourceStreamReader:
    """A stream in the shape that this Spark expects."""
    if TELLS_THE_START:
        return stream
    from lakebed.sparks.older_streams import OlderStream

    return OlderStream(stream, reads_all_at_first=not isinstance(stream, SupportsTriggerAvailableNow))
