"""The sibling streaming query: it follows a table's log and keeps the table settled, its views fresh and its parts few.

Its source is the log itself, so it needs nothing of the writers: it may stop, crash, or run in another process or in several,
and ingest goes on. A commit of its own wakes it once more, finds nothing to do, and rests.

Two lanes. The query's batches are the fast one: settle, refresh the views, tell the compactor, all in fractions of a second.
The compactor's threads merge in the background, for as long as it takes.

A query that fails is started again (``compaction.maintenance``). A replica that has no Spark does the same in a loop
(``compaction.follow``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lakebed.compaction.compactor import Compactor
from lakebed.compaction.follow import MaintenanceCycle
from lakebed.compaction.log_source import LogSource
from lakebed.compaction.maintenance import QUERY, Maintenance
from lakebed.error_transport import crosses_spark
from lakebed.failures import Health

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
) -> Maintenance:
    """Start the query and the compactor, which ends with it.

    ``step`` does one round of settling on the newest snapshot; its Retry errors are tried again.
    """
    health, stopping = Health(path, QUERY), threading.Event()
    cycle = MaintenanceCycle(step, compactor, health, stopping)

    @crosses_spark
    def on_batch(frame: DataFrame, batch_id: int) -> None:
        cycle()

    def start() -> StreamingQuery:
        spark.dataSource.register(LogSource)
        frame = spark.readStream.format("lakebed_log").option("path", path).load()
        writer = frame.writeStream.queryName(f"maintain {path}").option("checkpointLocation", checkpoint)
        writer = writer.foreachBatch(on_batch)
        return writer.trigger(**dict(trigger or {"processingTime": "0 seconds"})).start()

    def spark_runs() -> bool:
        jsc = spark.sparkContext._jsc
        return jsc is not None and not jsc.sc().isStopped()

    return Maintenance(start, cycle, compactor, health, spark_runs, stopping)
