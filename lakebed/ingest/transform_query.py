"""The SQL of a pipeline: Spark's, on the rows of one batch. What it gives for a row depends on that row, and on other tables.

Invariant: the result does not depend on where a batch ends. So the query may choose, compute, filter, explode, join with other
tables, and unite several selections of ``changes``. It may not aggregate, count, limit, or compare changes with each other: that
is refused by the plan that Spark makes of it.

Order: without a sequence, changes of a key are applied in the order of their rows. Spark keeps it where it does not shuffle them;
a plan that does needs a table with ``sequence_by``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.decode.row_changes import names_in_rows
from lakebed.errors import InvalidChanges, InvalidInput
from lakebed.ingest.changes_frame import changes_frame, unknown_columns
from lakebed.parts.changes import WriteSpec
from lakebed.schema.conversion import ChangeNames
from lakebed.schema.fitting import FIXED
from lakebed.schema.nested import nullable
from lakebed.sparks.jvm import PlanNode, executed_plan, optimized_plan, parse_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VIEW = "changes"
_ROW_BY_ROW = frozenset({"Project", "Filter", "Generate", "Union", "Sort", "LogicalRDD", "LocalRelation", "MapInArrow"})
_KEEPS = {"Inner": (0, 1), "Cross": (0, 1), "LeftOuter": (0,), "LeftSemi": (0,), "LeftAnti": (0,), "RightOuter": (1,)}
"""On which sides of a join the changes may be: each result row then comes from one of them."""


@dataclass(frozen=True, slots=True)
class Transform:
    """``sql``: one query of Spark's that selects from ``changes``; ``columns``: of the source; ``taken``: names of the table's
    columns.
    """

    sql: str
    columns: pa.Schema
    taken: tuple[str, ...] = ()

    @property
    def names(self) -> ChangeNames:
        """What ``changes`` say besides the columns of the source."""
        return ChangeNames.beside([*self.columns.names, *self.taken])

    @property
    def view(self) -> pa.Schema:
        """The columns of ``changes``; each may be null, since a delete may have its key alone."""
        besides = pa.field(self.names.type, pa.string()), pa.field(self.names.sequence, pa.int64())
        return pa.schema([*(pa.field(one.name, nullable(one.type)) for one in self.columns), *besides])

    def check(self, spark: SparkSession, spec: WriteSpec) -> None:
        """Raises InvalidInput if the query can't be, or its rows can't be those of a table of this shape (``spec.incoming``)."""
        from pyspark.sql.pandas.types import from_arrow_schema

        try:
            parse_query(spark, self.sql)
            none = spark.createDataFrame(spark.sparkContext.emptyRDD(), from_arrow_schema(self.view))
            result = self.over(none)
        except Exception as error:
            raise _refused(error) from None
        _require_row_by_row(optimized_plan(result), self.names.type)
        self.rows_for(result, spec, is_running=False)

    def over(self, changes: DataFrame) -> DataFrame:
        """The result of the query for these rows."""
        changes.createOrReplaceTempView(_VIEW)
        return changes.sparkSession.sql(self.sql)

    def rows_for(
        self, result: DataFrame, spec: WriteSpec, *, is_running: bool = True
    ) -> tuple[DataFrame, tuple[str, ...]]:
        """The rows for the write tasks, and the columns that the table lacks. Raises InvalidInput as ``check`` does.

        ``is_running``: the query was checked when its stream began. A column that it lacks came since, which stops no stream: it
        is null.
        """
        names, kind, sequence = result.columns, self.names.type, self.names.sequence
        has_type = kind in names
        if spec.keys and not has_type:
            raise InvalidInput(
                f"the result has no column {kind}, without which deletes would become rows: select it too"
            )
        if spec.keys and spec.sequence_by is None and _is_shuffled(result):
            raise InvalidInput(
                "Spark shuffles the rows for this SQL, so the order of the changes of a key is lost: set "
                "table.sequence_by, or let it broadcast the other table (/*+ broadcast(name) */)"
            )
        if spec.sequence_by is not None and spec.sequence_by not in (*spec.schema.names, *names):
            if sequence not in names:
                raise InvalidInput(f"the result has no column {sequence}, which orders the changes: select it too")
            result = result.withColumnRenamed(sequence, spec.sequence_by)
        if not spec.keys and has_type:
            result = result.drop(kind) if kind not in spec.schema.names else result
        there = {*result.columns, *names_in_rows(spec.schema.names, result.columns, FIXED)}
        if lacking := [name for name in (*spec.keys, spec.sequence_by) if name is not None and name not in there]:
            raise InvalidInput(f"the result of the SQL lacks the column {lacking[0]!r} of the table; select it too")
        deletes = f"{kind} = 'delete'" if spec.keys else None
        try:
            frame = changes_frame(result, spec, deletes, (), may_lack=spec.schema.names if is_running else ())
        except InvalidChanges as error:
            raise InvalidInput(str(error).replace("the changes lack", "the result of the SQL lacks")) from None
        return frame, unknown_columns(result.columns, spec, deletes, ())

    def changes_in_rows(
        self,
        rows: DataFrame,
        apply_as_deletes: str | None,
        except_columns: Sequence[str],
        sequence: str = "cast(null as long)",
    ) -> DataFrame:
        """Rows of files with the other columns of the view. ``sequence``: what orders them, an expression of Spark's."""
        deleted = "false" if apply_as_deletes is None else f"coalesce(cast(({apply_as_deletes}\n) as boolean), false)"
        kinds = f"case when {deleted} then 'delete' else 'upsert' end as {self.names.type}"
        return rows.selectExpr("*", kinds, f"{sequence} as {self.names.sequence}").drop(*except_columns)


def _refused(error: Exception) -> InvalidInput:
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        raise error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    place = next((line for line in lines if line.startswith("== SQL")), "")
    return InvalidInput(f"Spark refuses the SQL: {lines[0]}{place.removeprefix('== SQL')}")


def _require_row_by_row(plan: PlanNode, kind: str) -> bool:
    """Whether a plan has changes in it, which have a column called ``kind``.

    Raises InvalidInput if a row of its result depends on several of them.
    """
    inside = [_require_row_by_row(child, kind) for child in plan.children]
    if any([_require_row_by_row(each, kind) for each in plan.subqueries]):
        raise InvalidInput(_WHY.format("a subquery on changes"))
    if not plan.children:
        return kind in plan.columns
    if not any(inside):
        return False
    if plan.operator == "Join":
        kept = _KEEPS.get(plan.join_type, ())
        if all(inside):
            raise InvalidInput(_WHY.format("a join of changes with changes"))
        if inside.index(True) not in kept:
            raise InvalidInput(
                _WHY.format(f"a join ({plan.join_type}) that keeps rows of the other table without a change")
            )
    elif plan.operator not in _ROW_BY_ROW:
        raise InvalidInput(_WHY.format(plan.operator.lower()))
    return True


_WHY = (
    "the SQL has {}: it would see the rows of one batch only, so its result would depend on where batches end. Select row by "
    "row here, and aggregate when the table is read"
)


def _is_shuffled(result: DataFrame) -> bool:
    return "Exchange" in executed_plan(result).replace("BroadcastExchange", "")
