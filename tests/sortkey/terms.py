"""Rows of every type, sort keys over them, and what plain Python says of their values."""

from __future__ import annotations

import datetime
import functools
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakebed.sortkey.sort_key import SortTerm
from tests.table.values import TYPES, UTC

_DAY = datetime.date(2026, 3, 1)
_NOON = datetime.datetime(2026, 3, 1, 12)
_MORE: dict[str, list[Any]] = {
    "long": [-1, 1, 7, 2**40],
    "double": [-1.5, 1e-300, 2.0, 3.0],
    "string": ["a", "ab", "ä", "äb", "z", "zz" * 30],
    "binary": [b"a", b"ab", b"\x00", b"\xff\xff"],
    "date": [_DAY, _DAY + datetime.timedelta(days=1), datetime.date(1969, 1, 31)],
    "timestamp": [_NOON.replace(tzinfo=UTC), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)],
    "timestamp_ntz": [_NOON, _NOON + datetime.timedelta(minutes=90)],
    "decimal_38_38": [Decimal("0.1"), Decimal("-0.1")],
    "decimal_38_0": [Decimal(5), Decimal(-5), Decimal(2**70)],
}
COLUMNS = {
    name: (kind, [*values, *_MORE.get(name, [])])
    for name, (kind, values) in TYPES.items()
    if not pa.types.is_nested(kind)
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
PLAIN = sorted(COLUMNS)
MOMENTS = ["timestamp", "timestamp_ntz"]
TEXTS = ["string", "binary"]


def random_rows(rng: random.Random, count: int) -> pa.Table:
    return pa.table({name: pa.array(rng.choices(values, k=count), kind) for name, (kind, values) in COLUMNS.items()})


def random_key(rng: random.Random, curves: bool = True) -> list[str]:
    """A sort key of up to three terms, or one of a curve."""
    if curves and rng.random() < 0.2:
        return [f"{rng.choice(['zorder', 'hilbert'])}({', '.join(rng.sample(PLAIN, rng.randrange(2, 5)))})"]
    expressions = {
        rng.choice(
            [
                rng.choice(PLAIN),
                f"{rng.choice(['date', 'year', 'month', 'day'])}({rng.choice(['date', *MOMENTS])})",
                f"hour({rng.choice(MOMENTS)})",
                f"substr({rng.choice(TEXTS)}, {rng.choice([1, 1, 2])}, {rng.choice([1, 2, 40])})",
                f"bucket({rng.choice([1, 3, 1000])}, {rng.choice(['long', 'date', 'string', 'decimal_38_38'])})",
            ]
        )
        for _ in range(rng.randrange(1, 4))
    }
    return [
        each + rng.choice(["", " asc", " desc"]) + rng.choice(["", " nulls first", " nulls last"])
        for each in sorted(expressions)
    ]


def value_of(term: SortTerm, row: dict[str, Any]) -> Any:
    """The value of a term that is no bucket and no curve."""
    value = row[term.columns[0]]
    if value is None or term.is_plain:
        return value
    if isinstance(value, datetime.datetime):
        value = value.replace(tzinfo=None)
        moment = value
        value = value.date()
    match term.function:
        case "date":
            return value
        case "year":
            return value.year - 1970
        case "month":
            return (value.year - 1970) * 12 + value.month - 1
        case "day":
            return (value - datetime.date(1970, 1, 1)).days
        case "hour":
            return (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(hours=1)
        case "substr":
            start, length = term.numbers
            return value[start - 1 : start - 1 + length]
    raise AssertionError(term)


def sorted_places(terms: list[tuple[bool, bool]], rows: list[list[Any]]) -> list[int]:
    """The places of rows, each a list of values of terms that are (descending, nulls last) or not."""

    def compare(one: int, other: int) -> int:
        for (is_descending, nulls_last), a, b in zip(terms, rows[one], rows[other], strict=True):
            if a is None or b is None:
                if a is not b:
                    return (1 if nulls_last else -1) * (1 if a is None else -1)
                continue
            ranked = [((v != v), 0 if v != v else v.encode() if isinstance(v, str) else v) for v in (a, b)]
            if ranked[0] != ranked[1]:
                return (1 if ranked[0] > ranked[1] else -1) * (-1 if is_descending else 1)
        return 0

    return sorted(range(len(rows)), key=functools.cmp_to_key(compare))
