"""SQL: pieces that all queries over parts share; and users' SQL, taken apart by DuckDB's parser before any of it runs, and run
where it reaches nothing but the table.

Invariants
- What ``expression`` returns is one expression over one row: put in brackets it can end no clause and begin no statement, and
  it gives one value for each row. It has no subquery, aggregate, window or function that makes several rows of one.
- What ``require_query`` lets through is one query. It changes nothing, and calls no function that reads files.
- A connection of ``connection_for`` reads the files of one table. All else is out of reach: other files, Python's variables,
  extensions, settings. So a hole in the two rules above alone does no harm.

Algorithm of ``expression``
1. The text must parse by itself, so no bracket in it closes one of ours; and in brackets, so there is no clause behind it.
2. Each node of the syntax tree must be of a known class; anything new is refused until it is known.
3. Each function must be scalar by DuckDB's own catalogue. A macro is checked by its body, in the same way.
"""

from __future__ import annotations

import decimal
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.far_times import python_rows
from lakebed.quoting import literal, quote
from lakebed.settings import suggest
from lakebed.storage.engine import WILDCARDS, connect, connect_sealed, is_failed_stream, naming_unreadable
from lakebed.storage.part_storage import PartStorage

# -- The pieces of SQL that all queries over parts share -------------------------------------------------------------------
#
# A user may give a column any name, also DuckDB's own ``file_row_number`` or a name that a query of ours uses. So names of users
# and names of ours never appear in the same place:
#
# - A query of ours calls columns ``c0``, ``c1``, … by their place in a list (``parquet_of``, ``by_place``). They get their
#   names when the result is Arrow again (``named``).
# - Where both must appear together (in an Arrow table, in a part's file, in a view that a user's expression sees), ours begin
#   with ``_lakebed_``, and no column of a table may begin so (``schema.conversion.RESERVED_PREFIX``).
#
# Files have a table's stored names, users' SQL has the logical ones. A column gets its name by ``as``; a field within a value
# is renamed here. Both types have the same shape, so fields belong together by their place.


# -- Names, literals, and the scan of some files ---------------------------------------------------------------------------


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


_PLAIN = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "LAMBDA"}
    | {"LAMBDA_REF", "OPERATOR", "TYPE"}
)
_OF_SEVERAL_ROWS = {
    "DEFAULT": "DEFAULT",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "the number of a column",
    "STAR": "a star (*, COLUMNS), which stands for several columns",
    "SUBQUERY": "a subquery (ANY and ALL are subqueries too; for a list write list_contains)",
    "WINDOW": "a window function, which looks at other rows",
}
_WITH_EFFECTS = frozenset({"currval", "json_serialize_plan", "nextval", "setseed", "setval", "sleep_ms", "write_log"})
_GENERATORS = frozenset({"unlist", "unnest"})
_QUERIES = frozenset({"CTE_NODE", "RECURSIVE_CTE_NODE", "SELECT_NODE", "SET_OPERATION_NODE"})
_READS_NO_FILE = frozenset(
    {"generate_series", "histogram", "histogram_values", "json_each", "json_tree", "range", "repeat", "repeat_row"}
    | {"summary", "unnest", "duckdb_columns", "duckdb_functions", "duckdb_keywords", "duckdb_settings", "duckdb_types"}
)
_EXPLAIN = re.compile(r"\s*explain\s+(?:analyze\s+)?(?:\((?:\s*(?:analyze|format)\b)[^()']*\))?", re.IGNORECASE)
_SYMBOLS = re.compile(r"\W+")

_Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expression:
    """A user's expression that was checked. ``tree``: its syntax tree as ``json_serialize_sql`` gives it."""

    text: str
    tree: _Node

    @property
    def sql(self) -> str:
        """To be put into a query."""
        return f"({self.text}\n)"  # the line ends a comment in it


def expression(given: object, name: str) -> Expression:
    """Checks that ``given`` is one expression over one row. Raises InvalidInput, which calls it ``name``."""
    text = require_text(given, name)
    tree = parsed(text, f"{name}={text!r}")
    for node in _nodes(tree):
        found = _not_of_one_row(node)
        if found is not None:
            raise InvalidInput(f"{name}={text!r} has {found}; it must be one expression over the columns of one row")
    return Expression(text, tree)


def names_in(given: Expression) -> frozenset[str]:
    """The names of columns in an expression, as they are written."""
    return frozenset(str(node["column_names"][0]) for node in _nodes(given.tree) if node.get("class") == "COLUMN_REF")


def condition(where: Expression) -> str:
    """A boolean expression that is never null."""
    return f"coalesce({where.sql}::boolean, false)"


def names_a_column(where: Expression) -> bool:
    """Whether its value may differ from row to row."""
    return any(node.get("class") == "COLUMN_REF" for node in _nodes(where.tree))


def check_condition(where: Expression, schema: pa.Schema) -> None:
    """Raises InvalidInput for a condition that can't be evaluated on rows of this schema."""
    nothing = schema.empty_table()
    with (
        connect_sealed() as connection,
        registered(connection, "lakebed_nothing", nothing),
        mistakes(f"where={where.text!r}"),
    ):
        connection.sql(f"select 1 from lakebed_nothing where {condition(where)}")


def require_true(where: Expression, rows: pa.Table) -> None:
    """Raises InvalidInput naming a row, by the columns of the condition, for which it is not true."""
    asked = {name.lower() for name in names_in(where)}
    names = [name for name in rows.column_names if name.lower() in asked] or rows.column_names[:1]
    query = f"select {', '.join(map(quote, names))} from lakebed_given where not {condition(where)} limit 1"
    with (
        connect_sealed() as connection,
        registered(connection, "lakebed_given", rows.select(names)),
        mistakes(f"where={where.text!r}"),
    ):
        found = connection.sql(query).to_arrow_table()
    for other in python_rows(found):
        raise InvalidInput(f"the rows for where {where.text} hold one with {other}, for which that is not true")


def check_columns_of(where: Expression, names: Iterable[str]) -> None:
    """Raises InvalidInput for a column that there is not. Nothing is evaluated, whatever the condition is.

    ``check_condition`` finds more, such as types that do not fit. But for that DuckDB evaluates what is constant, which may take
    any time: it is for conditions of callers who may run SQL anyway.
    """
    known, nodes = [name.lower() for name in names], list(_nodes(where.tree))
    if any(node.get("class") == "LAMBDA" for node in nodes):  # its parameters look like columns
        return
    for node in nodes:
        if node.get("class") == "COLUMN_REF" and str(node["column_names"][0]).lower() not in known:
            name = ".".join(map(str, node["column_names"]))
            raise InvalidInput(f"where={where.text!r}: there is no column {name!r}{suggest(name.lower(), known)}")


def parsed(text: str, context: str) -> _Node:
    """The syntax tree of a text that is one expression. Raises InvalidInput, which begins with ``context``."""
    with connect() as connection:  # nothing is run
        try:
            statements = connection.extract_statements(f"select {text}\n")
        except (duckdb.Error, ValueError) as error:
            raise InvalidInput(f"{context} is not one SQL expression: {error}") from None
        tree = _serialized(connection, f"select ({text}\n)", context, "one SQL expression")
    found = tree["statements"]
    if len(statements) != 1 or len(found) != 1 or len(found[0]["node"].get("select_list", ())) != 1:
        raise InvalidInput(f"{context} is not one SQL expression")
    out: _Node = found[0]["node"]["select_list"][0]
    return out


def require_query(sql: object) -> str:
    """The text if it is one query (also DESCRIBE, SUMMARIZE, EXPLAIN of one) that reads no files. Raises InvalidInput."""
    text = require_text(sql, "the query")
    rest = text[prefix.end() :] if (prefix := _EXPLAIN.match(text)) else text
    with connect() as connection:  # nothing is run
        try:
            kinds = [each.type for each in connection.extract_statements(rest)]
        except (duckdb.Error, ValueError) as error:
            raise InvalidInput(f"the query is not valid SQL: {error}") from None
        if not kinds:
            raise InvalidInput("the query is empty; write for example: select count(*) from orders")
        trusted = "allow it with allow_files=True (lakebed query --allow-files) if you trust the text"
        if len(kinds) > 1 or kinds[0] != duckdb.StatementType.SELECT:
            what = f"{len(kinds)} statements" if len(kinds) > 1 else f"a statement ({kinds[0].name})"
            raise InvalidInput(f"the query is {what}, not one SELECT; {trusted}")
        tree = _serialized(connection, rest, "the query", "one SELECT")
    for node in _nodes(tree):
        kind = node.get("type")
        if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERIES:
            raise InvalidInput(f"the query changes rows ({kind.removesuffix('_QUERY_NODE')}); it must be one SELECT")
        if kind == "TABLE_FUNCTION":
            name = str(node["function"].get("function_name")).lower()
            if name not in _READS_NO_FILE:
                raise InvalidInput(f"the query calls {name}, which may read more than the table; {trusted}")
    return text


def require_text(text: object, name: str) -> str:
    """The text if SQL can hold it. Raises InvalidInput."""
    if not isinstance(text, str):
        raise InvalidInput(f"{name} is {text!r}; it must be SQL, as a text")
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidInput(f"{name} is {text!r}; SQL can't have a NUL or half of a surrogate pair in it")
    return text


def tables_in(sql: str) -> set[tuple[str, str]]:
    """The tables that a query names, each with its schema, or "" where it names none; also those that the query defines itself.

    Raises InvalidInput as ``require_query``.
    """
    text = require_query(sql)
    rest = text[prefix.end() :] if (prefix := _EXPLAIN.match(text)) else text
    with connect() as connection:
        tree = _serialized(connection, rest, "the query", "one SELECT")
    return {
        (str(node.get("schema_name", "")), str(node["table_name"]))
        for node in _nodes(tree)
        if "table_name" in node and node.get("type") == "BASE_TABLE"
    }


def connection_for(
    storage: PartStorage, paths: Iterable[str], folders: Sequence[str] = ()
) -> duckdb.DuckDBPyConnection:
    """A connection that reads the table's folder, these of its parts, wherever they are, and these local folders."""
    root = storage.duckdb_folder
    urls = (storage.duckdb_url(path) for path in paths)
    inside = tuple(os.path.join(folder, "") for folder in (root, *folders))
    elsewhere = {os.path.dirname(url) for url in urls if not url.startswith(inside)}
    connection = connect_sealed((root, *folders, *elsewhere))
    storage.attach(connection)
    return connection


@contextmanager
def mistakes(context: str, paths: Iterable[str] = ()) -> Iterator[None]:
    """Turns what is wrong with a user's SQL into InvalidInput that begins with ``context``.

    What is wrong with the files at ``paths``, which it reads, is Corrupt as ever (``naming_unreadable``).
    """
    try:
        with naming_unreadable(paths):
            yield
    except duckdb.PermissionException as error:
        raise InvalidInput(f"{context}: {error}; it may read this table and nothing else") from None
    except (duckdb.ProgrammingError, duckdb.DataError, duckdb.NotSupportedError) as error:
        raise InvalidInput(f"{context}: {error}") from None
    except OSError as error:  # how a mistake in a later row of a stream is raised
        if is_failed_stream(error):
            raise InvalidInput(f"{context}: {error}") from None
        raise


def _serialized(connection: duckdb.DuckDBPyConnection, sql: str, context: str, wanted: str) -> _Node:
    ((answer,),) = connection.execute("select json_serialize_sql($1::varchar)", [sql]).fetchall()
    try:
        tree: _Node = json.loads(answer)
    except RecursionError:
        raise InvalidInput(f"{context} is nested too deeply") from None
    if tree["error"]:
        raise InvalidInput(f"{context} is not {wanted}: {tree['error_message']}")
    return tree


def _nodes(tree: object) -> Iterator[_Node]:
    """All objects of a tree, in no order; without recursion, as users' texts may be deep."""
    left = [tree]
    while left:
        match left.pop():
            case dict() as node:
                yield node
                left.extend(node.values())
            case list() as several:
                left.extend(several)


def _not_of_one_row(node: _Node) -> str | None:
    """What in this node itself is not a value of one row, in words for the user; None if nothing."""
    kind = node.get("class")
    if kind is None:
        return None
    if kind not in _PLAIN or node["type"] == "GROUPING_FUNCTION":
        return _OF_SEVERAL_ROWS.get(kind, f"{node['type']}, which lakebed does not know")
    return _not_scalar(str(node["function_name"]).lower()) if kind == "FUNCTION" else None


@lru_cache(maxsize=4096)
def _not_scalar(name: str) -> str | None:
    if name in _GENERATORS:
        return f"{name!r}, which makes several rows of one"
    if name in _WITH_EFFECTS:
        return f"{name!r}, which does more than give a value"
    if _SYMBOLS.fullmatch(name):
        return None  # an operator
    kinds = _functions().get(name, {})
    if "aggregate" in kinds:
        return f"{name!r}, an aggregate, which makes one value of many rows"
    if "window" in kinds:
        return f"{name!r}, a window function, which looks at other rows"
    if "macro" in kinds:
        bodies = [parsed(body, f"the macro {name}") for body in kinds["macro"]]
        found = next((what for body in bodies for node in _nodes(body) if (what := _not_of_one_row(node))), None)
        return found and f"{name!r}, which is {found}"
    if "scalar" not in kinds:
        return (
            f"{name!r}, which is not a function of one row"
            if kinds
            else f"{name!r}, which is not a function of DuckDB's"
        )
    return None


@lru_cache(maxsize=1)
def _functions() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """The kinds of each of DuckDB's functions, and what its macros stand for. Takes some 50 ms."""
    with connect() as connection:
        rows = connection.execute(
            "select distinct lower(function_name), function_type, macro_definition from duckdb_functions()"
        ).fetchall()
    out: dict[str, dict[str, list[str]]] = {}
    for name, kind, body in rows:
        out.setdefault(name, {}).setdefault(kind, []).append(body)
    return out
