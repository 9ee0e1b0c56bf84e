"""Where each row of a part is and where it comes from: its position in the file, and the version that brought it.

The rows with their positions (``numbered``) are a query by the names that users know, for a user's expression is about them. It
is for what writes rows again, or marks them dead, so the file is verified first.

The version of a row (``row_versions``) is its own age, which a part of several versions does not say. A delete often carries
the sequence of the row that it deletes. Where two of equal sequence meet, the later one counts. In a settle the order of the
tail decides that. Two that were both in the base before, of which one was away with a detached partition, are compared by the
versions that brought them.

1. A part of one version says it in the log: its block range is that version.
2. A part of several versions has the hidden column ``VERSION_COLUMN``, if the table has ``sequence_by``. In a table with
   partitions all rows have a value in it, in others only deletes: rows need none there, because nothing can be detached.
3. Parts that were merged before there was the column say no more than their block range.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.log.actions import Part
from lakebed.parts.changes import VERSION_COLUMN, WriteSpec
from lakebed.parts.intact import require_intact, require_intact_pages
from lakebed.quoting import quote
from lakebed.sql import aliases, parquet_of, registered, renamed_sql, scan_of, sql_type
from lakebed.storage.engine import connect, naming_unreadable
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


_Rows = npt.NDArray[np.int64]


def versions_of_sources(parts: Sequence[Part], spec: WriteSpec, keeps_deletes: bool) -> _Rows | None:
    """For a merge of these parts: the version of each, -1 for one of several; None if the output needs no column of them."""
    if not spec.keeps_versions or not (spec.partition_by or keeps_deletes):
        return None
    if len({block for part in parts for block in (part.min_block, part.max_block)}) == 1:
        return None
    return np.array([part.min_block if part.min_block == part.max_block else -1 for part in parts], dtype=np.int64)


def with_versions(rows: pa.Table, versions: _Rows, deletes: npt.NDArray[np.bool_] | None) -> pa.Table:
    """The rows with their versions, where the column does not have them yet; ``deletes``: which rows need one, None for all."""
    filled = pc.coalesce(rows[VERSION_COLUMN], pa.array(versions, mask=versions < 0))
    if deletes is not None:
        filled = pc.if_else(pa.array(deletes), filled, pa.scalar(None, pa.int64()))
    return rows.set_column(rows.schema.get_field_index(VERSION_COLUMN), VERSION_COLUMN, filled)


def row_versions(part: Part, rows: _Rows, storage: PartStorage) -> tuple[_Rows, _Rows]:
    """The oldest and the newest version that may have brought each of these rows; mostly they are the same. Raises Corrupt."""
    low, high = np.full(len(rows), part.min_block), np.full(len(rows), part.max_block)
    if part.min_block == part.max_block or not len(rows):
        return low, high
    require_intact_pages(part, storage, [VERSION_COLUMN], rows.tolist())
    connection = connect()
    storage.attach(connection)
    wanted = pa.table({"at": np.arange(len(rows)), "row": rows})
    scan = parquet_of([storage.duckdb_url(part.path)], {VERSION_COLUMN: ("version", "BIGINT")})
    with naming_unreadable([part.path]), registered(connection, "lakebed_wanted", wanted):
        found = connection.sql(
            f"select w.at, s.version from {scan} s join lakebed_wanted w on s.file_row_number = w.row "
            "where s.version is not null"
        ).fetchnumpy()
    low[found["at"]] = high[found["at"]] = found["version"]
    return low, high
