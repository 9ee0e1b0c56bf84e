"""Arrow tables, schemas and times as JSON."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa

from lakebed.schema.type_names import type_text


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a metadata table as objects. A map becomes an object, a time an ISO text in UTC."""
    columns = [[plain(value, field.type) for value in table[field.name].to_pylist()] for field in table.schema]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def plain(value: Any, kind: pa.DataType) -> Any:
    """A value of an Arrow type as JSON has it."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {str(name): plain(each, kind.item_type) for name, each in value}
    if pa.types.is_list(kind):
        return [plain(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    if pa.types.is_timestamp(kind):
        return time_text(int(value.timestamp() * 1000))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return value
    return str(value)


def columns_of(schema: pa.Schema) -> list[dict[str, Any]]:
    """The columns with types as people write them (``decimal(10,2)``, ``array<string>``)."""
    return [{"name": field.name, "type": type_text(field.type), "nullable": field.nullable} for field in schema]


def time_text(milliseconds: int) -> str:
    """An ISO text, UTC."""
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
