"""Queries as Spark parses and plans them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakebed.sparks.jvm import java_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A node of a plan: its operator (``Project``, ``Join``, …) and what is below it.

    ``join_type`` is empty unless the node is a join. ``columns`` are empty unless it has no children: then it returns them.
    ``subqueries`` are those in its expressions.
    """

    operator: str
    join_type: str
    columns: tuple[str, ...]
    children: tuple[PlanNode, ...]
    subqueries: tuple[PlanNode, ...]


def parse_query(session: SparkSession, sql: str) -> None:
    """Raises Spark's ParseException unless the text is one query."""
    java_session(session).sessionState().sqlParser().parseQuery(sql)


def parse_expression(session: SparkSession, text: str) -> None:
    """Raises Spark's ParseException unless the text alone is one expression."""
    java_session(session).sessionState().sqlParser().parseExpression(text)


def optimized_plan(frame: DataFrame) -> PlanNode:
    """The plan of a DataFrame as Spark's optimizer leaves it."""
    return _node(_execution(frame).optimizedPlan())


def executed_plan(frame: DataFrame) -> str:
    """The text of the physical plan."""
    return str(_execution(frame).executedPlan().toString())


def _execution(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution()


def _node(plan: Any) -> PlanNode:
    operator = str(plan.nodeName())
    children = _items(plan.children())
    return PlanNode(
        operator=operator,
        join_type=str(plan.joinType()) if operator == "Join" else "",
        columns=() if children else tuple(str(column.name()) for column in _items(plan.output())),
        children=tuple(map(_node, children)),
        subqueries=tuple(map(_node, _items(plan.subqueries()))),
    )


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]
