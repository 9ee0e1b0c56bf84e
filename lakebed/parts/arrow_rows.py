"""Rows that a caller gives, in whatever form, as one Arrow table.

Accepted: everything with the Arrow PyCapsule interface (``__arrow_c_stream__`` or ``__arrow_c_array__``: pyarrow, pandas,
polars, DuckDB's relations, readers of record batches), and a list of dicts, one for each row. Types stay as they are: whether
they fit the table is decided later, for all forms alike (``exact_cast``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import pyarrow as pa

from lakebed.errors import InvalidChanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


@runtime_checkable
class ArrowStream(Protocol):
    """A table or a stream of record batches, by the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@runtime_checkable
class ArrowArray(Protocol):
    """One record batch, by the Arrow PyCapsule interface."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object: ...


Rows: TypeAlias = ArrowStream | ArrowArray | Sequence[Mapping[str, Any]]
"""What ``arrow_rows`` takes."""


def is_spark_frame(value: object) -> TypeGuard[DataFrame]:
    """Whether it is a DataFrame of Spark, which has ``__arrow_c_stream__`` too: it is written by tasks, not collected here."""
    spark = sys.modules.get("pyspark.sql.dataframe")
    return spark is not None and isinstance(value, spark.DataFrame)


def arrow_rows(rows: object, schema: pa.Schema) -> pa.Table:
    """The rows as an Arrow table. ``schema``: the table's, which decides how a dict of a list becomes a map.

    A stream is read to its end, and is then used up. An index of pandas becomes a column if it has a name. Raises
    InvalidChanges for rows in another form, or naming the column or the row that Arrow can't hold.
    """
    try:
        if isinstance(rows, ArrowStream):
            return _without_unnamed_index(pa.table(rows))
        if isinstance(rows, ArrowArray):
            return pa.Table.from_batches([pa.record_batch(rows)])
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidChanges(f"the rows are {_kind(rows)}, and can't be read as Arrow: {_first_line(error)}") from error
    if isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
        return _of_dicts(rows, schema)
    raise InvalidChanges(
        f"the rows are {_kind(rows)}; give an Arrow table, a DataFrame of Spark, pandas or polars, anything else with "
        "__arrow_c_stream__, or a list of dicts"
    )


def _without_unnamed_index(table: pa.Table) -> pa.Table:
    """Without the column that pandas makes of an index without a name."""
    if b"pandas" not in (table.schema.metadata or {}):
        return table
    return table.drop_columns([name for name in table.column_names if _PANDAS_INDEX.fullmatch(name)])


def _of_dicts(rows: Sequence[object], schema: pa.Schema) -> pa.Table:
    """One row for each dict. A field that a dict lacks, and another has, is null in its row."""
    names: dict[str, None] = {}
    dicts: list[Mapping[str, object]] = []
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidChanges(
                f"row {at} of the rows is {_kind(row)}; each must be a dict of column names and values"
            )
        names |= dict.fromkeys(row)
        dicts.append(row)
    for name in names:
        if not isinstance(name, str):
            raise InvalidChanges(f"a row has the field {name!r}, which is {_kind(name)}; a column's name is a text")
    if not rows:
        return schema.empty_table()
    return pa.table({name: _column(name, [row.get(name) for row in dicts], schema) for name in names})


def _column(name: str, values: list[object], schema: pa.Schema) -> pa.Array:
    kind = schema.field(name).type if schema.get_field_index(name) >= 0 else None
    try:
        if kind is not None and pa.types.is_map(kind):  # of a dict alone, Arrow makes a struct
            return pa.array([list(each.items()) if isinstance(each, Mapping) else each for each in values], kind)
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidChanges(f"column {name!r} of the rows can't be read as Arrow: {_first_line(error)}") from error


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__qualname__}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
