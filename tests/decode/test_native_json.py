"""The native JSON parser: what it is sure of is what the exact reading says, whatever the bytes are."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.json.connect_types import PLAIN
from lakebed.decode.json.objects import JsonParser, Parsed
from lakebed.decode.json.text import Unreadable, parse
from lakebed.decode.json.values import JsonOptions, convert
from lakebed.decode.json_rows import JsonRows
from lakebed.decode.native import build
from lakebed.decode.native.library import library
from tests.decode.fuzz import assert_same, only_one_by_one, plain
from tests.decode.records import event, records
from tests.worlds import examples

TYPES = {
    "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(), "f32": pa.float32(), "f64": pa.float64(),
    "b": pa.bool_(), "s": pa.string(), "d": pa.decimal128(12, 2), "d38": pa.decimal128(38, 0), "d256": pa.decimal256(38, 10),
    "l": pa.list_(pa.int16()), "ll": pa.list_(pa.list_(pa.string())),
    "o": pa.struct([("x", pa.int64()), ("y", pa.string()), ("z", pa.list_(pa.struct([("w", pa.float64())])))]),
    "näme": pa.string(),
}  # fmt: skip
SCHEMA = pa.schema(list(TYPES.items()))
TEXTS = ["", "a", 'q"\\\n', "é€😀", "x" * 30]
OPTIONS = JsonOptions(decimal_text="string")
TOKENS = [
    *rb"""
    null nul true false NaN Infinity -Infinity - +1 0 -0 -0.0 00 01 1. .5 1e5 1E+400 1e-400 1e400 5e-324 2.2250738585072011e-308
    1.7976931348623159e308 9007199254740993 127 -128 128 -129 32768 2147483648 9223372036854775807 9223372036854775808
    -9223372036854775808 -9223372036854775809 18446744073709551616 123456789012345678901234567890 12.50 12.500 12.505
    -9999999999.99 99999999999.99 0.1 0.30000000000000004 16777217 3.4028236e38 [ ] { } [] {} [[]] [["a"],null,[]]
    {"x":1,"x":2} {"w":1} , : " "" "\" "\u0000" "\ud800" "\udc00\ud800" "\ud83d\ude00" "\u00e9\/\b\f\n\r\t\\" "\x" "\u12g4"
    "i64":1 "\u006964":1
    """.split(),
    *[
        b"",
        b" ",
        b"\n",
        b"\t",
        b"\x00",
        b"\x1f",
        b"\x7f",
        b"\xef\xbb\xbf",
        b"\xff",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xe2\x82",
    ],
    *[b"\xf4\x90\x80\x80", "é€😀".encode(), b"9" * 38, b"1" + b"0" * 38, b"9" * 400, b"0." + b"3" * 200],
    *[b'"' + b"x" * 40 + b'"', b"[" * 70 + b"]" * 70, b'"more":' + b"[" * 63 + b"]" * 63],
]


def parsed(*documents: bytes, watched: Any = None) -> Parsed:
    parser = JsonParser.of(SCHEMA, watched or {})
    assert parser is not None
    return parser.parse(pa.array(documents, pa.binary()))


def exact(document: bytes) -> list[Any]:
    """The columns' values. Raises ``Unreadable`` or ``TypeError``."""
    row = parse(document)
    if not isinstance(row, dict):
        raise Unreadable("no object")
    values = [convert(row.get(name), kind, PLAIN, OPTIONS) for name, kind in TYPES.items()]
    return [plain(pa.array([value], kind))[0] for value, kind in zip(values, TYPES.values(), strict=True)]


def check(documents: list[bytes]) -> int:
    """Returns how many of the documents the parser was sure of."""
    got = parsed(*documents)
    got.rows.validate(full=True)
    columns = [plain(column) for column in got.rows.columns]
    for number, document in enumerate(documents):
        values = [column[number] for column in columns]
        wanted = exact(document) if got.sure[number] else [None] * len(columns)
        assert values == wanted, document
    return int(got.sure.sum())


def likely(rng: random.Random) -> dict[str, Any]:
    floats = [0.1, -2.5e-7, 1e22, 1e23, rng.random(), rng.uniform(-1e300, 1e300)]
    whole = rng.choice([0, 1, -1, rng.randrange(-(2**7), 2**7)])
    row: dict[str, Any] = {
        "i8": whole, "i16": whole * 200, "i32": rng.randrange(-(2**31), 2**31), "i64": rng.randrange(-(2**63), 2**63),
        "f32": whole / 4, "f64": rng.choice(floats), "b": rng.random() < 0.5, "s": rng.choice(TEXTS),
        "d": whole, "d38": rng.randrange(10**30), "d256": -whole, "l": [whole, None], "ll": [["a"], [], None],
        "o": rng.choice([{}, None, {"x": 1, "y": "b", "z": [{"w": 0.5}, None, {}]}]), "näme": "n",
        "more": {"a": [1, {"b": None}]},
    }  # fmt: skip
    names = list(row)
    rng.shuffle(names)
    return {name: None if rng.random() < 0.1 else row[name] for name in names if rng.random() < 0.8}


def damaged(document: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randrange(3)):
        at, more = rng.randrange(len(document) + 1), rng.randrange(4)
        match rng.randrange(4):
            case 0:
                document = document[:at] + rng.choice(TOKENS) + document[at:]
            case 1:
                document = document[:at] + document[at + more :]
            case 2:
                document = document[:at]
            case _:  # in place of a value
                colon = document.find(b":", at)
                comma = document.find(b",", colon)
                if 0 <= colon < comma:
                    document = document[: colon + 1] + rng.choice(TOKENS) + document[comma:]
    return document


def test_the_library_is_built() -> None:
    """Without it ingest goes on, slower. But here it must be tested."""
    build.build_if_needed()
    assert library() is not None


def test_well_formed_objects_are_all_sure() -> None:
    rng = random.Random(1)
    rows = [likely(rng) for _ in range(500)]
    documents = [
        json.dumps(row, ensure_ascii="näme" not in row).encode() for row in rows
    ]  # a name with an escape is not sure
    assert check(documents) == len(documents)


def test_what_it_is_sure_of_is_what_the_exact_reading_says() -> None:
    rng = random.Random(2)
    sure = 0
    for _ in range(15):
        separators = rng.choice([(",", ":"), (", ", " : ")])
        rows = [json.dumps(likely(rng), ensure_ascii=False, separators=separators).encode() for _ in range(100)]
        sure += check([damaged(row, rng) for row in rows])
    assert 150 < sure < 1_400  # neither side of the line is empty


@pytest.mark.parametrize("name", TYPES)
def test_every_token_in_every_column(name: str) -> None:
    assert check([b'{"other":1,"' + name.encode() + b'":' + token + b',"more":[]}' for token in TOKENS]) > 0


@examples(40)
@given(st.lists(st.binary(max_size=40).map(lambda tail: b'{"s":"' + tail), max_size=20))
def test_any_bytes_in_a_text(documents: list[bytes]) -> None:
    check([document + b'"}' for document in documents])


@examples(30)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=30))
def test_floating_point_numbers_are_the_nearest(numbers: list[float]) -> None:
    forms = [form(number) for number in numbers for form in (repr, "{:.20e}".format, "{:.17g}".format)]
    check(
        [f'{{"f64":{form},"f32":{form}}}'.encode() for form in forms] + [f'{{"f64":{form}}}'.encode() for form in forms]
    )


def test_an_unsure_record_leaves_nothing_behind() -> None:
    whole = b'{"o":{"x":7,"y":"abc","z":[{"w":1.5},{"w":2}]},"ll":[["a","b"],["c"]],"b":true,"d":5,"s":"text"}'
    cut = [whole[:end] for end in range(len(whole))]
    assert check([whole, *cut, whole]) == 2


def test_unknown_members_are_counted_record_by_record() -> None:
    documents = [b'{"s":"a","n":1,"o":{"x":1,"q":0}}', b'{"m":null,"known":{},"n":[]}', b'{"n":tru}', b'{"l":[1]}']
    got = parsed(*documents, watched={(): ("known",)})
    assert got.met is not None
    told = [{got.unknown[bit] for bit in range(63) if int(met) >> bit & 1} for met in got.met]
    assert told == [{("n",), ("o", "q")}, {("m",), ("n",)}, set(), set()]


def test_unknown_members_beyond_the_room_for_their_names_share_a_bit() -> None:
    documents = [json.dumps({f"n{number}": 0}).encode() for number in range(100)]
    got = parsed(*documents, watched={(): ()})
    assert got.met is not None
    assert len(got.unknown) == 63
    assert [int(met) >> 63 for met in got.met] == [0] * 63 + [1] * 37


def test_a_type_that_it_does_not_read_is_left_to_arrow() -> None:
    assert JsonParser.of(pa.schema([("t", pa.time32("s"))]), {}) is None


def test_a_slice_of_an_array_is_read() -> None:
    parser = JsonParser.of(SCHEMA, {})
    assert parser is not None
    values = pa.array([b'{"i64":%d}' % number for number in range(10)], pa.binary())
    assert parser.parse(values.slice(3, 4)).rows.column("i64").to_pylist() == [3, 4, 5, 6]
    assert parser.parse(values.slice(3, 0)).rows.num_rows == 0


FLAT = pa.schema([pa.field("id", pa.int64(), False), pa.field("s", pa.string())])


def decoders(mode: Any) -> list[Any]:
    """A decoder of events, and one of flat objects."""
    options = JsonOptions(unknown_fields=mode)
    known = DecoderSchema(FLAT, ("id",))
    return [DebeziumJson(known, options), JsonRows(known, options, operation_field="op")]


@pytest.mark.parametrize("mode", ["warn", "quarantine", "ignore"])
@pytest.mark.parametrize("format", [0, 1])
def test_unknown_members_are_counted_exactly_as_one_by_one(mode: str, format: int) -> None:
    rng = random.Random(3)
    values: list[Any] = []
    for number in range(600):
        row = {"id": number % 50, "s": "x", "op": rng.choice(["u", "d", None])} if format else {"id": number, "s": "x"}
        row |= {name: None for name in ("more", "id2", f"n{number % 40}") if rng.random() < 0.02}
        op = rng.choice("cudm")
        before = {"id": number, "s": "", "gone": 1} if rng.random() < 0.2 else None
        values.append(row if format else event(op, None if op == "d" else row, before or (row if op == "d" else None)))
    table = records(values)
    fast = decoders(mode)[format].decode(table)
    with only_one_by_one():
        slow = decoders(mode)[format].decode(table)
    assert_same(fast, slow)
    kind = "refused_field" if mode == "quarantine" else "unknown_field"
    assert fast.remarks == slow.remarks
    assert fast.remarks.keys() == ({kind} if mode != "ignore" else set())
    assert bool(len(fast.quarantined)) == (mode == "quarantine")


def test_it_can_be_turned_off_and_is_not_used_in_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    load = library.__wrapped__
    assert load() is not None
    monkeypatch.setattr("lakebed.decode.native.library.VERSION", -1)
    assert load() is None
    monkeypatch.undo()
    monkeypatch.setenv("LAKEBED_NATIVE", "off")
    assert load() is None


def test_a_compiler_that_fails_is_named_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for compiler in ("no-such-compiler", "false"):
        monkeypatch.setenv("CC", compiler)
        with pytest.raises(build.NotBuilt, match=compiler):
            build.build(tmp_path / "library.so")
    assert not list(tmp_path.iterdir())
