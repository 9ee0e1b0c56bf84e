"""Compares the ways of reading Avro on random schemas and records.

    python -m tests.decode.avro_fuzz --cases 10000 --seed 1
    python -m tests.decode.avro_fuzz --cases 10000 --sanitize      the C code with AddressSanitizer and UndefinedBehaviorSanitizer

A case is a random schema, sometimes a reader's, and a batch of records, some of them damaged. It holds if

    1.  the native reader and the one in Python give the same rows and the same errors, to the bit;
    2.  the rows are valid Arrow;
    3.  a reader of some of the fields gives the same in them;
    4.  a record that is not damaged is no error, unless the reader's schema has no room for it;
    5.  what fastavro reads of the records that are not damaged is the same.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import time
from decimal import Context, Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa

from lakebed.decode.json.text import Unreadable
from lakebed.decode.native import build
from lakebed.decode.native import library as native_library
from lakebed.decode.typed.avro_reader import AvroReader
from lakebed.decode.typed.avro_schema import parse_schema
from tests.decode.avro_worlds import World, named_types
from tests.decode.fuzz import plain

RECORDS_PER_CASE = 40


def both(writer: Any, reader: Any) -> tuple[AvroReader, AvroReader]:
    """The native reader and the one in Python. Raises ``Unreadable``."""
    types = parse_schema(json.dumps(writer)), parse_schema(json.dumps(reader))
    return AvroReader(*types), AvroReader(*types, native=False)


def exactly(records: list[bytes]) -> pa.BinaryArray:
    """The records in buffers of just their length, so that a sanitizer sees what reads behind them."""
    offsets = np.cumsum([0, *map(len, records)], dtype=np.int32)
    data = np.frombuffer(b"".join(records), np.uint8).copy()
    return pa.Array.from_buffers(pa.binary(), len(records), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def assert_agree(native: AvroReader, python: AvroReader, records: list[bytes]) -> tuple[pa.RecordBatch, dict[int, str]]:
    values = exactly(records)
    got, wanted = native.read(values), python.read(values)
    got.rows.validate(full=True)
    assert got.errors == wanted.errors
    assert got.rows.schema == wanted.rows.schema and got.rows.num_rows == wanted.rows.num_rows == len(records)
    for name, column, expected in zip(got.rows.schema.names, got.rows.columns, wanted.rows.columns, strict=True):
        assert plain(column) == plain(expected), name
        assert not any(column[row].is_valid for row in got.errors), name
    return got.rows, dict(got.errors)


def run(seed: int) -> None:
    world = World(seed, logical=seed % 3 != 0)
    writer = world.record()
    reader = writer if seed % 3 else world.reader_of(writer)
    named = named_types(writer)
    whole = [world.encoded(writer, named) for _ in range(RECORDS_PER_CASE)]
    try:
        native, python = both(writer, reader)
    except Unreadable as error:
        _check_refusal(writer, reader, whole, error)
        return
    rows, errors = assert_agree(native, python, whole)
    _check_values(writer, reader, whole, rows, errors)
    damaged = [world.damaged(record) if world.rng.random() < 0.7 else record for record in whole]
    assert_agree(native, python, damaged)
    for record in damaged[:10]:
        assert_agree(native, python, [record])
    _check_narrowed(world, native, python, damaged)


def _check_refusal(writer: Any, reader: Any, records: list[bytes], error: Unreadable) -> None:
    """A reader's schema was refused, because fastavro can't read these records by it either."""
    if any(why in str(error) for why in ("of a union would be", "take no bytes", "or map of nulls")):
        return
    assert reader is not writer, error
    if ".element" in str(error) or ".value" in str(error):  # which these records may not have
        return
    for record in records:
        try:
            read = _by_fastavro(writer, reader, record)
        except Exception:
            continue
        raise AssertionError(f"refused, but fastavro reads {read}: {error}")


def _check_narrowed(world: World, native: AvroReader, python: AvroReader, records: list[bytes]) -> None:
    """A reader of some fields gives what the reader of all gives in them, and finds no other errors."""
    names = [name for name in native.schema.names if world.rng.random() < 0.5]
    whole = native.read(exactly(records))
    wanted = dict.fromkeys(["no such field", *names])
    rows, errors = assert_agree(native.narrowed(wanted), python.narrowed(wanted), records)
    assert rows.schema.names == names
    assert errors.keys() <= whole.errors.keys()
    for name in names:
        pairs = zip(plain(rows.column(name)), plain(whole.rows.column(name)), strict=True)
        assert all(some == full for row, (some, full) in enumerate(pairs) if row not in whole.errors), name


def _by_fastavro(writer: Any, reader: Any, record: bytes) -> Any:
    parsed = fastavro.parse_schema(_without_logical_types(writer))
    resolved = None if reader is writer else fastavro.parse_schema(_without_logical_types(reader))
    return fastavro.schemaless_reader(io.BytesIO(record), parsed, resolved)


def _without_logical_types(kind: Any) -> Any:
    """Python's calendar is too short for the dates and times of a fuzzer, so numbers are compared."""
    if isinstance(kind, list):
        return list(map(_without_logical_types, kind))
    if isinstance(kind, dict):
        return {key: _without_logical_types(value) for key, value in kind.items() if key != "logicalType"}
    return kind


def _check_values(writer: Any, reader: Any, records: list[bytes], rows: pa.RecordBatch, errors: dict[int, str]) -> None:
    if reader is writer:
        assert errors == {}
    array = rows.to_struct_array()
    for number, record in enumerate(records):
        try:
            expected = _by_fastavro(writer, reader, record)
        except Exception as error:
            assert number in errors, (error, array[number])
            continue
        assert number not in errors, (errors[number], expected)
        assert _same(array[number], expected), (array[number].as_py(), expected)


def _same(scalar: pa.Scalar, expected: Any) -> bool:
    """Whether a value is what fastavro read: the only value in the fields of a union, and no field for what is always null."""
    kind = scalar.type
    if not scalar.is_valid or expected is None:
        return expected is None and (not scalar.is_valid or pa.types.is_struct(kind))
    if pa.types.is_struct(kind):
        if kind.num_fields and kind.field(0).name.startswith("member_"):
            return any(value.is_valid and _same(value, expected) for value in scalar.values())
        return all(_same(scalar[field.name], expected[field.name]) for field in kind)
    if pa.types.is_map(kind):
        keys, items = scalar.values.field(0).to_pylist(), scalar.values.field(1)
        values = [expected.get(key) for key in keys]
        return len(keys) == len(expected) and all(map(_same, items, values))
    if pa.types.is_list(kind):
        return len(scalar) == len(expected) and all(map(_same, scalar.values, expected))
    return _same_leaf(scalar, expected)


def _same_leaf(scalar: pa.Scalar, expected: Any) -> bool:
    kind = scalar.type
    if isinstance(expected, float) or pa.types.is_floating(kind):
        expected = float(
            np.float32(np.int64(expected)) if isinstance(expected, int) and kind.bit_width == 32 else expected
        )
        code = "<f" if kind.bit_width == 32 else "<d"
        got = scalar.as_py()
        return (math.isnan(got) and math.isnan(expected)) or struct.pack(code, got) == struct.pack(code, expected)
    if pa.types.is_temporal(kind):
        return bool(scalar.value == expected)
    got = scalar.as_py()
    if isinstance(got, Decimal):
        return bool(int(got.scaleb(kind.scale, Context(prec=50))) == int.from_bytes(expected, "big", signed=True))
    if isinstance(got, str) and isinstance(expected, bytes):
        return got in (expected.decode(errors="replace"), str(UUID(bytes=expected)) if len(expected) == 16 else None)
    if isinstance(got, bytes) and isinstance(expected, str):  # fastavro leaves a default as it stands in the schema
        return got in (expected.encode(), expected.encode("latin-1", "replace"))
    return bool(got == expected)


def sanitizer() -> Path | None:
    """The library that comes with GCC; other compilers have it elsewhere."""
    try:
        command = [*build.compiler(), "-print-file-name=libasan.so"]
    except build.NotBuilt:
        return None
    found = Path(subprocess.run(command, capture_output=True, text=True).stdout.strip())
    return found if found.is_absolute() and found.exists() else None


def sanitized(cases: int, seed: int) -> subprocess.CompletedProcess[str]:
    """Runs cases in another process, whose library is compiled with sanitizers that end it at the first finding."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "sanitized.so"
        build.build(library, (*build.FLAGS, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))
        run_it = f"from tests.decode import avro_fuzz; avro_fuzz.run_with({str(library)!r}, {cases}, {seed})"
        environment = {
            **os.environ,
            "LD_PRELOAD": str(sanitizer()),
            "PYTHONMALLOC": "malloc",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        }
        return subprocess.run([sys.executable, "-c", run_it], env=environment, capture_output=True, text=True)


def run_with(library: str, cases: int, seed: int) -> None:
    with patch.object(native_library, "LIBRARY", Path(library)):
        assert native_library.library() is not None
    run_all(cases, seed)


def run_all(cases: int, seed: int) -> None:
    for at in range(seed, seed + cases):
        try:
            run(at)
        except BaseException:
            print(f"python -m tests.decode.avro_fuzz --cases 1 --seed {at}", file=sys.stderr)
            raise
    print(f"{cases:,} cases held, from seed {seed}")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--cases", type=int, default=2000)
    arguments.add_argument("--seed", type=int, default=int(time.time()))
    arguments.add_argument("--sanitize", action="store_true")
    given = arguments.parse_args()
    if given.sanitize:
        ended = sanitized(given.cases, given.seed)
        print(ended.stdout, ended.stderr)
        return ended.returncode
    run_all(given.cases, given.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
