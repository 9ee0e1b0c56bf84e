"""The change rows of an upstream table as records: what a reader yields and ``ChangeRows`` decodes.

A record has its place, what a change row says besides its columns, and ``row``: a struct of the upstream's columns under the
names that they have now, as nullable as they are there. Users' names are within the struct only, so they never meet the others.
"""

from __future__ import annotations

import pyarrow as pa

from lakebed.schema.change_names import ChangeNames

_USUAL = ChangeNames()
TYPE, SEQUENCE, TIME = _USUAL.type, _USUAL.sequence, _USUAL.time
"""What a change row says besides its columns (``parts.change_rows``), under the usual names."""
ROW = "row"
PARTITION = 0
"""A table is a topic, and the offset of its records is their version."""
WHOLE = 1
"""The partition of the whole table: what is read of it at most once is the table at one version, with which a layer begins."""


def records_of(rows: pa.Table, columns: pa.Schema, topic: str) -> pa.Table:
    """Change rows of one version as records. ``columns``: those of the upstream."""
    count, names = len(rows), ChangeNames.beside(columns.names)
    struct = pa.StructArray.from_arrays([rows[field.name].combine_chunks() for field in columns], fields=list(columns))
    return pa.table(
        {
            "topic": pa.repeat(pa.scalar(topic), count),
            "partition": pa.repeat(pa.scalar(PARTITION, pa.int32()), count),
            "offset": rows[names.version],
            TYPE: rows[names.type],
            SEQUENCE: rows[names.sequence] if names.sequence in rows.column_names else pa.nulls(count, pa.int64()),
            TIME: rows[names.time],
            ROW: struct,
        }
    )


def rows_in(records: pa.Table) -> pa.Table:
    """The upstream's columns of records."""
    chunks = [pa.Table.from_struct_array(chunk) for chunk in records[ROW].chunks]
    return pa.concat_tables(chunks) if chunks else columns_in(records).empty_table()


def columns_in(records: pa.Table) -> pa.Schema:
    """The upstream's columns."""
    return pa.schema(list(records.schema.field(ROW).type))
