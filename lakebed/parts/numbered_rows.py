"""The rows of a part with their positions, as a query by the columns' own names: a user's expression is about them."""

from __future__ import annotations

import pyarrow as pa

from lakebed.manifest.actions import Part
from lakebed.parts.sql import aliases, scan_of, sql_type
from lakebed.quoting import quote
from lakebed.storage.part_storage import PartStorage

ROW = "_lakebed_row"


def numbered(part: Part, schema: pa.Schema, storage: PartStorage) -> str:
    """A query for all rows of a part, dead ones too, each with its position as ``ROW``."""
    kinds = {field.name: sql_type(field.type) for field in schema}
    outputs = [f"{alias} as {quote(name)}" for name, alias in aliases(kinds).items()]
    scan = scan_of([storage.duckdb_url(part.path)], kinds, part.partition_values, f"file_row_number as {ROW}")
    return f"select {ROW}, {', '.join(outputs)} from ({scan})"
