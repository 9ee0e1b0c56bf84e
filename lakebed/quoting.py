"""Names and texts in quotes, as SQL has them. No name and no text can end its own quotes."""

from __future__ import annotations


def quote(name: str) -> str:
    """An identifier of DuckDB, and of standard SQL."""
    return '"' + name.replace('"', '""') + '"'


def quote_for_spark(name: str) -> str:
    """An identifier of Spark's SQL, and of a sort key."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string literal of DuckDB. Not for Spark, which reads a backslash in it as the start of an escape."""
    return "'" + text.replace("'", "''") + "'"
