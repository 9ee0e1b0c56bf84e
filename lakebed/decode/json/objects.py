"""Parse a slice of records, each a JSON object, into Arrow columns of given types.

The native parser does it where it is built. A record that it is not sure of becomes a row of nulls, and the caller reads that
record one by one. Else Arrow's JSON parser does it. That one raises for the whole slice if it is not sure of one record.

Neither is sure of a record with a member that differs by case alone from one that is looked for. Arrow's parser skips it like any
other; so the texts are searched for such names, and the documents of a slice that may have one are looked at.

Both refuse a value that does not fit its type (a fraction in an integer, a number out of range, a lone surrogate, a repeated
member), so no value changes unnoticed.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from lakebed.decode.json.columns import ColumnReader, Missed
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
_FIELDS_MAX = 10_000

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
    if len(nodes) > _FIELDS_MAX:
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


_TOP_LEVEL_NULL = r"\}\s*null"
_ESCAPED_NAME = r'[{,]\s*"[^"\\]*(\\.[^"\\]*)+"\s*:'
"""A name with an escape, which may be any."""
_FOREIGN_NAME = r'"[^"\\]*[^\x00-\x7f"\\][^"\\]*"\s*:'
"""A name with a letter that is not ASCII's, without escapes."""
_PATTERN_MAX = 16_000  # characters of a pattern that RE2 searches quickly


class ObjectParser:
    """Parses the records of one plan. ``watched`` as in ``JsonParser``; Arrow's parser does not tell unknown members."""

    def __init__(
        self, schema: pa.Schema, readers: Mapping[str, ColumnReader], watched: Mapping[Path, tuple[str, ...]]
    ) -> None:
        self._schema = schema
        self._refused = refusal_of(readers)
        self._native = JsonParser.of(schema, watched)
        self._watched = [(path, _at(pa.struct(list(schema)), path), names) for path, names in watched.items()]
        self._patterns = _in_other_case(name for _, kind, _ in self._watched for name in _names_in(kind))

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """``values`` has no nulls. Raises one of ``MISSES``."""
        if self._native is not None:
            return self._native.parse(values)
        rows = parse_objects(values, self._schema, self._refused)
        return Parsed(rows, ~self._in_other_case(values))

    def _in_other_case(self, values: pa.BinaryArray) -> np.ndarray[Any, Any]:
        """Which records have a member that differs by case alone from one that is read."""
        found = np.zeros(len(values), bool)
        if not self._watched or not self._may_be_in_other_case(values.cast(pa.string())):
            return found
        for at, text in enumerate(values.to_pylist()):
            try:
                document = orjson.loads(text)
            except ValueError:
                found[at] = True  # Python's parser decides
                continue
            found[at] = any(_differs(_member(document, path), kind, names) for path, kind, names in self._watched)
        return found

    def _may_be_in_other_case(self, texts: pa.StringArray) -> bool:
        patterns = list(self._patterns)
        if pc.any(pc.match_substring(texts, "\\")).as_py():
            patterns.append(_ESCAPED_NAME)
        if not pc.all(pc.string_is_ascii(texts)).as_py():
            patterns.append(_FOREIGN_NAME)
        return any(pc.any(pc.match_substring_regex(texts, pattern)).as_py() for pattern in patterns)


def _at(kind: pa.DataType, path: Path) -> pa.DataType:
    """The type of the object at a path; a struct without fields where the schema has none."""
    for name in path:
        at = kind.get_field_index(name)
        kind = kind.field(at).type if at >= 0 else pa.struct([])
    return kind


def _names_in(kind: pa.DataType) -> Iterator[str]:
    for at in range(kind.num_fields if pa.types.is_nested(kind) else 0):
        if pa.types.is_struct(kind):
            yield kind.field(at).name
        yield from _names_in(kind.field(at).type)


def _in_other_case(names: Iterable[str]) -> list[str]:
    """Patterns of members that differ from these names by the case of an ASCII letter."""
    patterns = [""]
    for name in sorted({*names}):
        pattern, any_case = "", ""
        for letter in reversed(name):
            exact, other = re.escape(letter), re.escape(letter.swapcase()) if letter.isascii() else ""
            forms = [other + any_case] if other not in ("", exact) else []
            forms += [exact + pattern] if pattern else []
            pattern = f"(?:{'|'.join(forms)})" if forms else ""
            any_case = f"(?:{exact}|{other})" + any_case if other not in ("", exact) else exact + any_case
        if not pattern:
            continue
        if len(patterns[-1]) + len(pattern) > _PATTERN_MAX and patterns[-1]:
            patterns.append("")
        patterns[-1] += f"|{pattern}" if patterns[-1] else pattern
    return [f'"(?:{each})"\\s*:' for each in patterns if each]


def _member(document: Any, path: Path) -> Any:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _differs(value: Any, kind: pa.DataType, also: Collection[str] = ()) -> bool:
    """Whether an object has a member, at any depth, that differs by case alone from one of its type. ``also``: known members."""
    if pa.types.is_list(kind) and isinstance(value, list):
        return any(_differs(item, kind.value_type) for item in value)
    if not pa.types.is_struct(kind) or not isinstance(value, dict):
        return False
    types = {field.name: field.type for field in kind}
    lower = {name.lower() for name in types}
    return any(
        _differs(member, types[name]) if name in types else name not in also and name.lower() in lower
        for name, member in value.items()
    )


def refusal_of(readers: Mapping[str, ColumnReader]) -> str:
    """A pattern of texts that ``parse_objects`` must not read.

    Arrow's parser crashes on a bare null between two objects. It reads a decimal from a number and from a text alike, but
    a text of digits may be base64 of another number. So the pattern finds texts by the name of their member, and it also
    refuses names with escapes, which it could not recognize.
    """
    pattern = _TOP_LEVEL_NULL
    if names := [re.escape(name) for name, reader in readers.items() if reader.numbers_only]:
        pattern += rf'|"({"|".join(names)})"\s*:\s*"|{_ESCAPED_NAME}'
    return pattern


def parse_objects(values: pa.Array, schema: pa.Schema, refused: str = _TOP_LEVEL_NULL) -> pa.RecordBatch:
    """One row per JSON object, by Arrow's parser; members that are not in the schema are skipped. Raises one of ``MISSES``.

    1.  Every value must begin and end with a brace.
    2.  The values are joined by newlines, which are illegal inside a JSON string, so no value can extend into the next.
        The text must be UTF-8, and nothing in it may match ``refused``.
    3.  If there are as many rows as values, each value was exactly one object.
    """
    if not _braced(values):
        raise Missed("not one JSON object per record")
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
    text = pc.binary_join(whole, b"\n").cast(pa.string())  # checks that it is UTF-8
    if pc.match_substring_regex(text, refused)[0].as_py():
        raise Missed("text that Arrow's parser would read wrongly")
    joined = text.buffers()[2]
    table = pj.read_json(
        pa.BufferReader(joined),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(values):
        raise Missed("not one JSON object per record")
    return pa.RecordBatch.from_arrays([_whole(column) for column in table.columns], schema=table.schema)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _braced(values: pa.Array) -> bool:
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    if (np.diff(offsets) < 2).any():
        return False
    data = np.frombuffer(values.buffers()[2], np.uint8)
    return bool((data[offsets[:-1]] == ord("{")).all() and (data[offsets[1:] - 1] == ord("}")).all())
