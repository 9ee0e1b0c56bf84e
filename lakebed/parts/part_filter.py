"""Leaves out parts that can hold no row of a predicate. A part that is left out never holds a matching row; one that is kept
may hold none either.

1. Of the conditions that AND joins, those are used that compare a column with a constant: ``=``, ``<``, ``<=``, ``>``, ``>=``,
   ``BETWEEN``, ``IN``. Other conditions leave out no part.
2. Each condition becomes one on the column's least and greatest value: ``x > 5`` can only hold in a part where ``greatest >
   5``.
3. DuckDB evaluates these on a table with a row a part, made from the statistics and partition values of the parts. So a
   constant is compared with a bound exactly as with the column itself. A bound that is unknown leaves out no part.

Rows with given values (``parts_that_may_hold``) are looked up in the same bounds, by one sorted join a column. Where their
least and greatest values are enough (``parts_that_may_overlap``), it takes one comparison a part.

Some bounds of other writers do not hold (``trusts_bounds``): no file may be left out because of them.

Step 2 requires that the comparison follows the order of the column's values. So it ignores constants of another family than
the column's (DuckDB might compare the column's texts), and lists of constants of several kinds.

``KeyRanges`` says where the keys of some parts are, as far as the log says it: enough to see that most changes of others are
about other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.log.actions import PartitionKey, is_native_file
from lakebed.parts.changes import WriteSpec
from lakebed.quoting import literal
from lakebed.schema.column_mapping import ColumnMapping
from lakebed.sortkey.statistics import has_bounds, highest, lowest, parsed_stats
from lakebed.sortkey.statistics_cache import StatisticsCache
from lakebed.sql import Expression, by_place, registered, sql_type

_FLIPPED = {
    "COMPARE_EQUAL": "COMPARE_EQUAL",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
}
_MOMENTS = frozenset({"DATE", "TIMESTAMP", "TIMESTAMPTZ"})
_EXACT_DIGITS_MAX = 18
_FLOAT_DIGITS = 15


class HasStatistics(Protocol):
    """A file of which the log knows bounds: a part, a change part, or how a reader sees one."""

    @property
    def path(self) -> str: ...
    @property
    def partition_values(self) -> Mapping[str, str | None]: ...
    @property
    def stats(self) -> str | None: ...


_File = TypeVar("_File", bound=HasStatistics)


@dataclass(frozen=True, slots=True)
class _Constant:
    """``kind``: INTEGER, NUMERIC, STRING, or the type that a text is cast to."""

    kind: str
    sql: str


def parts_that_may_match(
    connection: duckdb.DuckDBPyConnection,
    files: Sequence[_File],
    schema: pa.Schema,
    where: Expression | None,
    statistics: StatisticsCache | None = None,
    mapping: ColumnMapping | None = None,
) -> list[_File]:
    """The files that may hold a row for which ``where``, over the columns of ``schema``, is true.

    ``statistics``: what was read before of the statistics of the table's files, so that it need not be read again.
    ``schema`` has stored names, as the statistics do; with ``mapping``, ``where`` has the logical ones.
    """
    if where is None or len(files) < 2:
        return list(files)
    columns: dict[str, int] = {}
    names = schema.names if mapping is None else mapping.logical_names(schema.names)
    conditions = [condition(columns) for condition in _conditions(where.tree, list(zip(names, schema, strict=True)))]
    if not conditions:
        return list(files)
    statistics = StatisticsCache() if statistics is None else statistics
    bounds = {}
    for name, at in columns.items():
        bounds[f"lo{at}"], bounds[f"hi{at}"] = _bounds(files, schema.field(name), statistics)
    query = f"select {' and '.join(f'coalesce({text}, true)' for text in conditions)} as keep"
    try:
        with registered(connection, "lakebed_bounds", pa.table(bounds)) as table:
            keep = connection.sql(f"{query} from {table}").to_arrow_table()["keep"]
    except (duckdb.ProgrammingError, duckdb.DataError):  # the predicate is wrong: the read reports how
        return list(files)
    return [files[place] for place in np.flatnonzero(keep.to_numpy()).tolist()]


def parts_that_may_hold(
    connection: duckdb.DuckDBPyConnection,
    files: Sequence[_File],
    schema: pa.Schema,
    values: pa.Table,
    statistics: StatisticsCache | None = None,
) -> list[_File]:
    """The files that may hold a row with the values of a row of ``values``, whose columns have the types of ``schema``.

    A file is left out if no value of some column lies within its bounds: the least value that is not below the lower bound is
    above the upper one.
    """
    names = [name for name in values.column_names if has_bounds(schema.field(name).type)]
    if len(files) < 2 or not names:
        return list(files)
    statistics = StatisticsCache() if statistics is None else statistics
    bounds: dict[str, Any] = {"place": pa.array(range(len(files)), pa.int64())}
    joins = []
    for at, name in enumerate(names):
        bounds[f"lo{at}"], bounds[f"hi{at}"] = _bounds(files, schema.field(name), statistics)
        column = f"select distinct c{at} from lakebed_values where c{at} is not null"
        joins.append(f"asof left join ({column}) k{at} on k{at}.c{at} >= b.lo{at}")
    may_hold = " and ".join(
        f"(lo{at} is null or hi{at} is null or coalesce(k{at}.c{at} <= hi{at}, false))" for at in range(len(names))
    )
    wanted = by_place(values, names)
    with registered(connection, "lakebed_bounds", pa.table(bounds)), registered(connection, "lakebed_values", wanted):
        query = f"select place from lakebed_bounds b {' '.join(joins)} where {may_hold}"
        kept = sorted(place for (place,) in connection.execute(query).fetchall())
    return [files[place] for place in kept]


def parts_that_may_overlap(
    connection: duckdb.DuckDBPyConnection,
    files: Sequence[_File],
    schema: pa.Schema,
    values: pa.Table,
    statistics: StatisticsCache | None = None,
) -> list[_File]:
    """The files that may hold a row whose values are all between the least and the greatest in ``values``.

    Cheap also for millions of values. The columns of ``values`` have the types of ``schema``.
    """
    names = [name for name in values.column_names if has_bounds(schema.field(name).type)]
    if len(files) < 2 or not names or not len(values):
        return list(files)
    statistics = StatisticsCache() if statistics is None else statistics
    bounds: dict[str, Any] = {"place": pa.array(range(len(files)), pa.int64())}
    for at, name in enumerate(names):
        bounds[f"lo{at}"], bounds[f"hi{at}"] = _bounds(files, schema.field(name), statistics)
    ends = ", ".join(f"min(c{at}) as least{at}, max(c{at}) as greatest{at}" for at in range(len(names)))
    overlap = " and ".join(
        f"coalesce(lo{at} <= greatest{at} and hi{at} >= least{at}, true)" for at in range(len(names))
    )
    wanted = by_place(values, names)
    with registered(connection, "lakebed_bounds", pa.table(bounds)), registered(connection, "lakebed_values", wanted):
        query = f"select place from lakebed_bounds, (select {ends} from lakebed_values) where {overlap}"
        kept = sorted(place for (place,) in connection.execute(query).fetchall())
    return [files[place] for place in kept]


def trusts_bounds(path: str, kind: pa.DataType) -> bool:
    """Whether the log's bounds of a column hold for every value of the file.

    Other writers leave NaN, which is greater than any number, out of the bounds of floating point, and write those of a decimal
    as a float, which holds 15 digits.
    """
    if is_native_file(path):
        return True
    return not pa.types.is_floating(kind) and not (pa.types.is_decimal(kind) and kind.precision > _FLOAT_DIGITS)


_Condition = Callable[[dict[str, int]], str]


_Named = Sequence[tuple[str, pa.Field]]
"""The columns of a table by the names that conditions have for them."""


def _conditions(node: Mapping[str, Any], schema: _Named) -> Iterator[_Condition]:
    """What must hold of a part's bounds: functions of the numbers given to the columns."""
    kind = node.get("type")
    if kind == "CONJUNCTION_AND":
        for child in node["children"]:
            yield from _conditions(child, schema)
    elif kind in _FLIPPED:
        for side, other, comparison in (("left", "right", kind), ("right", "left", _FLIPPED[kind])):
            field, constant = _column(node[side], schema), _constant(node[other])
            if field is not None and constant is not None and _fits(field, constant):
                yield _comparison(field.name, comparison, constant)
    elif kind == "COMPARE_BETWEEN":
        field = _column(node["input"], schema)
        constants = [_constant(node["lower"]), _constant(node["upper"])]
        if field is not None and (constants_alike := _alike(field, constants)):
            yield _comparison(field.name, "COMPARE_GREATERTHANOREQUALTO", constants_alike[0])
            yield _comparison(field.name, "COMPARE_LESSTHANOREQUALTO", constants_alike[1])
    elif kind == "COMPARE_IN":
        field = _column(node["children"][0], schema)
        if field is not None and (
            constants_alike := _alike(field, [_constant(child) for child in node["children"][1:]])
        ):
            yield _any_of(field, constants_alike)


def _comparison(column: str, kind: str, constant: _Constant) -> _Condition:
    def text(columns: dict[str, int]) -> str:
        at = columns.setdefault(column, len(columns))
        return {
            "COMPARE_EQUAL": f"(lo{at} <= {constant.sql} and hi{at} >= {constant.sql})",
            "COMPARE_LESSTHAN": f"lo{at} < {constant.sql}",
            "COMPARE_LESSTHANOREQUALTO": f"lo{at} <= {constant.sql}",
            "COMPARE_GREATERTHAN": f"hi{at} > {constant.sql}",
            "COMPARE_GREATERTHANOREQUALTO": f"hi{at} >= {constant.sql}",
        }[kind]

    return text


def _any_of(field: pa.Field, constants: Sequence[_Constant]) -> _Condition:
    """One join of bounds and constants: a condition for each constant would take seconds to plan for some thousand."""
    kind = sql_type(field.type)
    each = f"cast({{}} as {kind})" if pa.types.is_floating(field.type) else "{}"  # else they are of one type anyway
    listed = ", ".join(each.format(constant.sql) for constant in constants)

    def text(columns: dict[str, int]) -> str:
        at = columns.setdefault(field.name, len(columns))
        constant = f"select cast(unnest([{listed}]) as {kind}) as c"
        return f"(lo{at} is null or hi{at} is null or exists (from ({constant}) where c >= lo{at} and c <= hi{at}))"

    return text


def _column(node: Mapping[str, Any], schema: _Named) -> pa.Field | None:
    if node["type"] != "COLUMN_REF" or len(node["column_names"]) != 1:
        return None
    matching = [field for name, field in schema if name.lower() == node["column_names"][0].lower()]
    return matching[0] if len(matching) == 1 and has_bounds(matching[0].type) else None


def _constant(node: Mapping[str, Any]) -> _Constant | None:
    if node["type"] == "VALUE_CONSTANT" and "literal" in node:
        kind, text = node["literal"]["kind"], node["literal"].get("text")
        if kind == "STRING":
            return _Constant(kind, literal(text))
        return _Constant(kind, text) if kind in ("INTEGER", "NUMERIC") else None
    if node["type"] == "OPERATOR_CAST" and not node["try_cast"]:
        child, kind = _constant(node["child"]), str(node["type_expr"].get("type_name")).upper()
        if child is not None and child.kind == "STRING" and kind in _MOMENTS:
            return _Constant(kind, f"cast({child.sql} as {kind})")
    return None


def _fits(field: pa.Field, constant: _Constant) -> bool:
    """Whether the comparison follows the order of the column's values."""
    if pa.types.is_string(field.type):
        return constant.kind == "STRING"
    if pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
        return constant.kind == "STRING" or constant.kind in _MOMENTS
    return constant.kind in ("INTEGER", "NUMERIC")


def _alike(field: pa.Field, constants: Sequence[_Constant | None]) -> list[_Constant]:
    """The constants if each is compared as if it stood alone, else none: DuckDB finds one type for all of them."""
    fitting = [constant for constant in constants if constant is not None and _fits(field, constant)]
    if len(fitting) < len(constants) or pa.types.is_float32(field.type):
        return []
    if pa.types.is_float64(field.type):
        return fitting
    kinds = {constant.kind for constant in fitting}
    whole = all(len(constant.sql) <= _EXACT_DIGITS_MAX for constant in fitting if constant.kind == "INTEGER")
    return fitting if len(kinds) == 1 and whole and "NUMERIC" not in kinds else []


def _bounds(files: Sequence[HasStatistics], field: pa.Field, statistics: StatisticsCache) -> tuple[pa.Array, pa.Array]:
    """Least and greatest value of a column in each file; null where it is not known."""
    low, high = statistics.bounds([file.stats for file in files], field)
    trusted = [trusts_bounds(file.path, field.type) for file in files]
    if not all(trusted):
        low, high = (pc.if_else(pa.array(trusted), ends, pa.scalar(None, field.type)) for ends in (low, high))
    is_constant = [field.name in file.partition_values for file in files]
    if any(is_constant):
        ends_of = [_ends_of_partition(file, field) for file in files]
        try:
            lows, highs = (pa.array(ends, field.type) for ends in zip(*ends_of, strict=True))
        except (pa.ArrowException, OverflowError):
            lows = highs = pa.nulls(len(files), field.type)
        low, high = pc.if_else(pa.array(is_constant), lows, low), pc.if_else(pa.array(is_constant), highs, high)
    return low, high


def _ends_of_partition(file: HasStatistics, field: pa.Field) -> tuple[Any, Any]:
    text: Any = file.partition_values.get(field.name) or None
    if text is None:
        return None, None
    try:
        value = int(text) if pa.types.is_integer(field.type) else text
        return lowest(value, field.type), highest(value, field.type)
    except ValueError:  # a time that Python lacks
        return None, None


_Range = tuple[Any, Any]


class _HasStatistics(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def partition_values(self) -> Mapping[str, str | None]: ...
    @property
    def partition_key(self) -> PartitionKey: ...
    @property
    def stats(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Ranges of the keys of some parts.

    ``boxes``: for each part the least and the greatest value of each key column, None where that is not known.
    ``covers``: every part of a partition for which it is true counts, whatever its keys are.
    """

    fields: tuple[pa.Field, ...]
    boxes: tuple[tuple[_Range | None, ...], ...]
    covers: Callable[[PartitionKey], bool] | None = None

    @classmethod
    def of(
        cls,
        parts: Iterable[_HasStatistics],
        spec: WriteSpec,
        covers: Callable[[PartitionKey], bool] | None = None,
    ) -> KeyRanges:
        """The ranges of these parts of a table."""
        fields = tuple(spec.schema.field(name) for name in spec.keys)
        return cls(fields, tuple(_box(part, fields) for part in parts), covers)

    def may_meet(self, part: _HasStatistics) -> bool:
        """Whether the part may have one of the keys, or is of one of the partitions."""
        if self.covers is not None and self.covers(part.partition_key):
            return True
        box = _box(part, self.fields) if self.boxes else ()
        return any(all(map(_overlap, box, other)) for other in self.boxes)


NO_KEYS = KeyRanges((), ())


def _box(part: _HasStatistics, fields: tuple[pa.Field, ...]) -> tuple[_Range | None, ...]:
    stats = parsed_stats(part.stats) if part.stats else {}
    return tuple(_range(part, stats, field) for field in fields)


def _range(part: _HasStatistics, stats: Mapping[str, Any], field: pa.Field) -> _Range | None:
    if not has_bounds(field.type) or not trusts_bounds(part.path, field.type):
        return None
    low, high = ((stats.get(side) or {}).get(field.name) for side in ("minValues", "maxValues"))
    if field.name in part.partition_values:
        low = high = part.partition_values[field.name]
        if pa.types.is_decimal(field.type) or pa.types.is_floating(field.type) or not low:
            return None
        if pa.types.is_integer(field.type):
            low = high = int(low)
    if low is None or high is None:
        return None
    try:
        return lowest(low, field.type), highest(high, field.type)
    except (TypeError, ValueError):  # a time that Python lacks
        return None


def _overlap(one: _Range | None, other: _Range | None) -> bool:
    return one is None or other is None or bool(one[0] <= other[1] and other[0] <= one[1])
