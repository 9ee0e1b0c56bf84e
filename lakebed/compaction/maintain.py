"""The sibling streaming query: it follows a table's log and keeps the table settled and its views fresh.

Its source is the log itself, so it needs nothing of the writers: it may stop, crash, or run in another process, and
ingest goes on. A commit of its own wakes it once more, finds nothing to do, and rests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lakebed.compaction.log_source import LogSource
from lakebed.errors import Retry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_logger = logging.getLogger("lakebed.maintain")
_FAILURES_MAX = 20


def maintain(
    spark: SparkSession, path: str, step: Callable[[], None], checkpoint: str, trigger: Mapping[str, Any] | None = None
) -> StreamingQuery:
    """Start the query. ``step`` does one round of work on the newest snapshot; its Retry errors are tried again."""
    spark.dataSource.register(LogSource)
    failures = 0

    def on_batch(frame: DataFrame, batch_id: int) -> None:
        nonlocal failures
        try:
            step()
            failures = 0
        except Retry as error:
            failures += 1
            if failures >= _FAILURES_MAX:
                raise
            _logger.warning("maintenance of %s will try again: %s", path, error)

    frame = spark.readStream.format("lakebed_log").option("path", path).load()
    writer = frame.writeStream.queryName(f"maintain {path}").option("checkpointLocation", checkpoint)
    writer = writer.foreachBatch(on_batch)
    return writer.trigger(**dict(trigger or {"processingTime": "0 seconds"})).start()
