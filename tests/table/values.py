"""Values at the edges of every type that a table can have."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa

UTC = datetime.UTC
_LONG = "long " * 40
_HIGH = "\U0010ffff" * 40  # no character is higher, so a maximum cut here can't be raised by one
_nested = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.struct([pa.field("c", pa.string())]))])

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "byte": (pa.int8(), [-128, 127, 0, None]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1, 0, None]),
    "integer": (pa.int32(), [-(2**31), 2**31 - 1, 0, None]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1, 2**53 + 1, None]),
    "float": (
        pa.float32(),
        [float("nan"), float("inf"), float("-inf"), -0.0, 3.4028234663852886e38, 1.401298464324817e-45, None],
    ),
    "double": (
        pa.float64(),
        [float("nan"), float("inf"), float("-inf"), -0.0, 1.7976931348623157e308, 5e-324, 0.1, None],
    ),
    "finite": (pa.float64(), [-1.7976931348623157e308, 1.7976931348623157e308, -0.0, None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "string": (
        pa.string(),
        ["", " ", _LONG + "a", _LONG + "b", _HIGH, _HIGH + "x", "ü–ß 👍", "\x00\x01\n\t\"'\\", "%20=/", None],
    ),
    "binary": (pa.binary(), [b"", b"\x00\xff", bytes(range(256)), None]),
    "date": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1969, 12, 31), None]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [
            datetime.datetime(1, 1, 1, tzinfo=UTC),
            datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime.datetime(2026, 3, 29, 1, 30, 0, 123_456, tzinfo=UTC),
            None,
        ],
    ),
    "timestamp_ntz": (
        pa.timestamp("us"),
        [
            datetime.datetime(1, 1, 1),
            datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999),
            datetime.datetime(1969, 12, 31, 23, 59, 59, 1),
            None,
        ],
    ),
    "decimal_1_0": (pa.decimal128(1, 0), [decimal.Decimal(-9), decimal.Decimal(9), None]),
    "decimal_18_6": (
        pa.decimal128(18, 6),
        [decimal.Decimal("-999999999999.999999"), decimal.Decimal("0.000001"), None],
    ),
    "decimal_38_0": (
        pa.decimal128(38, 0),
        [decimal.Decimal(-(10**38) + 1), decimal.Decimal(10**38 - 1), decimal.Decimal(2**64), None],
    ),
    "decimal_38_38": (
        pa.decimal128(38, 38),
        [decimal.Decimal("0." + "9" * 38), decimal.Decimal("-0." + "0" * 37 + "1"), None],
    ),
    "struct": (_nested, [{"a": 1, "b": {"c": "x"}}, {"a": None, "b": None}, {"a": 2, "b": {"c": None}}, None]),
    "array": (pa.list_(pa.field("element", pa.string())), [[], ["a", None], [_LONG], None]),
    "array_of_structs": (pa.list_(pa.field("element", _nested)), [[], [{"a": 1, "b": {"c": "x"}}, None], None]),
    "map": (pa.map_(pa.string(), pa.field("value", pa.int64())), [[], [("k", 1), ("l", None)], None]),
    "map_of_arrays": (
        pa.map_(pa.int32(), pa.field("value", pa.list_(pa.field("element", pa.decimal128(10, 2))))),
        [[(1, [decimal.Decimal("1.50"), None])], [(-(2**31), [])], None],
    ),
}

KEYS: dict[str, list[Any]] = {
    name: [value for value in values if value is not None]
    for name, (kind, values) in TYPES.items()
    if not pa.types.is_nested(kind)
}

PARTITIONS: dict[str, tuple[pa.DataType, list[Any]]] = {
    name: TYPES[name]
    for name in (
        "byte",
        "short",
        "integer",
        "long",
        "boolean",
        "date",
        "timestamp",
        "timestamp_ntz",
        "decimal_18_6",
        "decimal_38_0",
    )
} | {
    "string": (
        pa.string(),
        [
            "",
            " ",
            "a b",
            "a/b",
            "../up",
            "50%",
            "%20",
            "k=v",
            "k=v/x=y",
            "a'b\"c",
            "ü 👍",
            "*?[a]",
            "null",
            "\\N",
            "__HIVE_DEFAULT_PARTITION__x",
            None,
        ],
    ),
}

ODD_NAMES = [
    "ü",
    "a.b",
    "a`b",
    'say"so"',
    "it's",
    "a-b",
    "select",
    "%41",
    "a/b",
    "a:b",
    "$a",
    "👍",
    "file_row_number",
    "filename",
    "file_index",
    "row",
    "part",
    "probe",
    "op",
    "_op",
    "*",
    "[x]",
    "a\\b",
]
MAPPED_NAMES = [
    "Order Date", "unit,price", "Ship (To)", "a;b{c}d=e", "a\tb", "a\nb", "a\rb", " ", " padded ", "per cent %", "a b.c`d\"e'f",
    "İstanbul", "ırmak", "Straße", "ΟΔΟΣ", "日本",
]  # fmt: skip
"""Those of people and of other databases: most of them need column mapping."""
