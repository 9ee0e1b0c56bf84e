"""Protobuf from writers that err or mean harm: records are errors one by one, schemas are refused with a reason."""

from __future__ import annotations

import base64
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, message_factory

from lakebed.decode.json.text import Unreadable
from lakebed.decode.native import build
from lakebed.decode.typed import protobuf_reader as protobuf_schema
from lakebed.decode.typed.protobuf_reader import TOO_MANY, ProtobufFormat, ProtobufReader, compiled
from lakebed.decode.typed.registry import FIRST, split_messages
from lakebed.errors import Retry
from tests.decode.protobuf_fuzz import PROTO2, PROTO3, check, exact, fuzz, reader_of

SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1")


@pytest.fixture(scope="module")
def order() -> ProtobufReader:
    build.build_if_needed()
    return reader_of(PROTO3)


# Records -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [PROTO3, PROTO2], ids=["proto3", "proto2"])
def test_damaged_records_and_all_beginnings_of_one_are_read_alike_both_ways(schema: str) -> None:
    build.build_if_needed()
    sure, errors = fuzz(schema, 500, seed=7)
    assert 100 < sure < 430 and 100 < errors < 400  # neither side of the line is empty


@pytest.mark.parametrize(
    "record",
    [
        b"\x72\xff\xff\xff\xff\x07",  # a text of 2 GiB
        b"\x72\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a text of 16 EiB
        b"\xf2\x01\xff\xff\xff\xff\x0f\x01",  # a packed list
        b"\xa2\x02\xff\xff\xff\xff\x0f",  # a message
        b"\x0b" * 10_000,  # groups in groups, which nobody closes
        b"\x0b" * 10_000 + b"\x0c" * 10_000,
        b"\xf3\x3e" * 10_000 + b"\xf4\x3e" * 10_000,
        b"\xf4\x3e",  # a group that nobody opened
        b"\xf3\x3e\xfc\x3e",  # one that another one closes
        b"\x00\x00",  # field 0
        b"\x0e\x00",  # wire type 6
        b"\x08" + b"\x80" * 20,  # a number without an end
        b"\xff" * 1000,
        b"\x00" * 1000,
    ],
)
def test_damage_is_an_error(order: ProtobufReader, record: bytes) -> None:
    assert check(order, [record, b"", record])[1] == 2


def test_a_struct_that_is_nested_ten_thousand_deep_is_an_error(order: ProtobufReader) -> None:
    value = b""
    for _ in range(10_000):  # a Value that is a list of one Value
        value = b"\x0a" + _length(len(value)) + value
        value = b"\x32" + _length(len(value)) + value
    assert check(order, [b"\xba\x03" + _length(len(value)) + value])[1] == 1


def _length(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.slow
def test_few_bytes_can_not_become_very_many_values() -> None:
    fields = " ".join(f"int32 f{number} = {number};" for number in range(1, 1001))
    schema = (
        f'syntax = "proto3"; message M {{ repeated Row rows = 1; optional int32 one = 2; message Row {{ {fields} }} }}'
    )
    reader = reader_of(schema)
    assert reader.parser is not None
    small, large = b"\x0a\x00" * 5, b"\x0a\x00" * 500_000
    tags = [b"\x10\x01\x10\x01", b"\x08\x01", b""]  # what native code is not sure of, before and behind
    records = [small, large, *(tag + large for tag in tags), large + b"\x08", small]
    before, rusage = pa.total_allocated_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read = reader.read(exact(records))
    assert sorted(read.errors) == [1, 2, 3, 4, 5] and set(read.errors.values()) == {TOO_MANY}
    assert pa.total_allocated_bytes() - before < 50_000_000
    # The columns would take 2 GB, and the messages of google.protobuf more.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rusage < 200_000  # kilobytes
    assert check(reader, [small, b"\x0a\x00" * 30]) == (1, 1)


def test_a_list_of_very_many_small_values_is_read(order: ProtobufReader) -> None:
    packed = b"\x01" * 1_000_000
    rows = order.read(exact([b"\xf2\x01" + _length(len(packed)) + packed])).rows
    assert len(rows.column("numbers")[0]) == 1_000_000


@pytest.mark.slow
def test_no_damage_makes_native_code_read_or_write_beyond_its_memory(tmp_path: Path) -> None:
    """Runs in a process of its own, with an address sanitizer; each record also alone in a buffer of just its length."""
    library = tmp_path / "sanitized.so"
    try:
        build.build(library, (*build.FLAGS, *SANITIZE))
        runtime = _runtime(build.compiler())
    except build.NotBuilt as error:
        pytest.skip(f"no C compiler with sanitizers: {str(error)[-200:]}")
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:alloc_dealloc_mismatch=0",
    }
    command = [
        sys.executable,
        "-m",
        "tests.decode.protobuf_fuzz",
        "--records",
        "200",
        "--seed",
        "3",
        "--library",
        str(library),
    ]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.count("native code was sure of") == 2


def _runtime(compiler: list[str]) -> str:
    """The sanitizer's library, which must be loaded first. Raises ``NotBuilt``."""
    for name in ("libasan.so", "libclang_rt.asan-x86_64.so"):
        found = subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        if Path(found).is_absolute() and Path(found).exists():
            return found
    raise build.NotBuilt("no library of an address sanitizer")


# Message indexes -----------------------------------------------------------------------------------------------------


def test_message_indexes_choose_the_message_of_each_record() -> None:
    split = split_messages(pa.array([b"\x00abc", b"\x02\x00x", b"\x04\x02\x04yz", b"\x00", b"\x02\x02q"], pa.binary()))
    assert {key: rows.tolist() for key, rows in split.groups.items()} == {FIRST: [0, 1, 3], (1, 2): [2], (1,): [4]}
    assert split.payloads.to_pylist() == [b"abc", b"x", b"yz", b"", b"q"]
    assert not split.errors
    every = split_messages(pa.array([b"skipped", b"\x00abc", b"\x00"], pa.binary())[1:])
    assert every.groups.keys() == {FIRST} and every.payloads.to_pylist() == [b"abc", b""]


@pytest.mark.parametrize(
    "record", [b"", b"\x80", b"\x02", b"\x01", b"\x02\x01", b"\xff\xff\xff\xff\x0f", b"\x80" * 9, b"\x04\x02"]
)
def test_bytes_that_are_no_message_indexes_are_errors(record: bytes) -> None:
    split = split_messages(pa.array([record, b"\x00abc"], pa.binary()))
    assert list(split.errors) == [0] and "not a Protobuf record of a registry" in split.errors[0]
    assert split.groups[FIRST].tolist() == [1] and split.payloads.to_pylist() == [b"", b"abc"]


# Schemas -------------------------------------------------------------------------------------------------------------

TWO = """
    syntax = "proto3";
    package a.b;
    message First { int32 x = 1; message Inner { int32 y = 1; message Innermost { int32 z = 1; } } }
    message Second { string s = 1; }
    """


@pytest.mark.parametrize(
    "message, column",
    [
        (None, "x"),
        ((), "x"),
        ((0,), "x"),
        ((0, 0), "y"),
        ((0, 0, 0), "z"),
        ((1,), "s"),
        ("Second", "s"),
        ("a.b.First.Inner", "y"),
    ],
)
def test_a_message_is_chosen_by_its_place_or_name(message: str | tuple[int, ...] | None, column: str) -> None:
    assert ProtobufFormat().compile(TWO, {}, message).schema.names == [column]


def test_references_are_found_by_the_names_they_are_imported_by() -> None:
    text = 'syntax = "proto3"; import "shop/item.proto"; message M { shop.Item item = 1; }'
    item = 'syntax = "proto3"; package shop; import "shop/base.proto"; message Item { Base base = 1; }'
    base = 'syntax = "proto3"; package shop; message Base { string name = 1; }'
    schema = ProtobufFormat().compile(text, {"shop/base.proto": base, "shop/item.proto": item}).schema
    assert str(schema.field("item").type) == "struct<base: struct<name: string not null>>"


def test_a_schema_may_be_base64_of_a_serialized_file() -> None:
    """So Confluent's client for Python registers it, and some registries return it."""
    text = 'syntax = "proto3"; import "item.proto"; message M { shop.Item item = 1; }'
    item = (
        'syntax = "proto3"; package shop; import "google/type/date.proto"; message Item { google.type.Date day = 1; }'
    )
    file = descriptor_pb2.FileDescriptorProto()
    compiled(text, {"item.proto": item}).file.CopyToProto(file)
    main = base64.b64encode(file.SerializeToString()).decode()
    file.Clear()
    compiled(item, {}).file.CopyToProto(file)
    reference = base64.b64encode(file.SerializeToString()).decode()
    for references in ({"item.proto": item}, {"item.proto": reference}):
        schema = ProtobufFormat().compile(main, references).schema
        assert str(schema.field("item").type) == "struct<day: date32[day]>"
    assert ProtobufFormat().compile(text, {"item.proto": reference}).schema.names == ["item"]


def test_records_of_confluents_serializer_are_read() -> None:
    client = SchemaRegistryClient.new_client({"url": "mock://here"})
    message = compiled(TWO, {}, (0, 0))
    serializer = ProtobufSerializer(message_factory.GetMessageClass(message), client)
    record = serializer(message_factory.GetMessageClass(message)(y=5), SerializationContext("t", MessageField.VALUE))
    split = split_messages(pa.array([record[5:]], pa.binary()))
    (place,) = split.groups
    schema = client.get_schema(int.from_bytes(record[1:5], "big"))
    reader = ProtobufFormat().compile(schema.schema_str, {}, place)
    assert reader.read(split.payloads).rows.to_pylist() == [{"y": 5}]


def messages(*fields: str) -> str:
    return 'syntax = "proto3"; ' + " ".join(f"message M{at} {{ {field} }}" for at, field in enumerate(fields))


@pytest.mark.parametrize(
    "text, references, message, reason",
    [
        ("message {", {}, None, "the Protobuf schema is not valid: line:1:9: Expected message name"),
        ("", {}, None, "has no message"),
        ('syntax = "proto3"; import "gone.proto"; message M {}', {}, None, "gone.proto"),
        (messages(""), {}, None, "M0 has no fields"),
        (messages("M0 again = 1;"), {}, None, "'again' can't become a column: its message M0 contains itself"),
        (messages("M1 a = 1;", "repeated M2 b = 1;", "map<string, M1> c = 1;"), {}, None, "'a.b.c.value' can't become a column"),
        (messages(*(f"M{at + 1} f = 1;" for at in range(70)), "int32 x = 1;"), {}, None, "nested more than 64 deep"),
        (messages(*(" ".join(f"M{at + 1} f{n} = {n};" for n in range(1, 11)) for at in range(6)), "int32 x = 1;"), {}, None,
         "more than 10000 fields"),
        (TWO, {}, "Third", "no message 'Third'; its messages are a.b.First, a.b.Second"),
        (TWO, {}, (5,), "no message at [5]"),
        (TWO, {}, (0, 0, 0, 0), "no message at [0, 0, 0, 0]"),
        (TWO, {"../x.proto": ""}, None, "whose name is not allowed: ../x.proto"),
        (TWO, {"/tmp/x.proto": ""}, None, "whose name is not allowed"),
        (TWO, {"": ""}, None, "whose name is not allowed"),
        (TWO, {"a": "", "a/b": ""}, None, "whose name is not allowed"),
        (TWO, {"x" * 5000: ""}, None, "whose name is not allowed"),
        (TWO + "/" * protobuf_schema.SCHEMA_BYTES_MAX, {}, None, "more than 8388608 bytes"),
        ("\udc80\x00", {}, None, "not valid"),
    ],
)  # fmt: skip
def test_a_schema_that_can_not_be_mapped_is_refused_with_the_reason(
    text: str, references: dict[str, str], message: str | tuple[int, ...] | None, reason: str
) -> None:
    with pytest.raises(Unreadable) as raised:
        ProtobufFormat().compile(text, references, message)
    assert reason in str(raised.value) and len(str(raised.value)) < 700


def test_a_schema_of_a_megabyte_is_compiled() -> None:
    fields = "\n".join(
        f"  optional int32 a_field_with_a_long_name_{number:06d} = {number}; // {'x' * 40}" for number in range(1, 9001)
    )
    schema = ProtobufFormat().compile(f'syntax = "proto2"; message M {{\n{fields}\n}}', {}).schema
    assert len(schema) == 9000


@pytest.mark.parametrize(
    "seconds, bytes_max, reason", [(1, 2**32, "more than 60 seconds"), (60, 2**20, "is not valid")]
)
def test_a_schema_that_takes_too_much_is_refused(
    seconds: int, bytes_max: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = protobuf_schema.COMPILER.replace("RLIMIT_CPU, 60", f"RLIMIT_CPU, {seconds}")
    limited = limited.replace(f"RLIMIT_AS, {4 * 2**30}", f"RLIMIT_AS, {bytes_max}")
    busy = limited.replace(
        "from grpc_tools", "while seconds == 1: pass\nfrom grpc_tools".replace("seconds", str(seconds))
    )
    monkeypatch.setattr(protobuf_schema, "COMPILER", busy)
    with pytest.raises(Unreadable, match=reason):
        compiled(f'syntax = "proto3"; message Busy{seconds} {{ int32 x = 1; }}', {})


def test_a_machine_that_can_not_compile_now_is_no_fault_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'syntax = "proto3"; message Unlucky { int32 x = 1; }'
    with monkeypatch.context() as patched:
        patched.setattr(protobuf_schema, "COMPILER", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        with pytest.raises(Retry, match="signal 9"):
            compiled(text, {})
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.tempdir", "/proc/none")
        with pytest.raises(Retry, match="can't be compiled"):
            compiled(text, {})
    assert ProtobufFormat().compile(text, {}).schema.names == ["x"]


def test_a_schema_may_not_replace_what_the_compiler_needs() -> None:
    """A reference may have any name; it is a text in a folder of its own, and nothing that is run."""
    references = {"grpc_tools/__init__.py": "raise SystemExit(3)", "sitecustomize.py": "raise SystemExit(3)"}
    assert ProtobufFormat().compile(TWO, references).schema.names == ["x"]


def test_a_message_that_only_looks_like_a_well_known_one_is_a_struct() -> None:
    other = 'syntax = "proto3"; package google.protobuf; message Timestamp { string text = 1; }'
    text = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp at = 1; }'
    )
    schema = ProtobufFormat().compile(text, {"google/protobuf/timestamp.proto": other}).schema
    assert str(schema.field("at").type) == "struct<text: string not null>"
