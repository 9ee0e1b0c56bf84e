"""The rows of a part with their positions, as a query by the names that users know: a user's expression is about them.

It is for what writes rows again, or marks them dead, so the file is verified first.
"""

from __future__ import annotations

import pyarrow as pa

from lakebed.log.actions import Part
from lakebed.parts.intact import require_intact
from lakebed.quoting import quote
from lakebed.sql.pieces import aliases, renamed_sql, scan_of, sql_type
from lakebed.storage.part_storage import PartStorage

ROW = "_lakebed_row"


def numbered(part: Part, schema: pa.Schema, storage: PartStorage, logical: pa.Schema | None = None) -> str:
    """A query for all rows of a part, dead ones too, each with its position as ``ROW``.

    ``schema`` has the stored names, ``logical`` those that the result gets (default: the same). Raises Corrupt.
    """
    require_intact([part], storage, objects=True, of_others=True)
    kinds = {field.name: sql_type(field.type) for field in schema}
    outputs = [
        f"{renamed_sql(alias, stored.type, named.type)} as {quote(named.name)}"
        for alias, stored, named in zip(aliases(kinds).values(), schema, logical or schema, strict=True)
    ]
    scan = scan_of([storage.duckdb_url(part.path)], kinds, part.partition_values, f"file_row_number as {ROW}")
    return f"select {ROW}, {', '.join(outputs)} from ({scan})"
