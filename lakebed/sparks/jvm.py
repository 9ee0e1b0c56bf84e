"""The JVM behind a session: the one way into it, and whether it still runs.

A session of Spark Connect has no JVM on its side. Whoever asks for one is told so.

Here is also what Spark makes of a query, how it is parsed and planned, and of rows that a plan has.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lakebed.errors import MissingPrerequisite

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CONNECT = (
    "this is a session of Spark Connect, the only kind on Databricks' serverless and standard compute: lakebed works inside the "
    "driver of a classic session. Without Spark, table.query(), table.to_arrow() and every reader of Delta tables read a table, "
    "and lakebed run and lakebed maintain write it"
)


def require_classic(session: SparkSession) -> None:
    """Raises MissingPrerequisite if the session is of Spark Connect."""
    if ".connect." in f"{type(session).__module__}.":
        raise MissingPrerequisite(CONNECT)


def _context_of(session: SparkSession) -> SparkContext:
    """The context of a classic session. Raises MissingPrerequisite if it is of Spark Connect."""
    require_classic(session)
    return session.sparkContext


def is_on_one_machine(session: SparkSession) -> bool:
    """Whether tasks run on the machine of the driver. Raises MissingPrerequisite as ``_context_of`` does."""
    return str(_context_of(session).master).startswith("local")


def jvm_of(session: SparkSession) -> Any:
    """Java's classes by their names, as Py4J gives them. Raises MissingPrerequisite as ``_context_of`` does."""
    require_classic(session)
    return session._jvm


def has_class(session: SparkSession, name: str) -> bool:
    """Whether a jar of the session has a class, by its full name."""
    found = jvm_of(session)
    for word in name.split("."):
        found = getattr(found, word)
    return type(found).__name__ == "JavaClass"  # else Py4J takes it for a package


def java_list(jvm: Any, items: list[Any]) -> Any:
    """An ``ArrayList`` with these items."""
    out = jvm.java.util.ArrayList()
    for item in items:
        out.add(item)
    return out


def java_session(session: SparkSession) -> Any:
    """The session as the JVM knows it."""
    require_classic(session)
    return session._jsparkSession


def gateway_of(session: SparkSession) -> Any:
    """PySpark's connection to the JVM; another one is another JVM."""
    return _context_of(session)._gateway


def default_file_system(session: SparkSession) -> str:
    """Where Hadoop takes a path without a scheme to be."""
    context: Any = _context_of(session)._jsc
    return str(context.hadoopConfiguration().get("fs.defaultFS"))


def is_stopped(session: SparkSession) -> bool:
    """Whether the session was stopped in this process. Asks nobody."""
    return session.sparkContext._jsc is None  # PySpark sets it to None then


def has_ended(session: SparkSession) -> bool:
    """Whether the session was stopped, or its Java has ended. Asks the JVM."""
    try:
        context: Any = session.sparkContext._jsc
        return context is None or bool(context.sc().isStopped())
    except Exception:  # Java itself has ended
        return True


def has_executors(session: SparkSession) -> bool:
    """Whether tasks have somewhere to run. Raises what PySpark raises if the session has ended."""
    context: Any = session.sparkContext._jsc
    return bool(
        context.sc().isLocal() or context.sc().getExecutorMemoryStatus().size() > 1
    )  # the driver is one of them


def forget_session() -> None:
    """Let PySpark begin a new session after one whose Java ended: it would go on with the old one.

    While Java runs, PySpark itself forgets a session that stops, and another one in this process belongs to another caller.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None or process.poll() is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


# -- Queries as Spark parses and plans them ----------------------------------------------------------------------------


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


def arrow_frame(session: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Rows as a DataFrame whose plan has them as Arrow, however few they are.

    Spark's rules go through each row that a plan itself has, again and again, and so does Java's serialization of tasks. It
    has a session of its own: take its plan only.
    """
    from pyspark.sql.pandas.conversion import SparkConversionMixin  # ``SparkSession``'s would make the session active

    return SparkConversionMixin.createDataFrame(_session_for_arrow(_context_of(session)), rows, schema)


@lru_cache(maxsize=1)
def _session_for_arrow(context: SparkContext) -> SparkSession:
    """A session in which no rows of Arrow are few enough to become those of a plan."""
    from pyspark.sql import SparkSession as Session

    session = Session(context).newSession()
    session.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
    return session
