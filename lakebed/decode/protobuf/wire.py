"""The message indexes with which Confluent's wire format says which message of a schema a record is.

Behind the id of the schema stand the number of indexes and the indexes, as zigzag varints: the place of the message in the file,
then of the message in it, and so on. A single 0 stands for the first message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.json.text import Unreadable

INDEXES_MAX = 64
FIRST = (0,)
_WHOLE = 1 << 30
"""More bytes than a record has; without an end, ``binary_slice`` fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMessages:
    """``payloads`` are the messages' own bytes, one a record; empty where the record is in ``errors``."""

    payloads: pa.BinaryArray
    groups: Mapping[tuple[int, ...], np.ndarray[Any, Any]]
    """The numbers of the records of each message, ascending."""
    errors: Mapping[int, str] = field(default_factory=dict)


def split_messages(values: pa.BinaryArray) -> SplitMessages:
    """``values``: the records' bytes behind the id; none is null."""
    count = len(values)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + count + 1]
    data = np.frombuffer(values.buffers()[2] or b"\0", np.uint8)
    filled = offsets[1:] > offsets[:-1]
    plain = filled & (data[np.minimum(offsets[:-1], len(data) - 1)] == 0)
    if plain.all():
        return SplitMessages(payloads=pc.binary_slice(values, 1, _WHOLE), groups={FIRST: np.arange(count)})
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
    return SplitMessages(payloads=pa.array(payloads, pa.binary()), groups=groups, errors=errors)


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
    if not 0 < count <= INDEXES_MAX:
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
