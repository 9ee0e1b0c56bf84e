"""Records as an enemy would send them, and tables to send them to: what ``fuzz`` feeds to a decoder.

Values are written as JSON text, not through a JSON library, so that numbers come in every spelling. Most records are
good and of one form, so that the reading by columns has its chance; the others are wrong in one place or in all.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.debezium.message_key import SHARD_FIELD
from lakebed.decode.decoder import RECORD_SCHEMA, Decoder, DecoderSchema
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.json_rows import JsonRows
from lakebed.decode.source_order import SourceRules
from lakebed.errors import LakebedError
from lakebed.parts.changes import WriteSpec
from lakebed.positions.positions import SEVERAL
from lakebed.positions.truncates import NO_CUTOFF, Cutoff, Truncate
from lakebed.schema.fitting import EvolvePolicy
from lakebed.sortkey.sort_key import parse_sort_key

PLACEHOLDER = "__debezium_unavailable_value"
BYTES_OF_PLACEHOLDER = PLACEHOLDER.encode()
POWERS = [sign * 2**k + step for k in (7, 8, 15, 31, 53, 62, 63, 64) for sign in (1, -1) for step in (-1, 0, 1)]
EPOCHS = [sign * 10**k + step for k in (14, 15, 17, 18) for sign in (1, -1) for step in (-1, 0, 1)]
EPOCHS += [
    -9_223_372_022_400_000_000,
    -9_223_372_022_400_000_001,
    9_223_372_036_825_200_000,
    -9_223_372_036_832_400_000,
]
EPOCHS += [9 * 10**15, 9 * 10**15 + 1, (2**63 - 1) // 1000, (2**63 - 1) // 1000 + 1, -62_135_596_800_000_000]
EPOCHS += [253_402_300_800_000_000, 253_402_300_799_999_999, -62_135_596_800_000_001, 86_400_000_000]
EPOCHS += [
    9_223_372_036_825_200,
    -9_223_372_036_832_400,
    9_223_372_022_400_000_000,
    9_223_372_022_399_999_999,
    2**63 - 1,
    -(2**63),
    -(2**63) + 1,
    9_223_372_022_400_000,
    9_223_372_022_399_999,
    -9_223_372_022_400_000,
    -9_223_372_022_400_001,
]
DAYS = [-719_163, -719_162, 2_932_896, 2_932_897, -(2**31), 2**31 - 1, 2**31, 0, -1, 19_782]
DAYS += [2_146_033_979, -622_191_234, -625_821_271, -2_147_472_692, -2_147_472_691, -2_147_472_690, -735_160]
DAYS += [-(2**31) + 1, 2**31 - 2]
DATES = ["0000-01-01", "0001-01-01", "9999-12-31", "1969-12-31", "2024-02-29", "2023-02-29", "2024-2-9", "20240229"]
DATES += ["2024-02-29 ", "+2024-02-29", "-001-01-01", "12024-01-01", "", "２０２４-02-29"]
DATES += ["+20222-03-15", "-4712-01-01", "0044-03-15 BC", "2017-09-15Z", "-5877611-06-21Z", "5874897-12-31", "infinity"]
DATES += ["-infinity", "Infinity", "0000-00-00", "12345678-01-01", "294247-01-10", "-290308-12-21", "0000-02-29"]
DATES += ["+292278994-08-16Z", "+292269055-12-02", "-292275055-05-16"]
CLOCKS = [
    "",
    "T00:00:00",
    "T23:59:59.999999",
    "T23:59:59.9999999",
    "T12",
    "T12:30",
    " 12:30:15.5",
    "T24:00:00",
    "T1230",
]
CLOCKS += ["T23:59:60", "T12:00:00.", "t12:00:00", "T12:60:00", "T00:00:00.123456789", "T00:00:00.1234567890"]
ZONES = ["", "Z", "z", "+00:00", "-00:00", "+23:59", "-23:59", "+24:00", "+0530", "+05", "+5", "+05:60", " Z", "UTC"]
ZONES += ["+00:19:32", "-001932", "+00:19:60", "Z BC", " BC"]
FLOATS = ["0.1", "-0", "-0.0", "0", "1e400", "-1e400", "1e-400", "5e-324", "2.5e-324", "1.7976931348623157e308", "1e1"]
FLOATS += ["1.7976931348623158e308", "1.7976931348623159e308", "3.4028234663852886e38", "3.4028235677973366e38", "1E+2"]
FLOATS += ["3.4028235677973365e38", "16777217", "16777217.0000001", "1.00000017881393432617187499", "9007199254740993"]
FLOATS += [
    "0.3000000000000000166533453693773481063544750213623046875",
    "1e-46",
    "7.006492321624085e-46",
    "123456789.125",
]
NOT_JSON = [
    "NaN",
    "Infinity",
    "-Infinity",
    "Inf",
    "-Inf",
    "-NaN",
    "nan",
    "01",
    "1.",
    ".5",
    "+1",
    "0x1",
    "tru",
    "1e",
    "-",
]
MONSTERS = [
    "1e999999999999999999999999",
    "0e99999999999999999999",
    "1e-99999999999999999999",
    "9" * 5000,
    "1e999999999",
]
MONSTERS += ["0." + "1" * 5000, "[" * 3000 + "]" * 3000, '{"a":' * 1500 + "1" + "}" * 1500, "1" * 77, "-" + "1" * 40]
MONSTERS += ["[" * 3000, '"' + "x" * 5000 + '"', "[" * 150 + "]" * 150]
TEXTS = ["", "a", "ä", "\U0010ffff", "a\nb", '"', "\\", "1234", "AQI=", "null", "12.50", "NaN", "Infinity", "}null"]
TEXTS += [
    PLACEHOLDER,
    base64.b64encode(PLACEHOLDER.encode()).decode(),
    f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}',
    "2024-02-29",
]
ESCAPED = [
    r'"\ud800"',
    r'"\udc00"',
    r'"\ud83d\ude00"',
    r'"\ude00\ud83d"',
    r'"\u0000"',
    r'"\/"',
    r'"\x"',
    r'"\u12"',
    '"\x01"',
]
SAID = ['"type":"string"', '"type":"bytes"', '"type":"double"', '"type":"int64"', '"type":"boolean"']
SAID += [
    f'"type":"int64","name":"io.debezium.time.{name}"'
    for name in ("Year", "MicroTime", "MicroDuration", "Date", "Timestamp")
]
"""What a schema may say of any column."""
NUMERALS = [
    "1234",
    "12345",
    "123",
    "-1234",
    "+123",
    "1e10",
    "1E-2",
    ".50",
    "5.",
    "0012",
    "00",
    "1_000",
    "١٢",
    " 1",
    "1 ",
]
BASE64 = [
    "AQI=",
    "/w==",
    "AAAA",
    "gAAA",
    "",
    "====",
    "A===",
    "AQJ=",
    "AQ",
    "AQI",
    "AQI\n",
    "f" * 24,
    "/" * 20,
    "A" * 88,
]
CONTAINERS = [
    "[]",
    "{}",
    "[null]",
    '{"a":1,"a":2}',
    '{"a":1.10,"b":[1e400,-0]}',
    '{"x":null}',
    f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}',
]
CONTAINERS += [
    r'{"a":"\ud800"}',
    r'{"\ud800":1}',
    '{"a":NaN}',
    json.dumps(list(PLACEHOLDER.encode())),
    f'["{PLACEHOLDER}"]',
]
CONTAINERS += [
    '{"scale":2,"value":"AQI="}',
    '{"scale":-2,"value":"AQI="}',
    '{"scale":true,"value":"AQI="}',
    '{"scale":99,"value":"/w=="}',
]
CONTAINERS += [
    '{"scale":2}',
    '{"value":"AQI=","scale":1e1}',
    "[[1],null]",
    '{"scale":38,"value":"AQ=="}',
    '{"schema":1,"payload":2}',
]
SCALARS = ["null", "true", "false", "0", "1", "-1", "2"]
BYTES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\\",
    b"\x00",
    b"\xff",
    b"\n",
    b" ",
    b"null",
    b"0",
    b"-",
    b"\xed\xa0\x80",
]
BROKEN: list[bytes | None] = [
    None,
    b"",
    b"{",
    b"null",
    b"[1]",
    b'{"op":"c"} {"op":"c"}',
    b'{"op":"c"}null{"op":"d"}',
    b"{}",
    b"\xef\xbb\xbf{}",
]
BROKEN += [
    b'{"op":"c"}\x00{}',
    b'{"schema":{},"payload":null}',
    b'{"schema":5,"payload":{}}',
    b'{"schema":null,"payload":{"op":"m"}}',
]
BROKEN += [b'{"op":"t"}', b'{"op":{"a":[]}}', b'{"op":"c","after":[]}', b' {"op":"m"} ', b'{"op":"m"}\x0b']

SHARING = ["a b", "a b", "a b", "a_b", "a?b", "日本", "a.b", 'a"b']
"""Names of tables, most of which are the same in the name of a topic."""
Text = Callable[[], str]


def text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def b64(number: int, extra: int = 0) -> str:
    return base64.b64encode(number.to_bytes((number.bit_length() + 8) // 8 + extra, "big", signed=True)).decode()


@dataclass(frozen=True)
class Case:
    spec: WriteSpec
    decoder: Callable[[], Decoder]
    records: pa.Table
    cutoff: Cutoff


class Hostile:
    """All that is random comes from one generator."""

    def __init__(self, seed: str) -> None:
        self.rng = Random(seed)
        self.noise = self.rng.choice([0.0, 0.1, 0.3, 1.0, 3.0])
        self.case_changes = self.rng.choice([0.0, 0.0, 0.0, 0.001, 0.02, 0.9])
        self.has_tables = self.rng.random() < 0.3
        """Whether events name tables of the source, some of which share a topic."""
        self.id = "0"
        """Of the row that was made last, as its text."""

    def _rarely(self, chance: float) -> bool:
        return self.rng.random() < chance * self.noise

    # Tables ----------------------------------------------------------------------------------------------------------

    def case(self, rows: int) -> Case:
        names = ["id", "b", "C d", "straße", "Über", "İf"][: self.rng.randint(2, 6)]
        fields = [pa.field(name, self._type(2), self.rng.random() < 0.7) for name in names]
        key_types = [
            pa.int64(),
            pa.int32(),
            pa.string(),
            self._decimal(),
            pa.date32(),
            pa.timestamp("us", "UTC"),
            pa.binary(),
        ]
        fields[0] = pa.field("id", self.rng.choice(key_types), False)
        schema = pa.schema(fields)
        keys = ("id",) if self.rng.random() < 0.8 else ()
        flat = [f.name for f in schema if not pa.types.is_nested(f.type) and not pa.types.is_binary(f.type)]
        partition = tuple(name for name in flat[1:] if self.rng.random() < 0.15)[:1]
        ordering = [None, None, None, "kafka.offset", "kafka.timestamp"]
        columns = [f.name for f in schema if pa.types.is_integer(f.type) or pa.types.is_temporal(f.type)]
        is_debezium = self.rng.random() < 0.6
        if is_debezium:
            ordering += ["source.lsn", "ts_ms"]
        sequence = self.rng.choice([*ordering, *columns]) if keys else None
        options = JsonOptions(
            self.rng.choice(["auto", "auto", "ms", "us", "ns"]),
            self.rng.choice(["auto", "auto", "precise", "string"]),
            binary_text=self.rng.choice(["auto", "auto", "auto", "base64", "base64-url-safe", "hex"]),
            unavailable_value=self.rng.choice([PLACEHOLDER, PLACEHOLDER, f"hex:{BYTES_OF_PLACEHOLDER.hex()}"]),
            unknown_fields=self.rng.choice(["warn", "warn", "ignore", "quarantine"]),
        )
        rules = SourceRules(tables=(r"public\.a.b",) if self.rng.random() < 0.3 else ())
        policy = EvolvePolicy(by_schema=self.rng.random() < 0.5)
        spec = DecoderSchema(schema, keys, sequence, policy, source=rules)
        operation = self.rng.choice(["op"] * 9 + names) if keys and self.rng.random() < 0.3 else None
        operations = ("d", "", "0"), self.rng.choice([None, ("u", "1", "Zz")])
        records = self._records(schema, rows, is_debezium, bool(keys))

        def decoder() -> Decoder:
            return DebeziumJson(spec, options) if is_debezium else JsonRows(spec, options, operation, *operations)

        cutoff = NO_CUTOFF
        if is_debezium and keys and self.rng.random() < 0.3:
            cutoff = Cutoff(
                (
                    Truncate(
                        topic="t",
                        partition=self.rng.choice([0, 1]),
                        offset=40,
                        time_us=1_700_000_000_030_000,
                        lsn=self.rng.choice([None, 50]),
                    ),
                )
            )
        if self.has_tables and self.rng.random() < 0.7:
            cutoff = cutoff.of_sources({"t": self.rng.choice(["public.a b", "a b", "public.a_b", SEVERAL])})
        return Case(
            WriteSpec(
                schema=schema, keys=keys, sort_key=self._sort_key(schema), sequence_by=sequence, partition_by=partition
            ),
            decoder,
            records,
            cutoff,
        )

    def _sort_key(self, schema: pa.Schema) -> tuple[str, ...]:
        names = [self.rng.choice(schema.names) for _ in range(2)]
        function = self.rng.choice(
            ["{}", "{}", "date({})", "year({})", "hour({}) desc", "substr({}, 1, 2)", "bucket(7, {})", "{} desc"]
        )
        term = function.format(names[0])
        key = self.rng.choice(
            [(), (), (term, names[1]), (f"zorder({', '.join(names)})",), (f"hilbert({', '.join(names)})",)]
        )
        try:
            parse_sort_key(key, schema)
        except LakebedError:  # no such function of such a column
            return ()
        return key

    def _type(self, levels: int) -> pa.DataType:
        simple: list[pa.DataType] = [
            pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.string(),
            pa.binary(), self._decimal(), self._decimal(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"),
        ]  # fmt: skip
        kind = self.rng.random()
        if not levels or kind < 0.8:
            return self.rng.choice(simple)
        nullable = self.rng.random() < 0.6
        if kind < 0.87:
            return pa.list_(pa.field("element", self._type(levels - 1), nullable))
        if kind < 0.96:
            names = ["x", "y"][: self.rng.randint(1, 2)]
            return pa.struct([pa.field(name, self._type(levels - 1), self.rng.random() < 0.6) for name in names])
        keys = self.rng.choice([pa.string(), pa.int32(), pa.date32()])
        return pa.map_(keys, pa.field("value", self._type(levels - 1), nullable))

    def _decimal(self) -> pa.DataType:
        precision = self.rng.choice([1, 5, 9, 10, 18, 19, 20, 36, 37, 38])
        return pa.decimal128(
            precision, self.rng.choice([0, min(2, precision), precision // 2, precision - 1, precision])
        )

    # Values ----------------------------------------------------------------------------------------------------------

    def form(self, kind: pa.DataType) -> Text:
        """One of the ways in which a source writes values of a type."""
        rng = self.rng
        if pa.types.is_list(kind):
            item = self.form(kind.value_type)
            return lambda: (
                f"[{','.join(self._maybe(item, kind.value_field.nullable) for _ in range(rng.randint(0, 3)))}]"
            )
        if pa.types.is_struct(kind):
            fields = [(f, self.form(f.type)) for f in kind]
            return lambda: self._struct([(f.name, self._maybe(form, f.nullable)) for f, form in fields])
        if pa.types.is_map(kind):
            item = self.form(kind.item_type)
            keys = {"string": ["a", "b"], "int32": ["1", "02", "2"], "date32[day]": ["2024-02-29"]}[str(kind.key_type)]
            return lambda: self._object([(key, item()) for key in keys if rng.random() < 0.6])
        return rng.choice(self._forms(kind))

    def _forms(self, kind: pa.DataType) -> list[Text]:
        rng = self.rng
        if pa.types.is_integer(kind):
            inside = [
                power
                for power in POWERS
                if power.bit_length() < kind.bit_width or power == -(2 ** (kind.bit_width - 1))
            ]
            return [
                lambda: str(rng.choice(inside)),
                lambda: str(rng.randint(-9, 9)),
                lambda: text(str(rng.choice(inside))),
                lambda: f"{rng.choice(inside)}.{'0' * rng.randint(1, 3)}",
                lambda: rng.choice(["1e1", "1.20E2", "-0.0", "5", "12e-1"]),
            ]
        if pa.types.is_floating(kind):
            small = [one for one in FLOATS if "e4" not in one and "e308" not in one and "4028" not in one]
            return [lambda: rng.choice(small), lambda: repr(rng.uniform(-9, 9)), lambda: str(rng.randint(-9, 9))]
        if pa.types.is_boolean(kind):
            return [lambda: rng.choice(["true", "false"]), lambda: rng.choice(["0", "1", "-0"])]
        if pa.types.is_string(kind):
            return [lambda: text(rng.choice(TEXTS)), lambda: text(rng.choice("abc")), lambda: rng.choice(CONTAINERS)]
        if pa.types.is_binary(kind):
            return [lambda: text(rng.choice(["AQI=", "", "AAAA", "/w==", "_w==", "0aF0", "00"]))]
        if pa.types.is_decimal(kind):
            variable = lambda: f'{{"scale":{rng.randint(0, kind.scale)},"value":"{b64(self._unscaled(kind))}"}}'  # noqa: E731
            return [
                lambda: self._digits(kind),
                lambda: text(self._digits(kind)),
                lambda: text(b64(self._unscaled(kind))),
                variable,
            ]
        if pa.types.is_date32(kind):
            days = [day for day in DAYS if day < 2**31]
            return [
                lambda: str(rng.randint(-9999, 19999)),
                lambda: str(rng.choice(days)),
                lambda: text(rng.choice(DATES[1:5])),
            ]
        zone = "Z" if kind.tz else ""
        return [
            lambda: str(rng.choice(EPOCHS)),
            lambda: str(1_700_000_000_000 + rng.randint(0, 9)),
            lambda: str(rng.randint(-9, 9)),
            lambda: text(f"{rng.choice(DATES[1:5])}T{rng.randint(0, 23):02}:00:00.{rng.randint(0, 999)}{zone}"),
        ]

    def _unscaled(self, kind: pa.DataType) -> int:
        digits = self.rng.choice([1, min(3, kind.precision), kind.precision, kind.precision + self._rarely(0.05)])
        return self.rng.choice([-1, 1]) * self.rng.choice(
            [10**digits - 1, 10 ** (digits - 1), self.rng.randrange(10**digits)]
        )

    def _digits(self, kind: pa.DataType) -> str:
        number, scale = self._unscaled(kind), kind.scale
        if self._rarely(0.05):
            scale = self.rng.choice([0, 1, scale + 1])
        elif self.rng.random() < 0.3:  # fewer digits after the point
            number = number // 10 ** (scale // 2)
            scale -= scale // 2
        sign, digits = "-" if number < 0 else "", str(abs(number)).rjust(scale + 1, "0")
        plain = sign + digits[: len(digits) - scale] + ("." + digits[len(digits) - scale :] if scale else "")
        if not self._rarely(0.02):
            return plain
        return f"{number}e{self.rng.choice([-scale, -scale, 1, 0, 37])}"

    def wild(self) -> str:
        """Anything that has the look of JSON."""
        rng = self.rng
        pool = rng.choice(
            [SCALARS, FLOATS, NOT_JSON, MONSTERS, ESCAPED, CONTAINERS]
            + [[str(number) for number in chosen] for chosen in (POWERS, EPOCHS, DAYS)]
            + [[text(one) for one in chosen] for chosen in (TEXTS, NUMERALS, BASE64, DATES)]
            + [[text(rng.choice(DATES) + rng.choice(CLOCKS) + rng.choice(ZONES))]]
        )
        return rng.choice(pool)

    def _maybe(self, form: Text, nullable: bool) -> str:
        if self._rarely(0.004):
            return self.wild()
        if (nullable and self.rng.random() < 0.1) or self._rarely(0.004):
            return "null"
        return form()

    def _object(self, members: list[tuple[str, str]]) -> str:
        if self._rarely(0.002):
            members = [*members, *members]
        space = " " if self._rarely(0.01) else ""
        return "{" + ",".join(f"{text(name)}:{space}{value}" for name, value in members) + "}"

    def _struct(self, members: list[tuple[str, str]]) -> str:
        """An object whose members may differ by case from the names of their fields."""
        if self.rng.random() < self.case_changes:
            forms = [str.upper, str.lower, str.title, str.swapcase]
            odd = [(self.rng.choice(forms)(name), value) for name, value in members]
            members = [*members, *odd] if self._rarely(0.02) else odd
        return self._object(members)

    # Records ---------------------------------------------------------------------------------------------------------

    def _records(self, schema: pa.Schema, count: int, is_debezium: bool, keyed: bool) -> pa.Table:
        rng = self.rng
        forms = {f.name: self.form(f.type) for f in schema}
        inline = self._inline_schema(schema, is_debezium)
        has_inline = rng.random() < 0.3
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        for number in range(count):
            if self._rarely(0.005):
                values.append(rng.choice(BROKEN))
                keys.append(self._key(schema, forms, inline))
                continue
            value = self._event(schema, forms, number, keyed) if is_debezium else self._row(schema, forms, number)
            if has_inline or self._rarely(0.002):
                value = self._enveloped(
                    self._inline_schema(schema, is_debezium) if self._rarely(0.01) else inline, value
                )
            raw = value.encode("utf-8", "surrogatepass")
            values.append(self._damaged(raw) if self._rarely(0.005) else raw)
            keys.append(self._key(schema, forms, inline))
        times: list[int | None] = [1_700_000_000_000 + number for number in range(count)]
        for number in range(count):
            if self._rarely(0.003):
                times[number] = rng.choice(
                    [None, *[power for power in POWERS if -(2**63) <= power < 2**63], 9 * 10**15 + 1]
                )
        columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(["t"] * count)]
        columns += [pa.array([0] * count, pa.int32()), pa.array(range(count), pa.int64())]
        columns.append(pa.array(times, pa.int64()).cast(pa.timestamp("ms", "UTC")))
        return pa.table(columns, schema=RECORD_SCHEMA)

    def _row(self, schema: pa.Schema, forms: dict[str, Text], number: int) -> str:
        rng = self.rng
        members = []
        for f in schema:
            if f.name == "id" and rng.random() < 0.3:
                members.append((f.name, forms["id"]()))
                self.id = members[-1][1]
            elif not self._rarely(0.003):
                unsent = self._rarely(0.003)
                members.append((f.name, self._unsent(f.type) if unsent else self._maybe(forms[f.name], f.nullable)))
                self.id = members[-1][1] if f.name == "id" else self.id
        if self._rarely(0.05):
            members.append(("ignored", self.wild()))
        if rng.random() < 0.1:
            members.append(("op", self.wild() if self._rarely(0.1) else rng.choice(['"c"', '"d"', "null"])))
        if rng.random() < 0.05:
            rng.shuffle(members)
        return self._struct(members)

    def _unsent(self, kind: pa.DataType) -> str:
        """What Debezium sends in place of a value of a type, and what is nearly that."""
        rng, raw = self.rng, BYTES_OF_PLACEHOLDER
        texts = [PLACEHOLDER, raw.hex(), base64.b64encode(raw).decode(), json.dumps({PLACEHOLDER: PLACEHOLDER})]
        if pa.types.is_struct(kind):
            place = {"x": -99999999.0, "y": rng.choice([-99999999.0, -99999999, 1])}
            wkb = {"wkb": "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ==", "srid": rng.choice([4326, None])}
            return json.dumps(rng.choice([place, wkb, place | wkb, {PLACEHOLDER: PLACEHOLDER}]))
        if not pa.types.is_list(kind):
            return text(rng.choice(texts))
        scale = rng.choice([0, 1, 2])
        forms: list[list[Any]] = [
            [rng.choice(texts)],
            ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
            list(raw),
            [float(one) for one in raw],
            [one / 10**scale for one in raw],
            [base64.b64encode(bytes([one])).decode() for one in raw],
            [{"scale": scale, "value": base64.b64encode(bytes([one])).decode()} for one in raw],
            [True] * len(raw),
            [1] * len(raw),
        ]
        chosen = rng.choice(forms)
        return json.dumps([*chosen[:-1], rng.choice(chosen)] if rng.random() < 0.3 else chosen)

    def _event(self, schema: pa.Schema, forms: dict[str, Text], number: int, keyed: bool) -> str:
        rng = self.rng
        common = rng.choice("cuudr") if keyed or self._rarely(0.01) else "c"
        op = rng.choice("mtx") if self._rarely(0.01) else common
        after = "null" if (op in "dmt") != (self._rarely(0.003)) else self._row(schema, forms, number)
        before = "null" if op == "c" or rng.random() < 0.3 else self._row(schema, forms, number)
        source = [
            ("ts_ms", str(1_700_000_000_000 + number)),
            ("lsn", str(number)),
            ("ts_us", "null"),
            ("file", '"log.1"'),
        ]
        if self.has_tables:
            source += [("schema", rng.choice(['"public"', '"public"', "null"])), ("table", text(rng.choice(SHARING)))]
        members = [("before", before), ("after", after), ("op", text(op)), ("ts_ms", str(1_700_000_000_500))]
        if self._rarely(0.01):
            place = rng.randrange(4)
            source[place] = (source[place][0], self.wild())
        members.append(("source", self.wild() if self._rarely(0.002) else self._object(source)))
        if self._rarely(0.01):
            place = rng.randrange(4)
            members[place] = (members[place][0], self.wild())
        if self._rarely(0.03):
            members.append((rng.choice(["ignored", "ignored", "payload", "schema"]), self.wild()))
        return self._object(members)

    def _key(self, schema: pa.Schema, forms: dict[str, Text], inline: str) -> bytes | None:
        rng = self.rng
        if rng.random() < 0.5:
            return None
        if self._rarely(0.02):
            return rng.choice(BROKEN)
        id = self.id if rng.random() < 0.9 else self._maybe(forms["id"], False)
        other = (rng.choice(["b", SHARD_FIELD]), rng.choice(["0", '"x"', "null"]))
        members = [("id", id)]
        if self._rarely(0.1):
            members = rng.choice([[other], [("id", id), other], [other, ("id", id)], []])
        key = rng.choice([id, "Struct{id=1}", f"[{id}]"]) if self._rarely(0.05) else self._struct(members)
        if rng.random() < 0.2:
            fields = f'{{"type":"struct","fields":[{self._field(schema.field("id"))}]}}'
            key = self._enveloped(fields if rng.random() < 0.8 else inline, key)
        raw = key.encode("utf-8", "surrogatepass")
        return self._damaged(raw) if self._rarely(0.02) else raw

    def _enveloped(self, schema: str, payload: str) -> str:
        if self._rarely(0.01):
            return f'{{"payload":{payload},"schema":{schema}}}'
        if self._rarely(0.01):
            return f'{{"schema":{schema},"payload":{payload},"more":{{}}}}'
        return f'{{"schema":{schema},"payload":{payload}}}'

    def _inline_schema(self, schema: pa.Schema, is_debezium: bool) -> str:
        fields = ",".join(self._field(f) for f in schema if self.rng.random() < 0.8)
        row = f'{{"type":"struct","fields":[{fields}],"field":"after"}}'
        whole = f'{{"type":"struct","fields":[{{"field":"op","type":"string"}},{row}]}}' if is_debezium else row
        if self._rarely(0.2):  # malformed in one place
            for old in self.rng.sample(['"fields":[', '"field":"', '"scale":"', '"parameters":{', '"type":"'], 2):
                at = whole.find(old, self.rng.randrange(len(whole)))
                if at >= 0:
                    whole = (
                        whole[:at]
                        + old.split(":")[0]
                        + ":"
                        + self.wild()
                        + ',"z":'
                        + old.split(":")[1]
                        + whole[at + len(old) :]
                    )
        return whole

    def _field(self, f: pa.Field) -> str:
        name = self.rng.choice(SAID if self._rarely(0.04) else self._logical(f.type))
        more = self.rng.choice(
            ["", ',"optional":true', ',"optional":false', ',"default":0', ',"optional":true,"default":1']
        )
        return f'{{{name},"field":{text(f.name)}{more}}}'

    def _logical(self, kind: pa.DataType) -> list[str]:
        time, connect = "io.debezium.time.", "org.apache.kafka.connect.data."
        named = '"type":"int64","name":"{}"'.format
        if pa.types.is_date32(kind):
            return [named(time + "Date"), named(connect + "Date"), named(time + "Timestamp")]
        if pa.types.is_timestamp(kind):
            return [
                named(time + one) for one in ("Timestamp", "MicroTimestamp", "NanoTimestamp", "Date", "ZonedTimestamp")
            ]
        if pa.types.is_decimal(kind):
            scale = self.rng.choice([kind.scale, kind.scale, 0, 2, 38, -2])
            decimal = f'"type":"bytes","name":"{connect}Decimal","parameters":{{"scale":"{scale}"}}'
            return [decimal, decimal, named("io.debezium.data.VariableScaleDecimal"), '"type":"string"']
        if pa.types.is_list(kind):
            return [f'"type":"array","items":{{{self.rng.choice(self._logical(kind.value_type))}}}']
        if pa.types.is_struct(kind):
            return [f'"type":"struct","fields":[{",".join(self._field(f) for f in kind)}]']
        if pa.types.is_map(kind):
            return [f'"type":"map","values":{{{self.rng.choice(self._logical(kind.item_type))}}}']
        if pa.types.is_string(kind):
            names = ("Date", "Time", "MicroTime", "NanoTime", "Timestamp", "NanoTimestamp")
            return ['"type":"string"'] * 4 + [named(time + one) for one in names] + ['"type":"bytes"']
        of_type = ((pa.types.is_binary, "bytes"), (pa.types.is_boolean, "boolean"), (pa.types.is_floating, "double"))
        said = next((name for is_kind, name in of_type if is_kind(kind)), "int64")
        return [f'"type":"{said}"']

    def _damaged(self, raw: bytes) -> bytes:
        for _ in range(self.rng.randint(1, 3)):
            at = self.rng.randrange(len(raw) + 1)
            match self.rng.randrange(3):
                case 0:
                    raw = raw[:at] + self.rng.choice(BYTES) + raw[at:]
                case 1:
                    raw = raw[:at] + raw[at + self.rng.randint(1, 4) :]
                case _:
                    raw = raw[:at]
        return raw


def seed_of(seed: int, number: int) -> str:
    return f"{seed}:{number}"
