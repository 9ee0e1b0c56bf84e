"""The sibling streaming query: it follows a table's log, settles the table, refreshes its views and starts its merges.

Its source is the log, so it does not depend on the writers. It may stop, crash, or run in one or more other processes, and ingest
goes on. Its own commits start one more batch, which finds nothing to do.

The batches of the query are short: settle, refresh the views, wake the compactor, in fractions of a second. Merges take longer
and run in the compactor's threads.

A query that fails is started again (``compaction.maintenance``). A process without Spark does the same in a loop
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
    """Start the query and the compactor; the compactor ends with the query.

    ``step`` runs one cycle on the newest snapshot. After a Retry error it is called again.
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
