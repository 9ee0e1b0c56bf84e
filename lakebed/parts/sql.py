"""The few pieces of SQL that every query over parts is made of: names, literals, and the scan of some files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

import duckdb
import pyarrow as pa

from lakebed.parts.engine import WILDCARDS, connect

EVALUATED_FIRST = "limit 9223372036854775807"
"""At the end of a subquery: no expression of the query around it is evaluated on rows that the subquery leaves out.

A limit takes rows that the subquery has chosen; so a predicate can't pass it, and no rows are too many for this one.
"""
# Bounds that other writers put into a footer leave NaN out, which is greater than any number: row groups may still hold it.
_OPTIONS = "hive_partitioning = false, can_have_nan = true"


def quote(name: str) -> str:
    """An identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_all(names: Iterable[str]) -> str:
    """Identifiers, separated by commas."""
    return ", ".join(quote(name) for name in names)


def literal(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("'", "''") + "'"


def file_literal(url: str) -> str:
    """A file's name as a string literal; wildcards in it are part of the name."""
    return literal(url.translate(WILDCARDS))


def parquet(url: str, options: str = "") -> str:
    """The scan of one file. Wildcards and ``name=value`` folders in its path mean nothing: they are part of its name."""
    return f"read_parquet({file_literal(url)}, {_OPTIONS}{', ' + options if options else ''})"


def parquet_of(urls: Iterable[str], columns: Mapping[str, tuple[str, str]]) -> str:
    """The scan of files as one, file after file. ``columns``: stored name to its alias and SQL type; null where absent.

    By aliases and a given schema, so footers need not be compared first, and no column can hide DuckDB's own
    ``file_index`` and ``file_row_number``.
    """
    entries = [
        f"{literal(name)}: {{'name': {literal(alias)}, 'type': {literal(kind)}, 'default_value': NULL}}"
        for name, (alias, kind) in columns.items()
    ]
    # A map must not be empty; a name that no file has does no harm.
    entries = entries or ["'_lakebed_none': {'name': 'c', 'type': 'INTEGER', 'default_value': NULL}"]
    listed = ", ".join(map(file_literal, urls))
    return f"read_parquet([{listed}], schema = map {{{', '.join(entries)}}}, {_OPTIONS})"


def parquet_by_footers(urls: Iterable[str]) -> str:
    """The scan of files as one, whose columns are all that the files have, found by reading every footer first."""
    return f"read_parquet([{', '.join(map(file_literal, urls))}], union_by_name = true, {_OPTIONS})"


@contextmanager
def registered(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> Iterator[str]:
    """The Arrow table under a name that queries can use."""
    connection.register(name, table)
    try:
        yield name
    finally:
        connection.unregister(name)


@lru_cache(maxsize=256)
def sql_type(kind: pa.DataType) -> str:
    """DuckDB's name of an Arrow type. Safe in several threads: the connection that DuckDB shares among them all is not."""
    with connect() as connection:
        return str(connection.from_arrow(pa.table({"a": pa.nulls(0, kind)})).types[0])


def columns_with_partition(
    names: Iterable[str], partition_values: Mapping[str, str | None], stored: bool, schema: pa.Schema
) -> list[str]:
    """Select items for columns of a file; where it leaves partition columns out (``stored`` False) they are constants."""
    out = []
    for name in names:
        if stored or name not in partition_values:
            out.append(quote(name))
            continue
        value = partition_values[name]
        text = "null" if value is None else literal(value)
        out.append(f"cast({text} as {sql_type(schema.field(name).type)}) as {quote(name)}")
    return out
