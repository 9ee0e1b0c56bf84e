"""Dates and timestamps that Spark reads by JDBC, exactly: the database itself says which day or microsecond each one is.

A driver gives dates and timestamps as Java's old classes. These have the calendar from before 1582 and the time zone of this
machine. So Spark gets other days before that year and other seconds before 1900, loses the era of years before 1, misses hours
that a change of daylight saving leaves out, and ends at PostgreSQL's infinity. Whole numbers have none of this. So the columns
are read as numbers since 1970, which the database computes, and become dates and timestamps again in Spark.

PostgreSQL's hstore is read as JSON, as Debezium sends it.

This is known of PostgreSQL, MariaDB and MySQL. Columns of other databases are read as Spark reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakebed.quoting import quote, quote_for_spark

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

_NAME = "_lakebed_time_{}"
_ROWS = "lakebed_rows"
_TO_TIME = {
    "date": "date_from_unix_date({})",
    "timestamp": "timestamp_micros({})",
    "timestamp_ntz": "cast(timestamp_micros({}) as timestamp_ntz)",  # in the zone of the session, which is UTC
    "string": "{}",
}
"""By the type that Spark has for a column: the value for a number. Also of the elements of an array."""

_INFINITIES = "when {0} = 'infinity' then {1} when {0} = '-infinity' then -{1} "
_POSTGRES_DATE = f"case {_INFINITIES.format('{0}', 2**31 - 1)}else {{0}} - date '1970-01-01' end"
_POSTGRES_MICROS = (
    f"case {_INFINITIES.format('{0}', 2**63 - 1)}when {{0}} >= '294247-01-10 00:00:00+00' then {2**63 - 1} "
    "else extract(epoch from date_trunc('second', {0}))::bigint * 1000000 + extract(microseconds from {0})::bigint % 1000000 end"
)
_MYSQL_MICROS = "timestampdiff(microsecond, '1970-01-01', {0})"


@dataclass(frozen=True, slots=True)
class _Database:
    """``numbers``: by the database's type, the expression for the number of a value, or its JSON. ``quote``: for names."""

    numbers: Mapping[str, str]
    quote: Callable[[str], str]


_POSTGRES = _Database(
    {
        "date": _POSTGRES_DATE,
        "timestamp": _POSTGRES_MICROS,
        "timestamptz": _POSTGRES_MICROS,
        "hstore": "hstore_to_json({0})::text",
    },
    quote,
)
_MYSQL = _Database(
    {
        "DATE": "datediff({0}, '1970-01-01')",
        "DATETIME": _MYSQL_MICROS,
        "TIMESTAMP": "cast(unix_timestamp({0}) * 1000000 as signed)",  # which does not depend on the session's zone
    },
    quote_for_spark,  # MySQL has Spark's quotes
)
_DATABASES = {"postgresql": _POSTGRES, "mariadb": _MYSQL, "mysql": _MYSQL}


@dataclass(frozen=True, slots=True)
class _ExactTimes:
    """``source``: what Spark reads in place of the table or query. ``columns``: in Spark's SQL, each column as it is."""

    source: str
    columns: tuple[str, ...]


def exact_times(url: str, schema: StructType, table: str | None, query: str | None) -> _ExactTimes | None:
    """How to read a table or query whose columns Spark would read as ``schema``; None if Spark's reading is exact, or no better
    one is known.
    """
    database = next((one for name, one in _DATABASES.items() if url.startswith(f"jdbc:{name}:")), None)
    numbers = {} if database is None else {field.name: _number(field, database) for field in schema.fields}
    numbered = {name: number for name, number in numbers.items() if number is not None}
    if not numbered:
        return None
    added: list[str] = []
    columns: list[str] = []
    for field in schema.fields:
        if field.name not in numbered:
            columns.append(quote_for_spark(field.name))
            continue
        name = _NAME.format(len(added))
        added.append(f"{numbered[field.name]} as {name}")
        columns.append(f"{_time(field, name)} as {quote_for_spark(field.name)}")
    given = query if query is not None else f"select * from {table}"
    return _ExactTimes(
        f"(select {_ROWS}.*, {', '.join(added)} from ({given}) {_ROWS}) lakebed_numbered", tuple(columns)
    )


def _number(field: StructField, database: _Database) -> str | None:
    """The expression for the number of the column's value, or for an array of them; None if Spark is to read it."""
    kind, client = field.dataType.simpleString(), str(field.metadata.get("jdbcClientType"))
    column = f"{_ROWS}.{database.quote(field.name)}"
    if _is_read(kind, client, database):
        return database.numbers[client].format(column)
    if _is_read(_element(kind), client[1:], database) and field.metadata.get("arrayDimension") == 1:
        number = database.numbers[client[1:]].format("each.value")
        elements = f"select {number} from unnest({column}) with ordinality as each(value, place) order by each.place"
        return f"case when {column} is not null then array({elements}) end"
    return None


def _is_read(kind: str, client: str, database: _Database) -> bool:
    return kind in _TO_TIME and client in database.numbers and (kind == "string") == (client == "hstore")


def _time(field: StructField, name: str) -> str:
    kind = field.dataType.simpleString()
    if kind in _TO_TIME:
        return _TO_TIME[kind].format(name)
    return f"transform({name}, number -> {_TO_TIME[_element(kind)].format('number')})"


def _element(kind: str) -> str:
    return kind.removeprefix("array<").removesuffix(">")
