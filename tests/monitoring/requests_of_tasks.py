"""Writes, settles and merges a table by Spark tasks; prints how many requests to the object store it counted.

python -m tests.monitoring.requests_of_tasks <table>
"""

from __future__ import annotations

import sys
from collections import Counter

import lakebed
from lakebed import events
from lakebed.compaction.compaction import SparkKernel
from lakebed.compaction.merge_values import MergeOutcome
from lakebed.sparks.cluster import Cluster
from lakebed.table import internals_of
from tests.internals import compaction_of, log_of
from tests.monitoring.test_truth import SCHEMA, batch

BATCHES = 4


def main(path: str) -> None:
    counted: Counter[str] = Counter()

    def count(event: events.Event) -> None:
        if isinstance(event, events.StoreRequested):
            counted[event.operation] += event.requests

    events.listen(count)
    spark = lakebed.spark("requests", "local[1]")
    table = lakebed.create(path, SCHEMA, keys=["id"])
    for number in range(BATCHES):
        table.apply(spark.createDataFrame(batch(number).to_pandas(), "id long, v string"))
        settler = internals_of(table).settler
        settler.settle(settler.wide_locator(spark, keys_min=1))
    kernel = SparkKernel(Cluster.of(spark), path, log_of(table).refresh)
    merged = compaction_of(table).merger().run(list(log_of(table).refresh().parts), 1, kernel)
    assert merged.outcome is MergeOutcome.COMPLETED
    spark.stop()
    print(counted.total(), counted["put"])


if __name__ == "__main__":
    main(sys.argv[1])
