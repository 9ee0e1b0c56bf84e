"""The record format ``protobuf``: messages of a ``.proto`` schema to Arrow batches.

    1.  The schema is compiled, and ``protobuf_fields`` makes columns of the message's fields.
    2.  Native code reads the records into raw columns (``native/protobuf_to_arrow.c``). A record that it is not sure of is read
        with google.protobuf (``_MessageReader``), which decides whether it is an error. Without native code that one reads
        all. So what a record means is decided in one place.
    3.  ``protobuf_values`` makes natural values of the raw ones.

Invariant
    P1  Every record that native code is sure of, google.protobuf reads to the same values.

Reading with google.protobuf is stricter than the library in two ways, for a value must not get lost. A field of the schema with
another wire type is an error, and so is a number that a closed enum does not have: the library takes both for unknown fields. And
few bytes can stand for very many values (an empty message in a list has two bytes), so a record may have no more than a bound.

**How a schema is compiled.** The schema, the schemas that it imports, and those that registries leave out (``confluent/…``) are
written to a temporary folder. ``google/protobuf`` and ``google/type`` come with the packages grpcio-tools and
googleapis-common-protos. ``protoc`` of grpcio-tools compiles them in a process of its own: a schema that takes very long is given
up. The descriptors go into a pool of their own, so that two schemas may both have a message of one name.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import functools
import importlib.util
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import grpc_tools
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from lakebed.decode.decoder import Message, ReadRecords, RecordReader
from lakebed.decode.json.connect_types import PLAIN, LogicalType
from lakebed.decode.json.text import Unreadable
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
from lakebed.decode.typed.protobuf_fields import Encoding, Meaning, ProtobufField, fields_of_message
from lakebed.decode.typed.protobuf_values import faults_by_row, natural
from lakebed.errors import Retry

SCHEMA_BYTES_MAX = 8 * 2**20
"""Of a schema with its references."""
_COMPILE_SECONDS_MAX = 60
"""Of CPU time, so that a busy machine does not matter."""
_COMPILE_BYTES_MAX = 4 * 2**30
"""Of address space."""
_FILES_KEPT_MAX = 32
_MAIN = "record.lakebed.proto"
_REASON_CHARACTERS_MAX = 500
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*", re.ASCII)

_OF_NAMES = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EINVAL, errno.EILSEQ)
COMPILER = f"""
import contextlib, resource, sys
for limit, most in ((resource.RLIMIT_CPU, {_COMPILE_SECONDS_MAX}), (resource.RLIMIT_AS, {_COMPILE_BYTES_MAX})):
    hard = resource.getrlimit(limit)[1]
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limits
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
from grpc_tools import protoc
sys.exit(protoc.main(sys.argv))
"""

_LEFT_OUT = {
    "confluent/meta.proto": """
        syntax = "proto3";
        package confluent;
        import "google/protobuf/descriptor.proto";
        message Meta {
          string doc = 1;
          map<string, string> params = 2;
          repeated string tags = 3;
          repeated Rule rules = 4;
        }
        message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
        """,
    "confluent/type/decimal.proto": """
        syntax = "proto3";
        package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
        """,
}
"""Schemas that Confluent's serializers import without naming them as references."""


def compiled(schema_text: str, references: Mapping[str, str], message: Message = None) -> Any:
    """The descriptor of the message. Raises ``Unreadable``, and Retry if this machine can't compile it now."""
    main = _file(schema_text, tuple(sorted(references.items())))
    if isinstance(main, str):
        raise Unreadable(main)
    return _message(main, message)


@functools.lru_cache(_FILES_KEPT_MAX)
def _file(schema_text: str, references: tuple[tuple[str, str], ...]) -> Any:
    """The descriptor of the schema's file, or why there is none; kept, for records choose among its messages."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(_protoc(schema_text, dict(references)))
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        return pool.FindFileByName(_MAIN)
    except Unreadable as error:
        return str(error)
    except (TypeError, KeyError) as error:  # protoc has accepted it, so this is a limit of the library
        return f"the Protobuf schema can't be used: {_short(str(error))}"


def _protoc(schema_text: str, references: Mapping[str, str]) -> bytes:
    """The serialized descriptors of the schema and all that it imports, in the order of need. Raises ``Unreadable`` and Retry."""
    texts = {**_LEFT_OUT, **references, _MAIN: schema_text}
    if sum(len(text) for text in texts.values()) > SCHEMA_BYTES_MAX:
        raise Unreadable(f"the Protobuf schema has more than {SCHEMA_BYTES_MAX} bytes with its references")
    try:
        with TemporaryDirectory(prefix="lakebed-protoc-") as folder:
            return _run(Path(folder), _write(Path(folder), texts))
    except OSError as error:  # of this machine: no space, no process
        raise Retry(f"a Protobuf schema can't be compiled: {error}") from error


def _write(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Writes the schemas. Returns the options of protoc that say where they are."""
    options = [f"-I{path}" for path in (folder / "in", *_installed())]
    serialized = descriptor_pb2.FileDescriptorSet()
    for name, text in texts.items():
        if (file := _deserialized(text)) is not None:
            serialized.file.add().MergeFrom(file)
            serialized.file[-1].name = name
            continue
        path = folder / "in" / _checked_name(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            if error.errno not in _OF_NAMES:
                raise
            raise Unreadable(
                f"the Protobuf schema has a reference whose name is not allowed: {_short(name)}"
            ) from error
    if serialized.file:
        (folder / "serialized").write_bytes(serialized.SerializeToString())
        options.append(f"--descriptor_set_in={folder / 'serialized'}")
    return options


def _run(folder: Path, options: list[str]) -> bytes:
    found = folder / "out"
    command = [sys.executable, "-c", COMPILER, *options, "--include_imports", f"--descriptor_set_out={found}", _MAIN]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    if ran.returncode == 0 and found.exists():
        return found.read_bytes()
    if ran.returncode == -signal.SIGXCPU:
        raise Unreadable(f"the Protobuf schema takes more than {_COMPILE_SECONDS_MAX} seconds to compile")
    if ran.returncode < 0 and ran.returncode not in (-signal.SIGABRT, -signal.SIGSEGV):
        raise Retry(f"compiling a Protobuf schema was ended by signal {-ran.returncode}")
    complaint = ran.stderr.decode(errors="replace").replace(f"{folder}/in/", "")
    raise Unreadable(f"the Protobuf schema is not valid: {_complaint(complaint)}")


def _deserialized(text: str) -> Any:
    """The file that a text is base64 of, or None. Some clients register schemas so; no ``.proto`` text looks like base64."""
    if not text or not _BASE64.fullmatch(text):
        return None
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text))
    except (ValueError, DecodeError):
        return None
    return file


def _checked_name(name: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name or "\\" in name:
        raise Unreadable(f"the Protobuf schema has a reference whose name is not allowed: {_short(name)}")
    return name


def _installed() -> Iterator[Path]:
    """The folders of the schemas that come with packages."""
    yield Path(grpc_tools.__file__).parent / "_proto"
    spec = importlib.util.find_spec("google.type")  # a package without a file of its own
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(folder).parents[1].resolve()


def _complaint(text: str) -> str:
    """What protoc says, without its warnings."""
    lines = [line.replace(_MAIN, "line", 1) for line in text.splitlines() if line and " warning: " not in line.lower()]
    lines = [line for line in lines if not line.startswith(("WARNING:", "W0", "I0", "E0"))]
    return _short("; ".join(lines)) or "protoc says nothing"


def _short(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _REASON_CHARACTERS_MAX else text[: _REASON_CHARACTERS_MAX - 3] + "..."


def _message(main: Any, wanted: Message) -> Any:
    top = list(main.message_types_by_name.values())
    if not top:
        raise Unreadable("the Protobuf schema has no message")
    if wanted is None:
        return top[0]
    if isinstance(wanted, str):
        for found in _all_messages(top):
            if found.full_name == wanted or found.full_name == f"{main.package}.{wanted}":
                return found
        names = ", ".join(found.full_name for found in top[:20])
        raise Unreadable(f"the Protobuf schema has no message {wanted!r}; its messages are {_short(names)}")
    found, inner = None, top
    for index in wanted:
        if not 0 <= index < len(inner):
            raise Unreadable(f"the Protobuf schema has no message at {list(wanted)}, which a record names")
        found = inner[index]
        inner = list(found.nested_types)
    if found is None:
        return top[0]
    return found


def _all_messages(top: list[Any]) -> Iterator[Any]:
    for found in top:
        yield found
        yield from _all_messages(list(found.nested_types))


VALUES_MIN, VALUES_A_BYTE = 20_000, 32
"""As in protobuf_to_arrow.c."""
TOO_MANY = (
    f"it has more than {VALUES_MIN} values and {VALUES_A_BYTE} for each of its bytes;"
    " fields that messages in lists lack are counted too"
)


class _MessageReader:
    """Reads messages of one type into the raw values of ``fields``."""

    def __init__(self, descriptor: Any, fields: tuple[ProtobufField, ...]) -> None:
        self._name = descriptor.full_name
        self._class = message_factory.GetMessageClass(descriptor)
        self._fields = fields
        self._nodes = {id(field): field.nodes for field in fields}
        self.raw = pa.struct([pa.field(field.name, field.raw) for field in fields])

    def read(self, encoded: bytes) -> Mapping[str, Any]:
        """Raises ``Unreadable``."""
        try:
            message = self._class.FromString(encoded)
        except DecodeError as error:
            raise Unreadable(f"not a Protobuf message {self._name}: {error}") from error
        if missing := self._class.FindInitializationErrors(message):
            raise Unreadable(f"not a Protobuf message {self._name}: it lacks {', '.join(missing)[:200]}")
        reading = _Reading(VALUES_MIN + VALUES_A_BYTE * len(encoded))
        try:
            return reading.message(message, self._fields)
        except UnicodeDecodeError as error:
            raise Unreadable(f"not a Protobuf message {self._name}: a string is not UTF-8") from error


class _Reading:
    """One record. ``left``: how many values it may still have."""

    def __init__(self, left: int) -> None:
        self._left = left
        self._spend(1)

    def message(self, message: Any, fields: tuple[ProtobufField, ...]) -> dict[str, Any]:
        self._refuse_strays(message)
        return {field.name: self._field(message, field) for field in fields}

    def _field(self, message: Any, field: ProtobufField) -> Any:
        if field.is_list:
            self._spend(1)
            return [self._value(value, field.children[0]) for value in getattr(message, field.name)]
        if field.is_map:
            self._spend(1)
            (entry,) = field.children
            key, value = entry.children
            pairs = getattr(message, field.name)
            self._spend(len(pairs))
            return [(self._value(one, key), self._value(pairs[one], value)) for one in sorted(pairs)]
        if field.descriptor.has_presence and not type(message).HasField(message, field.name):
            self._spend(field.nodes)
            return None
        return self._value(getattr(message, field.name), field)

    def _value(self, value: Any, field: ProtobufField) -> Any:
        self._spend(1)
        if field.meaning is Meaning.JSON:
            return type(value).SerializeToString(value, deterministic=True)
        if field.descriptor.message_type is not None and pa.types.is_struct(field.raw):
            return self.message(value, field.children)
        if isinstance(value, bytes) and pa.types.is_string(field.raw):  # a string of proto2, which may be anything
            raise Unreadable(f"{field.name} is not UTF-8")
        return value

    def _spend(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise Unreadable(TOO_MANY)

    @staticmethod
    def _refuse_strays(message: Any) -> None:
        known = type(message).DESCRIPTOR.fields_by_number
        for stray in UnknownFieldSet(message):
            field = known.get(stray.field_number)
            if field is None:
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                raise Unreadable(f"{field.name} (field {stray.field_number}) has an entry of unknown values")
            if field.enum_type is not None and field.enum_type.is_closed:
                raise Unreadable(
                    f"{field.name} is {stray.data!r}, which is no value of the enum {field.enum_type.name}"[:200]
                )
            if field is not None:
                raise Unreadable(
                    f"{field.name} (field {stray.field_number}) has wire type {stray.wire_type}, not its own"
                )


_REFUSED = 2
"""Besides DONE and UNSURE, what is said of a record: it has too many values for its bytes."""


class _ProtobufParser:
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


@dataclass(frozen=True, slots=True)
class ProtobufFormat:
    """Protobuf, of any syntax that protoc knows: proto2, proto3, editions."""

    def compile(self, schema_text: str, references: Mapping[str, str], message: Message = None) -> RecordReader:
        """Raises ``Unreadable``."""
        return ProtobufReader(compiled(schema_text, references, message))


class ProtobufReader:
    """Reads records that are messages of one type. Raises ``Unreadable`` if no columns can hold the type."""

    def __init__(self, descriptor: Any) -> None:
        self._fields = fields_of_message(descriptor)
        self._one_by_one = _MessageReader(descriptor, self._fields)
        self.parser = _ProtobufParser(self._fields) if library() is not None else None
        """None: all records are read one by one."""
        self.schema = pa.schema([field.arrow() for field in self._fields])
        self._rows = pa.schema([field.with_nullable(True) for field in self.schema])
        self.logical_types: Mapping[str, LogicalType] = {
            field.name: field.logical_type for field in self._fields if field.logical_type != PLAIN
        }

    def read(self, values: pa.BinaryArray) -> ReadRecords:
        """Raises ``MemoryError``, and ``OverflowError`` where a column would be too large for Arrow."""
        errors: dict[int, str] = {}
        raw = self._raw(values, errors)
        columns = [natural(field, raw.column(at)) for at, field in enumerate(self._fields)]
        for row, reason in faults_by_row(columns):
            errors.setdefault(row, reason)
        arrays = [column.values for column in columns]
        if errors:
            arrays = _without(arrays, errors, len(values))
        return ReadRecords(pa.RecordBatch.from_arrays(arrays, schema=self._rows), errors)

    def _raw(self, values: pa.BinaryArray, errors: dict[int, str]) -> pa.RecordBatch:
        """The raw columns; a record in ``errors`` is a row of nulls."""
        if self.parser is None:
            return self._read_one_by_one(values, range(len(values)), errors)
        rows, outcome = self.parser.parse(values)
        errors.update(dict.fromkeys(np.flatnonzero(outcome == _REFUSED).tolist(), TOO_MANY))
        unsure = np.flatnonzero((outcome != DONE) & (outcome != _REFUSED))
        if not len(unsure):
            return rows
        others = self._read_one_by_one(values, unsure.tolist(), errors)
        order = np.arange(len(values))
        order[unsure] = len(values) + np.arange(len(unsure))
        return pa.Table.from_batches([rows, others]).take(pa.array(order)).combine_chunks().to_batches()[0]

    def _read_one_by_one(self, values: pa.BinaryArray, rows: Any, errors: dict[int, str]) -> pa.RecordBatch:
        read: list[Mapping[str, Any] | None] = []
        for row in rows:
            try:
                read.append(self._one_by_one.read(values[row].as_py()))
            except Unreadable as error:
                read.append(None)
                errors[row] = str(error)
        members = pa.array(read, self._one_by_one.raw).flatten()
        return pa.RecordBatch.from_arrays(members, names=[field.name for field in self._fields])


def _without(arrays: list[pa.Array], errors: Mapping[int, str], rows: int) -> list[pa.Array]:
    """The arrays, null in the rows with errors."""
    mask = np.zeros(rows, bool)
    mask[list(errors)] = True
    order = pa.array(np.arange(rows), mask=mask)
    return [array.take(order) for array in arrays]
