"""A type of a database with some values, and the text by which a value in the lake is compared with the database's own."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def plain(value: Any) -> str:
    """A value as both sides write it, if nothing else is said."""
    match value:
        case bool():
            return "true" if value else "false"
        case bytes():
            return value.hex()
        case Decimal():
            return format(value, "f")
        case datetime.datetime():
            moment = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            return str((moment - EPOCH) // datetime.timedelta(microseconds=1))
        case datetime.date():
            return value.isoformat()
        case float():
            return repr(int(value)) if value.is_integer() else repr(value)
        case list():
            return json.dumps([None if each is None else plain(each) for each in value])
    return str(value)


@dataclass(frozen=True)
class Case:
    """A type.

    Attributes:
        type: As the database writes it.
        values: Literals of it in SQL.
        expected: An expression in SQL that gives a value's text; ``{}`` is the column.
        text: The same text from a value in the lake.
        is_unsent: Whether Debezium sends no such column.
        large: A literal that PostgreSQL keeps apart from the row, so Debezium sends it only when it changes.
    """

    type: str
    values: tuple[str, ...]
    expected: str = ""
    text: Callable[[Any], str] = plain
    large: str = ""
    is_unsent: bool = False


def text_of(case: Case, value: Any) -> str:
    """A value of the lake as text; one that is of another form than it should be, as such."""
    try:
        return case.text(value)
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"of another form: {value}"
