"""Rows for people and for programs.

``table``: a table that fits the terminal (``text_table``), of a metadata table a few columns (``views``). ``--wide``, or a stdout
that is no terminal: nothing is cut. ``json``: one JSON object per line, without loss: whole numbers keep all
digits, decimals are texts, times are ISO 8601 (UTC with a Z), binary is base64, NaN and infinities are texts, a map is
an object if its keys are texts that differ and a list of pairs otherwise.

Neither contains a character that a terminal executes (``logs``); JSON loses nothing by that.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import json
import math
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa

from lakebed.cli.logs import note, shown
from lakebed.cli.text_table import Column, Laid, first_that_fit, lay_out
from lakebed.cli.views import RECORD, View, columns_of
from lakebed.errors import InvalidInput
from lakebed.far_times import python_values

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_TABLE_ROWS_MAX = 1000
_LEAST_TEXT = 12


def print_rows(rows: pa.Table, options: argparse.Namespace, view: View | None = None) -> None:
    """Print a result to stdout as ``--format`` and ``--wide`` say; ``view``: what a table shows of it."""
    out = sys.stdout
    if options.format == "json":
        for line in json_lines(rows):
            out.write(line + "\n")
        out.flush()
        return
    width = None if options.wide else _width_of(out)
    first = rows.slice(0, _TABLE_ROWS_MAX)
    if view is None or (options.wide and not view.downwards):
        laid = lay_out(_columns(first.drop_columns(list(view.only_json) if view else [])), width)
    else:
        columns, below = columns_of(first, view)
        laid = lay_out(columns, width, below, downwards=view.downwards and len(first) == 1)
    _print(laid, out)

    if len(rows) > _TABLE_ROWS_MAX:
        note(f"{len(rows) - _TABLE_ROWS_MAX:,} more rows; --format json prints all")
    elif laid.left_out:
        note(f"no room for {', '.join(laid.left_out)}; --wide prints all columns")
    elif view is None and not laid.is_whole:
        note("values are cut to fit the terminal; --wide prints them whole")


def print_record(result: DataclassInstance | Mapping[str, Any], options: argparse.Namespace) -> None:
    """Print what a command did, its members a line each."""
    members = dict(result) if isinstance(result, Mapping) else asdict(result)
    depths = pa.map_(pa.int32(), pa.float64())
    columns = {
        name: pa.array([list(value.items())], depths) if isinstance(value, dict) else pa.array([value])
        for name, value in members.items()
    }
    print_rows(pa.table(columns), options, RECORD)


def print_first_columns(rows: pa.Table, out: TextIO) -> None:
    """Print the first columns that fit beside each other, and how many others there are."""
    columns = _columns(rows)
    kept = first_that_fit(columns, width := _width_of(out))
    _print(lay_out(kept, width), out)
    if len(kept) < len(columns):
        print(f"({len(kept)} of {len(columns)} columns)", file=out, flush=True)


def _width_of(out: TextIO) -> int | None:
    """The cells of a line of the terminal; None if ``out`` is none."""
    return shutil.get_terminal_size().columns if out.isatty() else None


def _print(laid: Laid, out: TextIO) -> None:
    out.writelines(line + "\n" for line in laid.lines)
    out.flush()


def _columns(rows: pa.Table) -> list[Column]:
    """All columns with their values; texts may be cut."""
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        kind = field.type
        right = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        short = right or pa.types.is_temporal(kind) or pa.types.is_boolean(kind)
        cells = [shown(_text_of(value, kind)) for value in _values(column)]
        columns.append(Column(name=shown(field.name), cells=cells, right=right, least=None if short else _LEAST_TEXT))
    return columns


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


def _text_of(value: Any, kind: pa.DataType) -> str:
    """A value for a person; bytes as text where they are one."""
    if isinstance(value, bytes):
        return bytes_as_text(value)
    plain = jsonable(value, kind)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def bytes_as_text(value: bytes) -> str:
    """UTF-8 as text; of anything else the bytes that are not ASCII as ``\\xff``."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("ascii", "backslashreplace")


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


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Python values; times in UTC, cut to the microseconds that Python has, and as texts beyond its years."""
    kind = column.type
    if pa.types.is_timestamp(kind) and (kind.unit == "ns" or kind.tz not in (None, "UTC")):
        column = column.cast(pa.timestamp("us", "UTC" if kind.tz else None), safe=False)
    return python_values(column)
