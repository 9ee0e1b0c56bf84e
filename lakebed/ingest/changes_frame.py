"""A user's DataFrame of changes, as one struct column that the write tasks expect. Spark works out the operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakebed.errors import InvalidChanges, InvalidInput
from lakebed.parts.changes import OP_COLUMN, SEQUENCE_COLUMN, WriteSpec
from lakebed.quoting import quote_for_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def changes_frame(
    changes: DataFrame, decoder_schema: WriteSpec, apply_as_deletes: str | None, except_columns: Sequence[str]
) -> DataFrame:
    """A user's DataFrame as a struct of the columns that the write tasks expect, the operation worked out by Spark."""
    if apply_as_deletes is not None and not decoder_schema.keys:
        raise InvalidInput("apply_as_deletes needs a table with keys; this one has none, so it can only be appended to")
    known = set(changes.columns)
    for name in known:
        if changes.columns.count(name) > 1:
            raise InvalidChanges(f"the changes have the column {name!r} more than once; leave one of them out")
    for name in except_columns:
        if name not in known:
            raise InvalidInput(f"except_column_list names {name!r}, which the changes lack")
        if name in decoder_schema.keys or name == decoder_schema.sequence_by:
            raise InvalidInput(
                f"except_column_list names {name!r}, which is a key or orders the changes; it can't be left out"
            )
    columns = []  # as one text: every Column is a round trip to the JVM
    for field in decoder_schema.schema:
        if field.name in except_columns:
            columns.append(f"null as {quote_for_spark(field.name)}")
        elif field.name in known:
            columns.append(quote_for_spark(field.name))
        else:
            raise InvalidChanges(
                f"the changes lack the column {field.name!r} of the table; add it (null where there is no value)"
            )
    if decoder_schema.keys:
        deleted = "false"
        if apply_as_deletes is not None:
            _require_spark_expression(changes, apply_as_deletes)
            deleted = f"coalesce(cast(({apply_as_deletes}\n) as boolean), false)"
        columns.append(f"case when {deleted} then 'd' else 'u' end as {OP_COLUMN}")
    if decoder_schema.sequence_by is not None and decoder_schema.sequence_column == SEQUENCE_COLUMN:
        if decoder_schema.sequence_by not in known:
            raise InvalidChanges(f"the changes lack the column {decoder_schema.sequence_by!r}, which sequence_by names")
        columns.append(f"{quote_for_spark(decoder_schema.sequence_by)} as {SEQUENCE_COLUMN}")
    try:
        return changes.selectExpr(f"struct({', '.join(columns)}) as row")
    except Exception as error:
        if apply_as_deletes is None or not _is_of_spark(error):
            raise
        raise InvalidInput(f"apply_as_deletes={apply_as_deletes!r} can't be evaluated: {_first_line(error)}") from None


def _require_spark_expression(frame: DataFrame, text: str) -> None:
    """Raises InvalidInput if Spark does not read the text by itself as one expression: no bracket in it closes one of ours."""
    try:
        frame.sparkSession._jsparkSession.sessionState().sqlParser().parseExpression(text)
    except Exception as error:
        if not _is_of_spark(error):
            raise
        raise InvalidInput(f"apply_as_deletes={text!r} is not one SQL expression: {_first_line(error)}") from None


def _is_of_spark(error: Exception) -> bool:
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "no reason given")
