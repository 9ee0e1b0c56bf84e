"""Decimals are exact or refused, in every spelling, whatever stands beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.json_rows import JsonRows
from tests.decode.records import event, records, with_schema
from tests.decode.test_logical_types import b64

TYPES = [
    (1, 0),
    (1, 1),
    (5, 2),
    (18, 6),
    (19, 19),
    (20, 18),
    (37, 0),
    (38, 0),
    (38, 10),
    (38, 37),
    (38, 38),
]


def write_spec_of(target: pa.DataType) -> DecoderSchema:
    return DecoderSchema(pa.schema([pa.field("id", pa.int64(), False), pa.field("n", target)]), ("id",))


def held(text: str, precision: int, scale: int) -> Decimal | None:
    """What a decimal(precision, scale) makes of digits; None if it can't hold them."""
    context = Context(precision, Emax=999_999, Emin=-999_999, traps=[InvalidOperation, Inexact])
    try:
        return Decimal(text).quantize(Decimal((0, (1,), -scale)), context=context)
    except (InvalidOperation, Inexact):
        return None


def at_the_borders(precision: int, scale: int) -> Iterator[str]:
    """Numbers of about as many digits as fit before and after the point, and as many as the bits of Arrow's types hold."""
    for digits in {precision - scale, precision, precision + 1, 38 - scale, 38, 39, 77}:
        for first in "19":
            whole = first * max(digits, 1)
            yield whole
            yield f"-{whole}"
            yield f"{whole}e-{scale}"
            for fraction in {1, scale, scale + 1}:
                yield f"{whole[: max(1, digits - fraction)]}.{'7' * max(1, fraction)}"
                yield f"0.{'0' * (fraction - 1)}7"
    yield from ("0", "-0", "0.0", "1e37", "1e38", "1e-38", "1E+2", "0e5", "1.50000000000000000000000000000000000000000")


def values_of(decoded: Decoded, count: int) -> list[Decimal | None]:
    """The values of the records by their ids, None for those in the quarantine."""
    assert decoded.changes.num_rows + decoded.quarantined.num_rows == count
    found = {row["id"]: row["n"] for row in decoded.changes.to_pylist()}
    return [found.get(i) for i in range(count)]


@pytest.mark.few(8)
@pytest.mark.slow
@pytest.mark.parametrize(("precision", "scale"), TYPES)
@pytest.mark.parametrize("quoted", [False, True])
def test_digits_at_the_borders_of_precision_and_scale_are_exact_or_refused(
    precision: int, scale: int, quoted: bool
) -> None:
    texts = list(at_the_borders(precision, scale))
    decoder = DebeziumJson(write_spec_of(pa.decimal128(precision, scale)), JsonOptions(decimal_text="string"))
    written = [json.dumps(text) if quoted else text for text in texts]
    events = [f'{{"op":"c","after":{{"id":{i},"n":{text}}}}}' for i, text in enumerate(written)]
    expected = [held(text, precision, scale) for text in texts]
    together = values_of(decoder.decode(records(events)), len(texts))
    each_by_columns = [
        values_of(decoder.decode(records([one.replace(f'"id":{i}', '"id":0')])), 1)[0] for i, one in enumerate(events)
    ]
    assert together == expected
    assert each_by_columns == expected


@pytest.mark.parametrize(("precision", "scale"), TYPES)
@pytest.mark.parametrize("source_scale", [0, 38])
def test_unscaled_bytes_at_the_borders_are_exact_or_refused(precision: int, scale: int, source_scale: int) -> None:
    numbers = [
        sign * (10**digits + step)
        for digits in (0, 1, precision - scale, precision, 36, 37, 38)
        for step in (-1, 0)
        for sign in (1, -1)
    ]
    fields = [
        {"type": "int64", "field": "id"},
        {
            "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": str(source_scale)},
            "field": "n",
        },
    ]  # fmt: skip
    expected = [held(f"{number}e-{source_scale}", precision, scale) for number in numbers]
    decoder = DebeziumJson(write_spec_of(pa.decimal128(precision, scale)))
    events = [with_schema(event("c", {"id": i, "n": b64(number)}), fields) for i, number in enumerate(numbers)]
    assert values_of(decoder.decode(records(events)), len(numbers)) == expected
    for one, wanted in zip(events, expected, strict=True):
        assert decoder.decode(records([one])).changes["n"].to_pylist() == ([] if wanted is None else [wanted])


AMBIGUOUS = ["1234", "12345678", "1e10", "+123", "Infinity"]
BESIDE: list[list[Any]] = [[None] * 60, ["12.50"] * 60, ["AQI="] * 60, [7] * 60, ["12.50", "AQI=", None, 7] * 15, []]


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("text", AMBIGUOUS)
def test_a_text_that_may_be_digits_or_base64_is_never_guessed(text: str, beside: list[Any]) -> None:
    decoder = DebeziumJson(write_spec_of(pa.decimal128(38, 2)))
    decoder.decode(records([event("c", {"id": i, "n": value}) for i, value in enumerate(beside)]))
    decoded = decoder.decode(records([event("c", {"id": i, "n": value}) for i, value in enumerate([text, *beside])]))
    assert 0 not in decoded.changes["id"].to_pylist()
    [reason] = decoded.quarantined["reason"].to_pylist()
    assert "set decimal_text to 'string' or 'precise'" in reason


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("auto", "AQI=", "2.58"),
        ("auto", "12.50", "12.50"),
        ("auto", "-1234", "-1234.00"),
        ("auto", "123", "123.00"),
        ("precise", "1234", "-26588.24"),
        ("precise", "AQI=", "2.58"),
        ("string", "1234", "1234.00"),
        ("string", "1e2", "100.00"),
    ],
)
def test_what_a_text_means_does_not_depend_on_its_neighbours(
    form: Any, text: str, expected: str, beside: list[Any]
) -> None:
    decoder = DebeziumJson(write_spec_of(pa.decimal128(38, 2)), JsonOptions(decimal_text=form))
    decoder.decode(records([event("c", {"id": i, "n": value}) for i, value in enumerate(beside)]))
    decoded = decoder.decode(records([event("c", {"id": i, "n": value}) for i, value in enumerate([text, *beside])]))
    assert decoded.changes.to_pylist()[0]["n"] == Decimal(expected)


def test_flat_objects_hold_digits_unless_a_setting_says_otherwise() -> None:
    values = [{"id": 1, "n": "1234"}, {"id": 2, "n": "12.50"}, {"id": 3, "n": "null"}, {"id": 4, "n": "AQI="}]
    decoded = JsonRows(write_spec_of(pa.decimal128(12, 2))).decode(records(values))
    assert decoded.changes["n"].to_pylist() == [Decimal("1234.00"), Decimal("12.50")]
    assert all("set decimal_text to 'precise'" in reason for reason in decoded.quarantined["reason"].to_pylist())
    precise = JsonRows(write_spec_of(pa.decimal128(12, 2)), JsonOptions(decimal_text="precise")).decode(
        records(values[3:])
    )
    assert precise.changes["n"].to_pylist() == [Decimal("2.58")]


@pytest.mark.parametrize("name", ['"n"', '"\\u006e"', '"n" '])
def test_a_text_beside_numbers_is_no_number_however_its_name_is_spelled(name: str) -> None:
    values = [*([event("c", {"id": 1, "n": 7})] * 40), f'{{"op":"c","after":{{"id":2,{name}: "1234"}}}}']
    decoded = DebeziumJson(write_spec_of(pa.decimal128(12, 2)), JsonOptions(decimal_text="precise")).decode(
        records(values)
    )
    assert decoded.changes["n"].to_pylist()[-1] == Decimal("-26588.24")
