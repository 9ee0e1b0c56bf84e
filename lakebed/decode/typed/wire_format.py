"""The wire format of schema registries: a byte 0, the schema's id in 4 bytes, then the record.

The ids of many records are read at once, and records of one schema are one group. What is not of this form is named.

Confluent's serializers can also say the schema in a header of the record (``__value_schema_id``, ``__key_schema_id``): a byte 1
and the schema's GUID in 16 bytes, or a byte 0 and its id. Then the record has no header of its own. In Protobuf the message
indexes follow the GUID or id in both places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.json.text import Unreadable

HEADER_BYTES = 5
MAGIC = 0
GUID_BYTES = 17
GUID_MAGIC = 1
_WHOLE = 1 << 30
"""More bytes than a record has."""

SchemaName = int | str
"""The id of a schema, or its GUID."""
Rows = np.ndarray[Any, Any]
"""Numbers of records, in order."""


@dataclass(frozen=True, slots=True)
class Framed:
    """``groups``: the records of each schema id; ``payload``: all records without headers; ``errors``: why others have no id."""

    groups: Mapping[int, Rows]
    payload: pa.BinaryArray
    errors: Mapping[int, str]


def framed(values: pa.BinaryArray) -> Framed:
    """``values`` has no nulls."""
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + count + 1].astype(np.int64)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    good = lengths >= HEADER_BYTES
    starts = starts if good.all() else starts[good]
    good[good] = data[starts] == MAGIC
    rows = np.flatnonzero(good)
    starts = offsets[:-1][rows]
    ids = np.zeros(len(rows), np.int64)
    for place in range(1, HEADER_BYTES):
        ids = ids << 8 | data[starts + place]
    errors = {int(row): _not_framed(values[int(row)].as_py()) for row in np.flatnonzero(~good)}
    return Framed(_grouped(ids, rows), pc.binary_slice(values, HEADER_BYTES, _WHOLE), errors)


def named_in(header: bytes) -> tuple[SchemaName, bytes]:
    """The schema that a header names, and the bytes behind its name. Raises ``Unreadable``."""
    if header[:1] == bytes([GUID_MAGIC]) and len(header) >= GUID_BYTES:
        return str(UUID(bytes=header[1:GUID_BYTES])), header[GUID_BYTES:]
    if header[:1] == bytes([MAGIC]) and len(header) >= HEADER_BYTES:
        return int.from_bytes(header[1:HEADER_BYTES]), header[HEADER_BYTES:]
    raise Unreadable(
        f"its header with the id of its schema can't be read: {header[:GUID_BYTES].hex() or 'it is empty'}"
    )


def _grouped(ids: Rows, rows: Rows) -> dict[int, Rows]:
    if not len(ids):
        return {}
    if (ids == ids[0]).all():
        return {int(ids[0]): rows}
    order = np.argsort(ids, kind="stable")
    ids, rows = ids[order], rows[order]
    firsts = np.flatnonzero(np.diff(ids)) + 1
    return {int(ids[first]): some for first, some in zip([0, *firsts], np.split(rows, firsts), strict=True)}


def _not_framed(value: bytes) -> str:
    if len(value) < HEADER_BYTES:
        return f"it has {len(value)} bytes, too few for the header of a schema registry (a byte 0 and an id of 4 bytes)"
    return (
        f"it begins with the byte {value[0]}, not with the header of a schema registry (a byte 0 and an id of 4 bytes)"
    )
