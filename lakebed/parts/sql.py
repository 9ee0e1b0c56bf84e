"""The few pieces of SQL that every query over parts is made of: names, literals, and the scan of some files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import duckdb
import pyarrow as pa


def quote(name: str) -> str:
    """An identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_all(names: Iterable[str]) -> str:
    """Identifiers, separated by commas."""
    return ", ".join(quote(name) for name in names)


def literal(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("'", "''") + "'"


def parquet(url: str, options: str = "") -> str:
    """The scan of one file. Wildcards and ``name=value`` folders in its path mean nothing: they are part of its name."""
    literal_url = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in url)
    return f"read_parquet({literal(literal_url)}, hive_partitioning=false{', ' + options if options else ''})"


@contextmanager
def registered(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> Iterator[str]:
    """The Arrow table under a name that queries can use."""
    connection.register(name, table)
    try:
        yield name
    finally:
        connection.unregister(name)


def sql_type(kind: pa.DataType) -> str:
    """DuckDB's name of an Arrow type."""
    return str(duckdb.from_arrow(pa.table({"a": pa.nulls(0, kind)})).types[0])


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
