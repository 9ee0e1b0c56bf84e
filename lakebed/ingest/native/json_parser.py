"""Parse JSON objects by an Arrow schema with the native library (json_to_arrow.c)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.ingest.native.library import (
    BOOLEAN,
    DECIMAL,
    DONE,
    FLOATING,
    INTEGER,
    LIST,
    NO_MEMORY,
    STRUCT,
    TEXT,
    ArrowArray,
    Field,
    Skipped,
    Task,
    Unknown,
    library,
)

UNKNOWN_MAX = 63
FIELDS_MAX = 10_000

Path = tuple[str, ...]
"""The names from the record down to a member; elements of a list have none of their own."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """One row per object; a row is null in every column where the parser was not ``sure`` of the object."""

    rows: pa.RecordBatch
    sure: np.ndarray[Any, Any]
    unknown: tuple[Path, ...] = ()
    """Members of watched objects that the schema does not name; at most ``UNKNOWN_MAX`` of them."""
    met: np.ndarray[Any, Any] | None = None
    """For each record, a bit for each ``unknown`` member that it has, and the highest bit for further ones; None: not known."""

    @property
    def unsure(self) -> int:
        """How many records are left to another way of reading."""
        return len(self.sure) - int(np.count_nonzero(self.sure))

    def without(self, records: np.ndarray[Any, Any], column: str) -> Parsed:
        """Not sure of the records of a mask, whose ``column`` becomes null."""
        at = self.rows.schema.get_field_index(column)
        values = self.rows.column(at)
        values = pc.if_else(pa.array(records), pa.scalar(None, values.type), values)
        rows = self.rows.set_column(at, self.rows.schema.field(at), values)
        return replace(self, rows=rows, sure=self.sure & ~records)


class _Unsupported(TypeError):
    """A type that the parser does not read."""


class JsonParser:
    """Reads records of one schema.

    ``watched`` maps the objects whose unknown members are reported (``()`` is the record itself; objects in them are watched
    too) to the names that are known there though the schema lacks them.
    """

    def __init__(self, schema: pa.Schema, nodes: list[Field], paths: list[Path], skipped: list[Skipped]) -> None:
        self._schema = schema
        self._paths = paths
        self._kept = nodes, skipped  # which hold the names
        self._fields = (Field * len(nodes))(*nodes)
        self._skipped = (Skipped * len(skipped))(*skipped)

    @staticmethod
    def of(schema: pa.Schema, watched: Mapping[Path, tuple[str, ...]]) -> JsonParser | None:
        """None where there is no library, or it does not read a type of the schema."""
        if library() is None:
            return None
        try:
            nodes, paths = _nodes(schema)
        except _Unsupported:
            return None
        skipped = []
        for at, (node, path) in enumerate(zip(nodes, paths, strict=True)):
            node.watched = node.kind == STRUCT and any(path[: len(top)] == top for top in watched)
            for name in watched.get(path, ()) if node.kind == STRUCT else ():
                encoded = name.encode()
                skipped.append(Skipped(name=encoded, length=len(encoded), node=at))
        return JsonParser(schema, nodes, paths, skipped)

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """``values`` has no nulls. Raises ``MemoryError``, and ``OverflowError`` where a column would be too large for Arrow."""
        found = library()
        assert found is not None and pa.types.is_binary(values.type) and values.null_count == 0
        _, offsets, data = values.buffers()
        sure, met = np.zeros(len(values), bool), np.zeros(len(values), np.uint64)
        unknown, out = (Unknown * UNKNOWN_MAX)(), ArrowArray()
        task = Task(
            fields=ctypes.addressof(self._fields),
            field_count=len(self._fields),
            skipped=ctypes.addressof(self._skipped),
            skipped_count=len(self._skipped),
            offsets=offsets.address + 4 * values.offset,
            data=data.address if data else None,
            rows=len(values),
            sure=sure.ctypes.data,
            met=met.ctypes.data,
            unknown=ctypes.addressof(unknown),
        )
        result = found.lakebed_read_json(ctypes.byref(task), ctypes.byref(out))
        if result == NO_MEMORY:
            raise MemoryError
        if result != DONE:
            raise OverflowError("a column of more than 2 GiB")
        rows = pa.RecordBatch._import_from_c(ctypes.addressof(out), self._schema)
        names = [
            (*self._paths[one.node], ctypes.string_at(one.name, one.length).decode())
            for one in unknown[: task.unknown_count]
        ]
        return Parsed(rows, sure, tuple(names), met)


def _nodes(schema: pa.Schema) -> tuple[list[Field], list[Path]]:
    """The schema as ``struct field``, where the children of a node follow each other; and the path of each node."""
    nodes: list[Field] = [Field(kind=STRUCT, name=b"")]
    paths: list[Path] = [()]
    waiting: list[tuple[int, list[pa.Field]]] = [(0, list(schema))]
    while waiting:
        at, children = waiting.pop(0)
        nodes[at].first_child, nodes[at].children = len(nodes), len(children)
        for child in children:
            if pa.types.is_nested(child.type):
                waiting.append((len(nodes), [child.type.field(i) for i in range(child.type.num_fields)]))
            paths.append(paths[at] if nodes[at].kind == LIST else (*paths[at], child.name))
            nodes.append(_node(child))
    if len(nodes) > FIELDS_MAX:
        raise _Unsupported(f"{len(nodes)} fields")
    return nodes, paths


def _node(described: pa.Field) -> Field:
    kind = described.type
    name = described.name.encode()
    node = Field(name=name, name_length=len(name))
    if pa.types.is_signed_integer(kind):
        node.kind, node.width = INTEGER, kind.bit_width // 8
    elif pa.types.is_float32(kind) or pa.types.is_float64(kind):
        node.kind, node.width = FLOATING, kind.bit_width // 8
    elif pa.types.is_boolean(kind):
        node.kind = BOOLEAN
    elif pa.types.is_string(kind):
        node.kind = TEXT
    elif (pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind)) and kind.precision <= 38 and kind.scale >= 0:
        node.kind, node.width, node.precision, node.scale = DECIMAL, kind.bit_width // 8, kind.precision, kind.scale
    elif pa.types.is_list(kind):
        node.kind = LIST
    elif pa.types.is_struct(kind):
        node.kind = STRUCT
    else:
        raise _Unsupported(str(kind))
    return node
