"""The wire format of schema registries: a byte 0, the schema's id in 4 bytes, then the record.

The ids of many records are read at once, and records of one schema are one group. What is not of this form is named.

Confluent's serializers can also say the schema in a header of the record (``__value_schema_id``, ``__key_schema_id``): a byte 1
and the schema's GUID in 16 bytes, or a byte 0 and its id. Then the record has no header of its own. In Protobuf the message
indexes follow the GUID or id in both places.

**Message indexes** of Protobuf say which message of the schema a record is. Behind the id of the schema stand the number of
indexes and the indexes, as zigzag varints: the place of the message in the file, then of the message in it, and so on. A single
0 stands for the first message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.json.text import Unreadable

_INDEXES_MAX = 64
FIRST = (0,)
_WHOLE = 1 << 30
"""More bytes than a record has; without an end, ``binary_slice`` fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SplitMessages:
    """``payloads`` are the messages' own bytes, one a record; empty where the record is in ``errors``."""

    payloads: pa.BinaryArray
    groups: Mapping[tuple[int, ...], np.ndarray[Any, Any]]
    """The numbers of the records of each message, ascending."""
    errors: Mapping[int, str] = field(default_factory=dict)


def split_messages(values: pa.BinaryArray) -> _SplitMessages:
    """``values``: the records' bytes behind the id; none is null."""
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + count + 1]
    data = np.frombuffer(values.buffers()[2] or b"\0", np.uint8)
    filled = offsets[1:] > offsets[:-1]
    plain = filled & (data[np.minimum(offsets[:-1], len(data) - 1)] == 0)
    if plain.all():
        return _SplitMessages(payloads=pc.binary_slice(values, 1, _WHOLE), groups={FIRST: np.arange(count)})
    headers = np.ones(count, np.int32)
    rows: dict[tuple[int, ...], list[int]] = {FIRST: np.flatnonzero(plain).tolist()}
    errors: dict[int, str] = {}
    for row in np.flatnonzero(~plain).tolist():
        encoded = values[row].as_py()
        try:
            indexes, headers[row] = _indexes(encoded)
            rows.setdefault(indexes, []).append(row)
        except Unreadable as error:
            errors[row], headers[row] = str(error), len(encoded)
    groups = {indexes: np.array(sorted(numbers), np.int64) for indexes, numbers in rows.items() if numbers}
    payloads = [value[header:] for value, header in zip(values.to_pylist(), headers.tolist(), strict=True)]
    return _SplitMessages(payloads=pa.array(payloads, pa.binary()), groups=groups, errors=errors)


def message_in(encoded: bytes) -> tuple[int, ...]:
    """The message that a header says, from the bytes behind the schema. Raises ``Unreadable``."""
    indexes, end = _indexes(encoded)
    if end < len(encoded):
        raise Unreadable("not a Protobuf record of a registry: its header is longer than its message indexes")
    return indexes


def _indexes(encoded: bytes) -> tuple[tuple[int, ...], int]:
    """The indexes at the beginning, and how many bytes they take. Raises ``Unreadable``."""
    count, at = _varint(encoded, 0)
    if count == 0:
        return FIRST, at
    if not 0 < count <= _INDEXES_MAX:
        raise Unreadable(f"not a Protobuf record of a registry: {count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _varint(encoded, at)
        if index < 0:
            raise Unreadable(f"not a Protobuf record of a registry: message index {index}")
        indexes.append(index)
    return tuple(indexes), at


def _varint(encoded: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at == len(encoded):
            break
        byte = encoded[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at
    raise Unreadable("not a Protobuf record of a registry: its message indexes are cut off")


HEADER_BYTES = 5
MAGIC = 0
_GUID_BYTES = 17
_GUID_MAGIC = 1
"""More bytes than a record has."""

SchemaName = int | str
"""The id of a schema, or its GUID."""
Rows = np.ndarray[Any, Any]
"""Numbers of records, in order."""


@dataclass(frozen=True, slots=True)
class _Framed:
    """``groups``: the records of each schema id; ``payload``: all records without headers; ``errors``: why others have no id."""

    groups: Mapping[int, Rows]
    payload: pa.BinaryArray
    errors: Mapping[int, str]


def framed(values: pa.BinaryArray) -> _Framed:
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
    return _Framed(_grouped(ids, rows), pc.binary_slice(values, HEADER_BYTES, _WHOLE), errors)


def named_in(header: bytes) -> tuple[SchemaName, bytes]:
    """The schema that a header names, and the bytes behind its name. Raises ``Unreadable``."""
    if header[:1] == bytes([_GUID_MAGIC]) and len(header) >= _GUID_BYTES:
        return str(UUID(bytes=header[1:_GUID_BYTES])), header[_GUID_BYTES:]
    if header[:1] == bytes([MAGIC]) and len(header) >= HEADER_BYTES:
        return int.from_bytes(header[1:HEADER_BYTES]), header[HEADER_BYTES:]
    raise Unreadable(
        f"its header with the id of its schema can't be read: {header[:_GUID_BYTES].hex() or 'it is empty'}"
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
