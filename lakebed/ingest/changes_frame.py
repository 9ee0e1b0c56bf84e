"""Turn a user's DataFrame of changes into the one struct column that the write tasks expect."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from lakebed.decode.row_changes import columns_left_out, names_in_rows
from lakebed.errors import InvalidChanges, InvalidInput
from lakebed.failures import first_line
from lakebed.parts.changes import HIDDEN_TYPES, OP_COLUMN, SEQUENCE_COLUMN, WriteSpec
from lakebed.parts.fills import Fill, lacks, lacks_order
from lakebed.quoting import quote_for_spark
from lakebed.schema.conversion import is_change_name
from lakebed.schema.fitting import FIXED, RESCUED_COLUMN, EvolvePolicy
from lakebed.sparks.jvm import parse_expression

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OWN = frozenset(HIDDEN_TYPES)


def changes_frame(
    changes: DataFrame,
    spec: WriteSpec,
    apply_as_deletes: str | None,
    except_columns: Sequence[str],
    *,
    policy: EvolvePolicy = FIXED,
    rescued: Sequence[str] = (),
    may_lack: Collection[str] = (),
    fill: Fill | None = None,
    beside: Sequence[str] = (),
) -> DataFrame:
    """A user's DataFrame as a struct of the columns that the write tasks expect; Spark evaluates which rows are deletes.

    ``rescued``: columns that the table lacks, and whose values are kept as JSON. ``may_lack``: columns of the table that are null
    if the DataFrame lacks them. ``fill``: which
    columns changes fill; the struct lacks the others. ``beside``: columns that stay beside the struct.
    Raises InvalidInput for a setting that does not fit, InvalidChanges for columns that do not fit the table.
    """
    if apply_as_deletes is not None and not spec.keys:
        raise InvalidInput("apply_as_deletes needs a table with keys; this one has none, so it can only be appended to")
    given = set(changes.columns)
    lower = Counter(name.lower() for name in changes.columns)
    for name in given:
        if lower[name.lower()] > 1:
            raise InvalidChanges(
                f"the changes have the column {name!r} more than once, in Spark's eyes also where names differ by case alone; "
                "leave one of them out"
            )
    for name in except_columns:
        if name not in given:
            raise InvalidInput(f"except_column_list names {name!r}, which the changes lack")
    sent = names_in_rows(spec.schema.names, changes.columns, policy)
    left_out = columns_left_out(sent, except_columns)
    for name in left_out:
        if name in spec.keys or name == spec.sequence_by:
            raise InvalidInput(
                f"except_column_list names {name!r}, which is a key or orders the changes; it can't be left out"
            )
    fields = {group.field: group for group in spec.groups if group.field is not None}
    kept = [] if fill is None else fill.kept(spec, (sent.keys() - set(left_out)) | given.intersection(fields))
    columns = []  # SQL texts, since every Column object costs a call to the JVM
    for field in spec.schema:
        if field.name in kept:
            continue
        if field.name in left_out:
            columns.append(f"null as {quote_for_spark(field.name)}")
        elif (found := sent.get(field.name)) is not None:
            columns.append(f"{quote_for_spark(found)} as {quote_for_spark(field.name)}")
        elif field.nullable and (field.name in may_lack or field.name == RESCUED_COLUMN):
            columns.append(f"null as {quote_for_spark(field.name)}")
        else:
            raise lacks(field.name, list(given))
    columns += [quote_for_spark(name) for name in rescued]
    if spec.keys:
        deleted = "false"
        if apply_as_deletes is not None:
            _require_spark_expression(changes, apply_as_deletes)
            deleted = f"coalesce(cast(({apply_as_deletes}\n) as boolean), false)"
        columns.append(f"case when {deleted} then 'd' else 'u' end as {OP_COLUMN}")
    columns += _orders(spec, given, kept)
    try:
        return changes.selectExpr(f"struct({', '.join(columns)}) as row", *beside)
    except Exception as error:
        if apply_as_deletes is None or not _is_of_spark(error):
            raise
        raise InvalidInput(f"apply_as_deletes={apply_as_deletes!r} can't be evaluated: {first_line(error)}") from None


def _orders(spec: WriteSpec, given: Collection[str], kept: Collection[str]) -> list[str]:
    """What orders the changes, where that is no column of the table."""
    columns = []
    if spec.sequence_by is not None and spec.sequence_column == SEQUENCE_COLUMN and SEQUENCE_COLUMN not in kept:
        if spec.sequence_by not in given:
            raise InvalidChanges(f"the changes lack the column {spec.sequence_by!r}, which sequence_by names")
        columns.append(f"{quote_for_spark(spec.sequence_by)} as {SEQUENCE_COLUMN}")
    for group in spec.groups:
        if group.field is not None and group.sequence_by not in kept:
            if group.field not in given:
                raise lacks_order(group)
            columns.append(f"{quote_for_spark(group.field)} as {quote_for_spark(group.sequence_by)}")
    return columns


def unknown_columns(
    given: Sequence[str],
    spec: WriteSpec,
    apply_as_deletes: str | None,
    except_columns: Sequence[str],
    policy: EvolvePolicy = FIXED,
) -> tuple[str, ...]:
    """The columns of changes that no column of the table takes, and that no argument refers to."""
    sent = names_in_rows(spec.schema.names, given, policy).values()
    known = {*except_columns, spec.sequence_by, *(group.field for group in spec.groups), *sent}
    text = apply_as_deletes or ""
    return tuple(
        name
        for name in given
        if name not in known
        and name not in _OWN
        and not is_change_name(name)
        and not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE)
    )


def _require_spark_expression(frame: DataFrame, text: str) -> None:
    """Raises InvalidInput unless Spark parses the text alone as one expression, so no bracket in it can close one of ours."""
    try:
        parse_expression(frame.sparkSession, text)
    except Exception as error:
        if not _is_of_spark(error):
            raise
        raise InvalidInput(f"apply_as_deletes={text!r} is not one SQL expression: {first_line(error)}") from None


def _is_of_spark(error: Exception) -> bool:
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException)
