"""The maintenance of one table as a streaming query of Spark: its batches run the cycles that otherwise a thread runs.

1. The query reads ``lakebed_log``. A batch comes after commits, and when a tail becomes due without one (the option ``looks``).
   It runs one cycle of the table's maintainer (``TableMaintainer.act``): it settles what is due and refreshes the views.
2. Merges, chores and leases stay in the maintainer's threads, so that no settle waits for a merge.
3. A batch decides nothing: what is to be done follows from the table's log. So one that comes again after a crash finds that it
   is done, and replicas need not share a checkpoint.
4. Then the batch counts its commits (``METRICS``), whoever made them. What its own cycle commits is counted by the next batch.
5. An error of a cycle fails the query. If the cause may pass, another query starts after the pause, which goes on with the same
   checkpoint. A query that is stopped, by whomever, ends the maintenance within a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from lakebed.compaction.maintenance import Maintenance
from lakebed.compaction.merge_runner import CLOSE_SECONDS_MAX
from lakebed.compaction.scheduler import ScheduledJob
from lakebed.compaction.table_maintainer import ROLE, TableDuties
from lakebed.errors import LakebedError, Retry
from lakebed.failures import crosses_spark, failure_in, failure_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OBSERVATION = "lakebed"
METRICS = {
    "commits": "count(1)",
    "version": "max(version)",
    "settled_rows": "coalesce(sum(settled_rows), 0)",
    "merged_bytes": "coalesce(sum(merged_bytes), 0)",
}
"""What ``observedMetrics`` of the query's progress have, below ``OBSERVATION``: sums over the commits of a batch."""
_LOOK_SECONDS = 1.0


def commits_of(spark: SparkSession, path: str) -> DataFrame:
    """The stream that the query reads, with its metrics."""
    from pyspark.sql.functions import expr

    from lakebed.compaction.log_source import LogSource  # it imports Spark

    spark.dataSource.register(LogSource)
    stream = spark.readStream.format("lakebed_log").option("path", path).option("looks", "true").load()
    return stream.observe(OBSERVATION, *(expr(sql).alias(name) for name, sql in METRICS.items()))


class MaintenanceQuery(Maintenance):
    """What ``Table.maintain`` returns if a streaming query maintains the table."""

    def __init__(
        self, duties: TableDuties, start: Callable[[Callable[[DataFrame, int], None]], StreamingQuery]
    ) -> None:
        """``start``: starts a query that passes its batches to what it is given. Raises its error, unless that may pass."""
        super().__init__(duties, cycles=0)
        self._start = start
        self._changing = threading.Lock()  # of ``query``, so that none starts after the end
        self._is_down = True
        self._trouble_before: LakebedError | None = None  # that of the maintainer when the query started
        self._tending = ScheduledJob(self._tend, f"the query of {duties.path}")
        failure = self._begin()
        if failure is not None and not isinstance(failure, Retry):
            self._maintained.stop()
            raise failure
        self._pools.chores.wake(self._tending, self._pause_after(failure))

    def stop(self) -> None:
        """Stop after the batch that runs now. Merges are cancelled, and their claims released."""
        super().stop()
        ending = threading.Thread(target=self._stop_query, name="lakebed-stop-query", daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS_MAX)

    @crosses_spark
    def _batch(self, commits: DataFrame, batch_id: int) -> None:
        try:
            self._maintained.act()
        except LakebedError:
            if self.query is not None and not self.query.isActive:
                return  # whoever stopped the query has cancelled the jobs of the cycle
            raise
        commits.write.format("noop").mode("overwrite").save()  # so that Spark counts them

    def _begin(self) -> LakebedError | None:
        """Start the query, unless the maintenance has ended. Returns why it did not start."""
        with self._changing:
            self._trouble_before = self.trouble
            try:
                if self.isActive:
                    self.query = self._start(self._batch)
                    self._is_down = False
                return None
            except LakebedError as error:
                return error
            except Exception as error:
                return failure_in(str(error), ROLE)

    def _pause_after(self, failure: LakebedError | None) -> float:
        return _LOOK_SECONDS if failure is None else self._maintained.failed(failure) or 0.0

    def _tend(self) -> float | None:
        """Look whether the query runs, and start another one after a failure that may pass; returns when to look again."""
        if self._is_down:
            return self._pause_after(self._begin())
        assert self.query is not None
        try:
            if self.query.isActive:
                return _LOOK_SECONDS
            failure = failure_of(self.query, ROLE)
        except Exception as error:  # Spark does not answer
            failure = failure_in(str(error), ROLE)
        if failure is None or not self._maintained.duties.spark_runs():
            self._maintained.stop()
            return None
        self._is_down = True
        if self.trouble in (None, self._trouble_before):  # else a cycle failed, and the maintainer knows
            self._maintained.failed(failure)
        return self._maintained.pause_seconds

    def _stop_query(self) -> None:
        with self._changing, suppress(Exception):  # Spark may be gone
            if self.query is not None:
                self.query.stop()
