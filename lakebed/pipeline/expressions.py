"""What can be said about an expression of Spark's SQL without Spark: whether it ends, and which columns it names.

DuckDB's parser reads what both dialects share, once Spark's quotes are translated (`` ` `` quotes a name, ``"`` a text). What it
can't read may still be Spark's, so nothing is said about it but that brackets and quotes are closed.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from lakebed.errors import InvalidInput
from lakebed.settings import suggest
from lakebed.sql.expression import parsed

_TOKEN = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`|[()'\"`]|[^()'\"`]+", re.DOTALL)
_WORDS = {"current_date", "current_timestamp", "localtimestamp", "current_user", "session_user", "user", "_metadata"}
"""Names that are no columns of the changes: functions without brackets, and what Spark adds to rows of files."""


def check_spark_expression(text: str, columns: Collection[str]) -> None:
    """Raises InvalidInput for an expression that is not closed, or that names a column which is not there."""
    depth, out = 0, []
    for token in _TOKEN.findall(text):
        if token in ("'", '"', "`"):
            raise InvalidInput(f"{text!r} is not one SQL expression: the quote {token} is not closed")
        depth += (token == "(") - (token == ")")
        if depth < 0:
            raise InvalidInput(f"{text!r} is not one SQL expression: a bracket closes that was not opened")
        if token.startswith("`") and len(token) > 1:
            token = '"' + token[1:-1].replace("``", "`").replace('"', '""') + '"'
        elif token.startswith('"') and len(token) > 1:
            token = "'" + token[1:-1].replace("'", "''") + "'"
        out.append(token)
    if depth:
        raise InvalidInput(f"{text!r} is not one SQL expression: a bracket is not closed")
    if not text.strip():
        raise InvalidInput("it is empty; write an expression such as op = 'd'")
    try:
        tree = parsed("".join(out), text)
    except InvalidInput:
        return  # Spark may know it
    known = {name.lower() for name in columns} | _WORDS
    for name in _columns_in(tree):
        if name.lower() not in known:
            raise InvalidInput(f"{text!r} names the column {name!r}, which is not there{suggest(name, columns)}")


def _columns_in(tree: object) -> list[str]:
    """The first part of each column name in a syntax tree; a name within a lambda may be its parameter."""
    found: list[str] = []
    left = [tree]
    while left:
        match left.pop():
            case {"class": "LAMBDA"}:
                return []
            case {"class": "COLUMN_REF", "column_names": [str(name), *_]}:
                found.append(name)
            case dict() as node:
                left.extend(node.values())
            case list() as items:
                left.extend(items)
    return found
