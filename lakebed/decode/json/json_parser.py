"""Parse JSON objects by an Arrow schema with the native library (json_to_arrow.c)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.decode.native.library import (
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
    Lower,
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
    """One row per object; what a row has does not count where the parser was not ``sure`` of the object."""

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

    def without(self, records: np.ndarray[Any, Any]) -> Parsed:
        """Not sure of the records of a mask."""
        return replace(self, sure=self.sure & ~records)


class _Unsupported(TypeError):
    """A type that the parser does not read."""


class JsonParser:
    """Reads records of one schema.

    ``watched`` maps the objects whose unknown members are reported (``()`` is the record itself; objects in them are watched
    too) to the names that are known there though the schema lacks them. The parser is not sure of a record with a member of a
    watched object that differs from a name of the schema by case alone.
    """

    def __init__(
        self,
        schema: pa.Schema,
        nodes: list[Field],
        paths: list[Path],
        skipped: list[Skipped],
        is_read: dict[tuple[int, str], bool],
    ) -> None:
        """``is_read``: by a watched node and the name of a member in lower case, whether it is read, else skipped."""
        lower = [Lower(name=name.encode(), node=node, is_read=read) for (node, name), read in is_read.items()]
        for one, (_, name) in zip(lower, is_read, strict=True):
            one.length = len(name.encode())
        self._schema = schema
        self._paths = paths
        self._kept = nodes, skipped, lower  # which hold the names
        self._fields = (Field * len(nodes))(*nodes)
        self._skipped = (Skipped * len(skipped))(*skipped)
        self._lower = (Lower * len(lower))(*lower)
        self._is_read = is_read

    @staticmethod
    def of(schema: pa.Schema, watched: Mapping[Path, tuple[str, ...]]) -> JsonParser | None:
        """None where there is no library, or it does not read a type of the schema."""
        if library() is None:
            return None
        try:
            nodes, paths = _nodes(schema)
        except _Unsupported:
            return None
        skipped: list[Skipped] = []
        is_read: dict[tuple[int, str], bool] = {}
        for at, (node, path) in enumerate(zip(nodes, paths, strict=True)):
            node.watched = node.kind == STRUCT and any(path[: len(top)] == top for top in watched)
            if not node.watched:
                continue
            for name in watched.get(path, ()):
                encoded = name.encode()
                skipped.append(Skipped(name=encoded, length=len(encoded), node=at))
                is_read[at, name.lower()] = False
            for child in range(node.first_child, node.first_child + node.children):
                is_read[at, paths[child][-1].lower()] = True
        return JsonParser(schema, nodes, paths, skipped, is_read)

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
            lower=ctypes.addressof(self._lower),
            lower_count=len(self._lower),
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
        names = [(one.node, ctypes.string_at(one.name, one.length).decode()) for one in unknown[: task.unknown_count]]
        for bit, (node, name) in enumerate(names):
            if not name.isascii() and (is_read := self._is_read.get((node, name.lower()))) is not None:
                having = (met & np.uint64(1 << bit)) != 0
                sure &= ~(having & is_read)
                met &= ~np.uint64(1 << bit)
        return Parsed(rows, sure, tuple((*self._paths[node], name) for node, name in names), met)


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
