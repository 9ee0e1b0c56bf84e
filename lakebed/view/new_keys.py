"""Whether the keys of new parts are unique, among themselves and beside other parts: a query of Spark's, for many keys.

The driver gets one key at most. Equal is what Spark's groups and joins take for equal: NaN equals NaN, and -0.0 equals 0.0, as in
the key index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakebed.errors import InvalidInput
from lakebed.failures import spark_job
from lakebed.far_times import python_rows
from lakebed.log.actions import Part
from lakebed.log.snapshot import Snapshot
from lakebed.quoting import quote_for_spark
from lakebed.view.merge_on_read import TableView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def require_new_keys(
    view: TableView,
    spark: SparkSession,
    snapshot: Snapshot,
    new: Sequence[Part],
    beside: Sequence[Part],
    whose: str,
) -> None:
    """Raises InvalidInput naming a key that is twice in the new parts, or live in those beside them. ``whose``: the new rows."""
    names = snapshot.logical_settings.keys
    columns = [f"k{at}" for at in range(len(names))]

    def keys_of(parts: Sequence[Part]) -> DataFrame:
        frame = view.dataframe_of_parts(spark, snapshot, parts)
        return frame.selectExpr(
            *(f"{quote_for_spark(name)} as {column}" for name, column in zip(names, columns, strict=True))
        )

    def first(found: DataFrame) -> object:
        with spark_job():
            rows = found.select(*columns).limit(1).toArrow()
        return next(iter(python_rows(rows.rename_columns(list(names)))), None)

    if not new:
        return
    own = keys_of(new)
    if twice := first(own.groupBy(*columns).count().where("count > 1")):
        raise InvalidInput(f"{whose} hold the key {twice} twice")
    if beside and (live := first(keys_in_both(own, keys_of(beside)))):
        raise InvalidInput(f"{whose} have the key {live}, which is live in the table; delete one of the two")


def keys_in_both(own: DataFrame, others: DataFrame) -> DataFrame:
    """The keys that both have. Sorted keys are tiny in files, so Spark would broadcast millions of them from the driver."""
    return own.join(others.hint("merge"), own.columns, "left_semi")
