"""Read Protobuf messages into Arrow columns with the native library (protobuf_to_arrow.c)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.decode.native.library import (
    BOOLEAN,
    BYTES,
    DONE,
    FLOATING,
    INTEGER,
    LIST,
    MAP,
    NO_MEMORY,
    STRUCT,
    TEXT,
    ArrowArray,
    Field,
    ProtobufMember,
    ProtobufTask,
    library,
)
from lakebed.decode.protobuf.fields import Encoding, ProtobufField

REFUSED = 2
"""Besides DONE and UNSURE, what is said of a record: it has too many values for its bytes."""


class ProtobufParser:
    """Reads records of one message type into the raw columns of its fields."""

    def __init__(self, fields: tuple[ProtobufField, ...]) -> None:
        self._schema = pa.schema([pa.field(field.name, field.raw) for field in fields])
        nodes = [Field(kind=STRUCT, name=b"")]
        members = [ProtobufMember(encoding=Encoding.NESTED, oneof=-1, nodes=1)]
        by_number = [0]
        waiting: list[tuple[int, Sequence[ProtobufField]]] = [(0, fields)]
        while waiting:
            at, children = waiting.pop(0)
            first = nodes[at].first_child = len(nodes)
            nodes[at].children = len(children)
            by_number += sorted(range(first, first + len(children)), key=lambda node: children[node - first].number)
            oneofs: dict[str, int] = {}
            for child in children:
                if child.children:
                    waiting.append((len(nodes), child.children))
                members.append(_member(child, oneofs, len(nodes)))
                nodes.append(_node(child))
        self._fields = (Field * len(nodes))(*nodes)
        self._members = (ProtobufMember * len(members))(*members)
        self._by_number = (ctypes.c_int32 * len(nodes))(*by_number)

    def parse(self, values: pa.BinaryArray) -> tuple[pa.RecordBatch, np.ndarray[Any, Any]]:
        """Raw columns, and DONE, UNSURE or REFUSED for each record; where it is not DONE, the row is null. No value is null.

        Raises ``MemoryError``, and ``OverflowError`` where a column would be too large for Arrow.
        """
        found = library()
        assert found is not None and pa.types.is_binary(values.type) and values.null_count == 0
        _, offsets, data = values.buffers()
        outcome, out = np.zeros(len(values), np.uint8), ArrowArray()
        task = ProtobufTask(
            fields=ctypes.addressof(self._fields),
            members=ctypes.addressof(self._members),
            by_number=ctypes.addressof(self._by_number),
            offsets=offsets.address + 4 * values.offset,
            data=data.address if data else None,
            outcome=outcome.ctypes.data,
            rows=len(values),
            field_count=len(self._fields),
        )
        result = found.lakebed_read_protobuf(ctypes.byref(task), ctypes.byref(out))
        if result == NO_MEMORY:
            raise MemoryError
        if result != DONE:
            raise OverflowError("a column of more than 2 GiB")
        return pa.RecordBatch._import_from_c(ctypes.addressof(out), self._schema), outcome


def _member(field: ProtobufField, oneofs: dict[str, int], node: int) -> ProtobufMember:
    group = field.descriptor.containing_oneof
    oneof = -1 if group is None else oneofs.setdefault(group.name, node)
    return ProtobufMember(
        number=field.number, encoding=field.encoding, absence=field.absence, oneof=oneof, nodes=field.nodes
    )


def _node(field: ProtobufField) -> Field:
    raw = field.raw
    if field.is_list:
        return Field(kind=LIST)
    if field.is_map:
        return Field(kind=MAP)
    if pa.types.is_struct(raw):
        return Field(kind=STRUCT)
    if pa.types.is_integer(raw):
        return Field(kind=INTEGER, width=raw.bit_width // 8)
    if pa.types.is_floating(raw):
        return Field(kind=FLOATING, width=raw.bit_width // 8)
    if pa.types.is_boolean(raw):
        return Field(kind=BOOLEAN, width=1)
    return Field(kind=TEXT if pa.types.is_string(raw) else BYTES)
