"""Ranges of keys rule out only what can't be."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pytest

from lakebed.log.actions import Part
from lakebed.parts.changes import WriteSpec
from lakebed.parts.part_filter import KeyRanges

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("x", pa.float64()),
    ]
)


def part(
    low: dict[str, Any] | None, high: dict[str, Any] | None = None, path: str = "_lakebed/a.parquet", **values: str
) -> Part:
    stats = None if low is None else orjson.dumps({"minValues": low, "maxValues": high or low}).decode()
    return Part(path=path, rows=1, bytes=1, stats=stats, partition_values=values)


@pytest.mark.parametrize(
    ("keys", "one", "other", "meets"),
    [
        (("id",), part({"id": 1}, {"id": 5}), part({"id": 5}, {"id": 9}), True),
        (("id",), part({"id": 1}, {"id": 5}), part({"id": 6}, {"id": 9}), False),
        (("id",), part({"id": 1}, {"id": 5}), part(None), True),
        (("id",), part({"id": 1}, {"id": 5}), part({"name": "a"}), True),
        (("id", "name"), part({"id": 1, "name": "a"}), part({"id": 1, "name": "b"}), False),
        (("id", "name"), part({"id": 1, "name": "a"}), part({"id": 1}), True),
        (("name",), part({"name": "a"}, {"name": "ü"}), part({"name": "z"}, {"name": "zz"}), True),
        (("day",), part({"day": "2026-01-01"}), part({"day": "2026-01-02"}), False),
        (("day",), part({"day": "+12026-01-01"}), part({"day": "2026-01-02"}), True),  # beyond the years that Python knows
        (("at",), part({"at": "2026-01-01T00:00:00.000Z"}), part({"at": "2026-01-01T00:00:00.001Z"}), True),  # within one ms
        (("at",), part({"at": "2026-01-01T00:00:00.000Z"}), part({"at": "2026-01-01T00:00:00.002Z"}), False),
        (("day", "id"), part({"id": 1}, day="2026-01-01"), part({"id": 1}, day="2026-01-02"), False),
        (("day", "id"), part({"id": 1}, day="2026-01-01"), part({"id": 1}, day=""), True),
        (("x",), part({"x": 1.0}), part({"x": 2.0}), False),
        (("x",), part({"x": 1.0}, path="of-another-writer.parquet"), part({"x": 2.0}), True),  # who leaves NaN out
    ],
)  # fmt: skip
def test_parts_whose_ranges_are_apart_in_one_column_have_no_common_key(
    keys: tuple[str, ...], one: Part, other: Part, meets: bool
) -> None:
    spec = WriteSpec(schema=SCHEMA, keys=keys)
    assert KeyRanges.of([one], spec).may_meet(other) is meets
    assert KeyRanges.of([other], spec).may_meet(one) is meets
    assert not KeyRanges.of([], spec).may_meet(one)


def test_a_part_of_the_partition_counts_whatever_its_keys_are() -> None:
    spec = WriteSpec(schema=SCHEMA, keys=("id",))
    ranges = KeyRanges.of([part({"id": 1})], spec, (("day", "2026-01-01"),).__eq__)
    assert ranges.may_meet(part({"id": 9}, day="2026-01-01"))
    assert not ranges.may_meet(part({"id": 9}, day="2026-01-02"))
