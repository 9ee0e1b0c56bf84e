"""Users' SQL: taken apart by DuckDB's parser before any of it runs, and run where it reaches nothing but the table.

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
from lakebed.quoting import quote
from lakebed.settings import suggest
from lakebed.sql.pieces import registered
from lakebed.storage.engine import connect, connect_sealed
from lakebed.storage.file_errors import is_failed_stream, naming_unreadable
from lakebed.storage.part_storage import PartStorage

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
