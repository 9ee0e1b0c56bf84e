"""Compile Protobuf schemas (``.proto`` texts) to descriptors, and find the message that records are of.

1.  The schema, the schemas that it imports, and those that registries leave out (``confluent/…``) are written to a temporary
    folder. ``google/protobuf`` and ``google/type`` come with the packages grpcio-tools and googleapis-common-protos.
2.  ``protoc`` of grpcio-tools compiles them, in a process of its own: a schema that takes very long is given up.
3.  The descriptors go into a pool of their own, so that two schemas may both have a message of one name.
"""

from __future__ import annotations

import base64
import errno
import functools
import importlib.util
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from lakebed.decode.json.text import Unreadable
from lakebed.decode.record_format import Message
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
