"""The pieces of SQL that all queries over parts share: names, literals, fields of structs, and the scan of some files.

A user may give a column any name, also DuckDB's own ``file_row_number`` or a name that a query of ours uses. So names of users
and names of ours never appear in the same place:

- A query of ours calls columns ``c0``, ``c1``, … by their place in a list (``parquet_of``, ``by_place``). They get their names
  when the result is Arrow again (``named``).
- Where both must appear together (in an Arrow table, in a part's file, in a view that a user's expression sees), ours
  begin with ``_lakebed_``, and no column of a table may begin so (``schema.conversion.RESERVED_PREFIX``).

Files have a table's stored names, users' SQL has the logical ones. A column gets its name by ``as``; a field within a value is
renamed here. Both types have the same shape, so fields belong together by their place.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

import duckdb
import pyarrow as pa

from lakebed.quoting import literal, quote
from lakebed.storage.engine import WILDCARDS, connect

# -- The pieces of SQL that all queries over parts share: names, literals, and the scan of some files ----------------------


EVALUATED_FIRST = "limit 9223372036854775807"
"""At the end of a subquery: no expression of the query around it is evaluated on rows that the subquery leaves out.

A limit takes rows that the subquery has chosen; so a predicate can't pass it, and no rows are too many for this one.
"""
# Bounds that other writers put into a footer leave NaN out, which is greater than any number: row groups may still hold it.
_OPTIONS = "hive_partitioning = false, can_have_nan = true"


def oldest_value(kind: pa.DataType) -> str:
    """A literal of a type that orders changes (``sequence_by``), older than what any change brings."""
    if pa.types.is_integer(kind):
        text = str(-(2 ** (kind.bit_width - 1)))
    elif pa.types.is_decimal(kind):
        text = str(decimal.Decimal(-(10**kind.precision) + 1).scaleb(-kind.scale))
    else:
        text = "0001-01-01" if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else ""
    return f"cast({literal(text)} as {sql_type(kind)})"


def file_literal(url: str) -> str:
    """A file's name as a string literal; wildcards in it are part of the name."""
    return literal(url.translate(WILDCARDS))


def parquet(url: str) -> str:
    """The scan of one file, for what needs no column of a table: it has the columns that the file has, by their names.

    Wildcards and ``name=value`` folders in its path mean nothing: they are part of its name.
    """
    return f"read_parquet({file_literal(url)}, {_OPTIONS})"


def aliases(names: Iterable[str]) -> dict[str, str]:
    """The names of these columns in a query."""
    return {name: f"c{at}" for at, name in enumerate(names)}


def by_place(table: pa.Table, names: Sequence[str] | None = None) -> pa.Table:
    """These columns of a table (default: all), as a query calls them."""
    chosen = table if names is None else table.select(list(names))
    return chosen.rename_columns(list(aliases(chosen.column_names).values()))


def named(found: pa.Table, names: Sequence[str]) -> pa.Table:
    """A query's result with the columns' own names: the first get these, others that follow keep theirs."""
    return found.rename_columns([*names, *found.column_names[len(names) :]])


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


def scan_of(urls: Iterable[str], kinds: Mapping[str, str], constants: Mapping[str, str | None], also: str = "") -> str:
    """A query for columns of files, ``c0``, ``c1``, …; ``kinds``: their names and SQL types, a column that a file lacks is null.

    ``constants`` are partition values: they replace the column, whatever the file holds. ``also``: more to select, of DuckDB's
    ``file_index`` and ``file_row_number``.
    """
    alias = aliases(kinds)
    stored = {name: (alias[name], kind) for name, kind in kinds.items() if name not in constants}
    items = [
        alias[name] if name in stored else f"{constant(constants[name], kind)} as {alias[name]}"
        for name, kind in kinds.items()
    ]
    return f"select {', '.join([*items, *([also] if also else [])])} from {parquet_of(urls, stored)}"


def parquet_to_join(
    connection: duckdb.DuckDBPyConnection,
    urls: Sequence[str],
    columns: Mapping[str, tuple[str, str]],
    some_may_lack: bool = True,
) -> str:
    """What ``parquet_of`` gives, for a join with few rows: by the files' own schema if that is the same, which is quicker.

    Then DuckDB 2.0 takes the values of those few rows to the scan, and leaves out rows before it decodes their other columns. All
    footers are read first, unless every file has all columns (``some_may_lack``).
    """
    by_name = ", union_by_name = true" if some_may_lack else ""
    scan = f"read_parquet([{', '.join(map(file_literal, urls))}], {_OPTIONS}{by_name})"
    found = connection.sql(f"from {scan}")
    given = dict(zip(found.columns, map(str, found.types), strict=True))
    hides = {name.lower() for name in given} & {"file_index", "file_row_number"}
    if hides or any(given.get(name) != kind for name, (_, kind) in columns.items()):
        return parquet_of(urls, columns)
    items = [f"{quote(name)} as {alias}" for name, (alias, _) in columns.items()]
    return f"(select {', '.join([*items, 'file_index', 'file_row_number'])} from {scan})"


def constant(text: str | None, kind: str) -> str:
    """A partition value of the log as a value of a SQL type; Delta reads an empty one as null."""
    if not text:
        return f"null::{kind}"
    if kind == "BLOB":
        return literal("".join(f"\\x{byte:02X}" for byte in text.encode())) + "::blob"
    return f"cast({literal(text)} as {kind})"


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


# -- Values in SQL with the fields of their structs renamed, at any depth --------------------------------------------------


def renamed_sql(value: str, kind: pa.DataType, wanted: pa.DataType, depth: int = 0) -> str:
    """SQL for ``value``, of the type ``kind``, with the field names of ``wanted``; ``value`` itself if they are equal.

    ``value``: the name of a column, as SQL. A null stays null, and so does a null within it.
    """
    if kind == wanted:
        return value
    if pa.types.is_struct(kind):
        fields = [
            f"{quote(new.name)} := {renamed_sql(f'struct_extract({value}, {literal(old.name)})', old.type, new.type, depth)}"
            for old, new in zip(kind, wanted, strict=True)
        ]
        return f"case when {value} is null then null else struct_pack({', '.join(fields)}) end"
    each = f"_lakebed_each{depth}"
    if pa.types.is_map(kind):
        key = renamed_sql(f"{each}.key", kind.key_type, wanted.key_type, depth + 1)
        item = renamed_sql(f"{each}.value", kind.item_type, wanted.item_type, depth + 1)
        entries = f"list_transform(map_entries({value}), lambda {each}: struct_pack(key := {key}, value := {item}))"
        return f"map_from_entries({entries})"
    if pa.types.is_list(kind):
        element = renamed_sql(each, kind.value_type, wanted.value_type, depth + 1)
        return f"list_transform({value}, lambda {each}: {element})"
    return value
