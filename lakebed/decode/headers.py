"""The headers of records that say something to a decoder.

A table of records (``RECORD_SCHEMA``) may have a further column, ``HEADERS``. A source adds it where a record has headers. Only
those of ``READ`` are kept: Debezium gives each record some that are the same for all records. But the column says that headers
get here, so a record without one of them was sent without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.parts.quarantine import HEADERS, HEADERS_TYPE

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
"""Of an update that changes a row's key, which Debezium sends as a delete of the old key and a create of the new one."""
VALUE_SCHEMA, KEY_SCHEMA = "__value_schema_id", "__key_schema_id"
"""The schemas of a record's value and key, where these do not begin with it (``typed.wire_format``)."""
READ = (NEW_KEY, OLD_KEY, VALUE_SCHEMA, KEY_SCHEMA)

HEADERS_FIELD = pa.field(HEADERS, HEADERS_TYPE)
Headers = Mapping[str, bytes | None]
"""Those of one record. Of several with one name the last one counts."""
NO_HEADERS: Headers = MappingProxyType({})


def headers_of(records: pa.RecordBatch | pa.Table) -> pa.ListArray | None:
    """The column of headers; None if there is none, or no record has a header."""
    if records.schema.get_field_index(HEADERS) < 0:
        return None
    column = records.column(HEADERS)
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return None if column.null_count == len(column) else column


def mappings_of(records: pa.RecordBatch | pa.Table) -> list[Headers]:
    """The headers of each record."""
    headers = headers_of(records)
    if headers is None:
        return [NO_HEADERS] * records.num_rows
    return [{one["key"]: one["value"] for one in listed or ()} for listed in headers.to_pylist()]


def values_of(headers: pa.ListArray | None, name: str) -> pa.BinaryArray | None:
    """The header of a name of each record, null where a record has none; None if no record has it."""
    if headers is None:
        return None
    listed = headers.flatten()
    named = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(pc.struct_field(listed, "key"), name), False)))
    if not len(named):
        return None
    places = np.full(len(headers), -1)
    places[np.asarray(pc.list_parent_indices(headers))[named]] = named  # of several the last one stays
    return pc.struct_field(listed, "value").take(pa.array(places, mask=places < 0))


def with_headers(records: pa.Table, headers: Sequence[Headers | None]) -> pa.Table:
    """The records with a column of headers if one of them has some. ``headers``: empty for a record that has others alone."""
    if all(one is None for one in headers):
        return records
    listed = [[{"key": name, "value": value} for name, value in one.items()] if one else None for one in headers]
    return records.append_column(HEADERS_FIELD, pa.array(listed, HEADERS_TYPE))


def with_few_headers(
    records: pa.Table, rows: np.ndarray[Any, Any], names: pa.StringArray, values: pa.BinaryArray
) -> pa.Table:
    """The records with a column of headers; ``rows``: the record of each header, in ascending order."""
    lengths = np.bincount(rows, minlength=len(records))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    listed = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    column = pa.ListArray.from_arrays(pa.array(offsets), listed, type=HEADERS_TYPE, mask=pa.array(lengths == 0))
    return records.append_column(HEADERS_FIELD, column)
