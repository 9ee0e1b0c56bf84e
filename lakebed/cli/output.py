"""Rows for people and for programs.

``table``: a table as wide as its values. ``json``: one JSON object per line, without loss: whole numbers keep all
digits, decimals are texts, times are ISO 8601 (UTC with a Z), binary is base64, NaN and infinities are texts, a map is
an object if its keys are texts that differ and a list of pairs otherwise.

Neither contains a character that a terminal executes (``escapes``); JSON loses nothing by that.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal, TextIO

import pyarrow as pa

from lakebed.cli.escapes import shown
from lakebed.errors import InvalidInput

Format = Literal["table", "json"]
TABLE_ROWS_MAX = 1000
_WIDTH_WHEN_PIPED = 100_000


def print_rows(rows: pa.Table, form: Format, out: TextIO | None = None) -> None:
    """Print a result to stdout."""
    out = out or sys.stdout
    if form == "json":
        for line in json_lines(rows):
            out.write(line + "\n")
        out.flush()
        return
    print_table(rows, out)


def json_lines(rows: pa.Table) -> Iterator[str]:
    """Each row as a line of JSON. Raises InvalidInput if two columns have the same name."""
    twice = [name for name, times in Counter(rows.schema.names).items() if times > 1]
    if twice:
        raise InvalidInput(
            f"two columns are named {twice[0]!r}, which JSON can't hold; rename one in the SQL: … as other"
        )
    kinds = [field.type for field in rows.schema]
    for batch in rows.to_batches(max_chunksize=10_000):
        columns = [_values(column) for column in batch.columns]
        for values in zip(*columns, strict=True):
            row = {
                name: jsonable(value, kind) for name, value, kind in zip(rows.schema.names, values, kinds, strict=True)
            }
            yield shown(json.dumps(row, ensure_ascii=False, allow_nan=False))


def print_table(rows: pa.Table, out: TextIO, one_line: bool = False) -> None:
    """Print rows as a table; more than ``TABLE_ROWS_MAX`` of them are cut off, and a line on stderr says so.

    ``one_line``: on a narrow terminal values are cut short rather than folded.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    first = rows.slice(0, TABLE_ROWS_MAX)
    overflow: Literal["ellipsis", "fold"] = "ellipsis" if one_line else "fold"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for field in rows.schema:
        right = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        table.add_column(
            Text(shown(field.name)), justify="right" if right else "left", overflow=overflow, no_wrap=one_line
        )
    kinds = [field.type for field in rows.schema]
    columns = [_values(column) for column in first.columns]
    for values in zip(*columns, strict=True):
        table.add_row(*(Text(shown(text_of(value, kind))) for value, kind in zip(values, kinds, strict=True)))
    if out.isatty():
        Console(file=out).print(table)
    else:
        console = Console(file=io.StringIO(), width=_WIDTH_WHEN_PIPED)
        with console.capture() as captured:
            console.print(table)
        out.writelines(line.rstrip() + "\n" for line in captured.get().splitlines())
    out.flush()
    if len(rows) > TABLE_ROWS_MAX:
        from lakebed.cli.logs import note

        note(f"{len(rows) - TABLE_ROWS_MAX:,} more rows; --format json prints all")


def text_of(value: Any, kind: pa.DataType) -> str:
    """A value for a person."""
    plain = jsonable(value, kind)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def jsonable(value: Any, kind: pa.DataType) -> Any:
    """A value as JSON can represent it without loss."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: jsonable(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        pairs = [(jsonable(key, kind.key_type), jsonable(item, kind.item_type)) for key, item in value]
        named = dict(pairs) if pa.types.is_string(kind.key_type) else {}
        return named if len(named) == len(pairs) else [list(pair) for pair in pairs]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [jsonable(item, kind.value_type) for item in value]
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        case bytes():
            return base64.b64encode(value).decode()
        case datetime.datetime():
            text = value.replace(tzinfo=None).isoformat()
            return text + "Z" if value.tzinfo is not None else text
        case datetime.date() | datetime.time():
            return value.isoformat()
        case Decimal() | datetime.timedelta():
            return format(value, "f") if isinstance(value, Decimal) else str(value)
        case bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def bytes_text(value: int) -> str:
    """A number of bytes for a person."""
    size = float(value)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Python values; times in UTC, and cut to the microseconds that Python has."""
    kind = column.type
    if pa.types.is_timestamp(kind) and (kind.unit == "ns" or kind.tz not in (None, "UTC")):
        column = column.cast(pa.timestamp("us", "UTC" if kind.tz else None), safe=False)
    return list(column.to_pylist())
