"""The sibling streaming query: it follows a table's log and keeps the table settled, its views fresh and its parts few.

Its source is the log itself, so it needs nothing of the writers: it may stop, crash, or run in another process or in several,
and ingest goes on. A commit of its own wakes it once more, finds nothing to do, and rests.

Two lanes. The query's batches are the fast one: settle, refresh the views, tell the compactor, all in fractions of a second.
The compactor's threads merge in the background, for as long as it takes.

A replica that has no Spark does the same in a loop (``compaction.follow``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lakebed.compaction.compactor import Compactor
from lakebed.compaction.follow import Rounds
from lakebed.compaction.log_source import LogSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def maintain(
    spark: SparkSession,
    path: str,
    step: Callable[[], None],
    compactor: Compactor,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Start the query and the compactor, which ends with it.

    ``step`` does one round of settling on the newest snapshot; its Retry errors are tried again.
    """
    spark.dataSource.register(LogSource)
    rounds = Rounds(path, step, compactor)

    def on_batch(frame: DataFrame, batch_id: int) -> None:
        rounds()

    frame = spark.readStream.format("lakebed_log").option("path", path).load()
    writer = frame.writeStream.queryName(f"maintain {path}").option("checkpointLocation", checkpoint)
    writer = writer.foreachBatch(on_batch)
    query = writer.trigger(**dict(trigger or {"processingTime": "0 seconds"})).start()
    compactor.start()

    def end_with_the_query() -> None:
        with suppress(Exception):  # how it ended is for those who hold the query
            query.awaitTermination()
        compactor.close()

    threading.Thread(target=end_with_the_query, name="lakebed-maintain-end", daemon=True).start()
    return query
