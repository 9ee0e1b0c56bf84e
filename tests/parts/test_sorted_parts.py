"""Parts of tables with a sort key of any terms: their order, what their ranges say, and what foreign readers are told."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from lakebed.log.actions import Part
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.merge.reader import MergeLimits
from lakebed.parts.changes import OP_COLUMN, WriteSpec
from lakebed.parts.write import write_parts
from lakebed.sortkey.order_values import order_values
from lakebed.sortkey.ranges import ORDER_BOUNDS, Range, mirrored, order_columns, range_of
from lakebed.sortkey.sort_key import SORT_KEY_FRAME, SortTerm, frame_properties, parse_sort_key
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect
from tests.sortkey.terms import SCHEMA, random_key, random_rows, sorted_places
from tests.worlds import seeds

NUMBERED = SCHEMA.append(pa.field("id", pa.int64()))


def numbered(rng: random.Random, start: int, count: int) -> pa.Table:
    return random_rows(rng, count).append_column("id", pa.array(range(start, start + count)))


def written(folder: Path, rows: pa.Table, spec: WriteSpec) -> Part:
    [part] = write_parts(rows, spec, open_part_storage(folder))
    return part.base_part(has_op_column=False)


def merged(folder: Path, parts: Sequence[Part], spec: WriteSpec, **options: Any) -> list[MergedPart]:
    sources = [MergeSource(part, BitMap64(), False, str(folder / part.path)) for part in parts]
    return merge_parts(sources, spec, open_part_storage(folder), connect(threads=1), **options)


def ids(folder: Path, parts: Sequence[Part | MergedPart]) -> list[int]:
    return [
        number for part in parts for number in pq.read_table(folder / part.path, partitioning=None)["id"].to_pylist()
    ]


def with_frame(key: list[str], parts: Sequence[Part]) -> WriteSpec:
    """A table of this sort key that was set when these parts were its base."""

    class Base:
        def __init__(self) -> None:
            self.parts = {part.path: part for part in parts}

    frame = frame_properties(parse_sort_key(key, NUMBERED), Base())
    return WriteSpec(schema=NUMBERED, sort_key=tuple(key), sort_key_frame=frame.get(SORT_KEY_FRAME, ""))


@seeds(10, quick=4)
def test_a_merge_sorts_in_memory_and_spilling_as_plain_python_sorts(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    tables = [numbered(rng, 100 * at, rng.randrange(1, 60)) for at in range(3)]
    unsorted = [written(tmp_path, table, WriteSpec(schema=NUMBERED)) for table in tables]
    spec = with_frame(random_key(rng), rng.choice([unsorted, []]))
    rows = pa.concat_tables(tables)
    values = [order_values(rows, term).to_pylist() for term in spec.terms]
    directions = [(term.is_descending, term.nulls_last) for term in spec.terms]
    order = sorted_places(directions, [list(row) for row in zip(*values, strict=True)])
    expected = rows["id"].take(pa.array(order)).to_pylist()
    for key_copies in (2, 1 << 60):
        found = merged(tmp_path, unsorted, spec, limits=MergeLimits(key_copies=key_copies))
        assert ids(tmp_path, found) == expected, spec.order_by
    assert ids(tmp_path, [written(tmp_path, rows, spec)]) == expected


def key_of(values: Sequence[Any], terms: Sequence[SortTerm]) -> tuple[Any, ...]:
    """A row's place on the line of sort keys; NaN is above all numbers."""
    out: tuple[Any, ...] = ()
    for value, term in zip(values, terms, strict=True):
        if value is None:
            out += (1.5, None) if term.nulls_last else (0, None)
        elif value != value:
            out += (0.5 if term.is_descending else 1.25, None)
        else:
            value = value.encode() if isinstance(value, str) else value
            if term.type == pa.timestamp("us"):
                value = pa.scalar(value, term.type).cast(pa.timestamp("us", "UTC")).as_py()
            out += (1, mirrored(value) if term.is_descending else value)
    return out


def assert_holds(told: Range, rows: pa.Table, terms: Sequence[SortTerm]) -> None:
    values = [order_values(rows, term).to_pylist() for term in terms]
    for row in zip(*values, strict=True):
        key = key_of(row, terms)
        assert told.lower <= key, (told, key)
        assert key <= told.upper or key == told.upper[: len(key)], (told, key)


@seeds(15, quick=5)
def test_the_range_of_a_part_holds_the_key_of_each_of_its_rows(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    tables = [numbered(rng, 100 * at, rng.randrange(1, 30)) for at in range(2)]
    unsorted = [written(tmp_path, table, WriteSpec(schema=NUMBERED)) for table in tables]
    spec = with_frame(random_key(rng), rng.choice([unsorted, []]))
    terms = order_columns(NUMBERED, spec.order_by, (), spec.sort_key_frame)
    parts = merged(tmp_path, [written(tmp_path, table, spec) for table in tables], spec, rows_max=rng.choice([7, 1000]))
    for part in [*parts, *unsorted]:
        rows = pq.read_table(tmp_path / part.path, partitioning=None)
        whole = part.stats or ""
        by_columns = whole.partition(f',"{ORDER_BOUNDS}"')
        for text in (whole, by_columns[0] + "}" * bool(by_columns[1])):
            assert_holds(range_of(text, terms), rows, terms)
    if terms and "double" not in str(spec.order_by) and "float" not in str(spec.order_by):
        for left, right in itertools.pairwise(range_of(part.stats, terms) for part in parts):
            assert left.lower <= right.lower and left.upper <= right.upper, "parts of a merge lie side by side"


@pytest.mark.parametrize(
    ("key", "is_told"),
    [(["id"], False), (["id desc"], True), (["id nulls last"], True), (["year(date)"], True), (["bucket(4, id)"], True),
     (["hilbert(id, date)"], True), (["id", "date"], True), (["binary", "id"], False)],
)  # fmt: skip
def test_a_part_tells_its_first_and_last_key_where_the_bounds_of_its_columns_say_less(
    key: list[str], is_told: bool, tmp_path: Path
) -> None:
    spec = WriteSpec(schema=NUMBERED, sort_key=tuple(key))
    part = written(tmp_path, numbered(random.Random(1), 0, 9), spec)
    [again] = merged(tmp_path, [part], spec)
    terms = order_columns(NUMBERED, key, ())
    for stats in (orjson.loads(part.stats or ""), orjson.loads(again.stats)):
        assert (ORDER_BOUNDS in stats) == is_told
        if is_told:
            assert stats[ORDER_BOUNDS]["columns"] == [term.name for term in terms] == key


_URL = "https://www.example.com/products/"
_MOMENT = dt.datetime(2024, 1, 1)


@pytest.mark.parametrize("order", ["", " desc", " nulls last"])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), [_URL * 5 + f"{number:03}" for number in range(40)]),
        (pa.string(), ["a" * 200 + "\U0010ffff" * 300 + str(number) for number in range(3)] + ["b", "c", "d"]),
        (pa.timestamp("us"), [_MOMENT + dt.timedelta(microseconds=number) for number in range(40)]),
        (pa.timestamp("us", "UTC"), [_MOMENT + dt.timedelta(microseconds=number) for number in range(40)]),
        (pa.timestamp("us"), [dt.datetime.min, *[_MOMENT] * 3, *[dt.datetime.max] * 8]),
        (pa.timestamp("us"), [-(2**63), *range(30), *[2**62 + number for number in range(8)]]),
        (pa.date32(), [-(2**31), *range(30), *[2**30 + number for number in range(8)]]),
    ],
)
def test_parts_of_a_merge_overlap_in_no_more_than_one_value_however_alike_values_are(
    kind: pa.DataType, values: list[Any], order: str, tmp_path: Path
) -> None:
    schema = pa.schema([("value", kind)])
    spec = WriteSpec(schema=schema, sort_key=("value" + order,))
    terms = order_columns(schema, spec.order_by, ())
    rows = pa.table({"value": pa.array([*values, None], kind)}, schema)
    parts = merged(tmp_path, [written(tmp_path, rows, spec)], spec, rows_max=4)
    ranges = [range_of(part.stats, terms) for part in parts]
    beyond = {-(2**63), -(2**31), 2**62, 2**30} & set(values)
    overlapping = sum(right.lower < left.upper for left, right in itertools.pairwise(ranges))
    assert overlapping <= (2 if beyond or "\U0010ffff" in str(values[0]) else 0), ranges
    assert len(parts[0].stats) < 4_000, "what all texts begin with is not kept without end"


@pytest.mark.parametrize(
    "key", [["count"], ["count desc"], ["count", "id"], ["name nulls last"], ["hilbert(count, id)"]]
)
def test_deletes_do_not_widen_the_range_of_a_part(key: list[str], tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), ("count", pa.int64()), ("name", pa.string())])
    spec = WriteSpec(schema=schema, keys=("id",), sort_key=tuple(key))
    terms = order_columns(schema, spec.order_by, ())
    live = pa.table({"id": range(50, 90), "count": range(40), "name": [f"n{place:02}" for place in range(40)]}, schema)
    deletes = pa.table({"id": range(20), "count": [None] * 20, "name": [None] * 20}, schema)
    both = pa.concat_tables([live, deletes]).append_column(OP_COLUMN, pa.array(["u"] * 40 + ["d"] * 20))
    part, plain = written(tmp_path, both, spec), written(tmp_path, live, spec)
    wanted = range_of(plain.stats, terms)
    assert range_of(part.stats, terms) == wanted
    assert wanted.is_bounded and (0, None) not in (wanted.lower[:2], wanted.upper[:2])
    ops = pq.read_table(tmp_path / part.path, partitioning=None)[OP_COLUMN].to_pylist()
    dead = BitMap64(row for row, op in enumerate(ops) if op == "d")
    source = MergeSource(replace(part, has_op_column=True, deletes=20), dead, True, str(tmp_path / part.path))
    [merge] = merge_parts([source], spec, open_part_storage(tmp_path), connect(threads=1))
    assert (merge.deletes, range_of(merge.stats, terms)) == (20, wanted)


def test_a_part_sorted_by_short_texts_tells_no_more_than_the_bounds_of_its_column(tmp_path: Path) -> None:
    schema = pa.schema([("value", pa.string())])
    for text, is_told in (("a" * 32, False), ("a" * 33, True)):
        part = written(
            tmp_path, pa.table({"value": [None, "", text]}, schema), WriteSpec(schema=schema, sort_key=("value",))
        )
        assert (ORDER_BOUNDS in orjson.loads(part.stats or "")) == is_told


def test_the_last_moment_of_the_year_9999_leaves_a_column_its_bounds(tmp_path: Path) -> None:
    schema = pa.schema([("value", pa.timestamp("us"))])
    rows = pa.table({"value": [_MOMENT, dt.datetime.max]}, schema)
    part = written(tmp_path, rows, WriteSpec(schema=schema))
    assert orjson.loads(part.stats or "")["maxValues"] == {"value": "9999-12-31T23:59:59.999999"}
    latest = dt.datetime.max.replace(tzinfo=dt.UTC)
    found = range_of(part.stats, order_columns(schema, ["value"], ()))
    assert found.upper == (1, latest) and found.lower == (1, _MOMENT.replace(tzinfo=dt.UTC))


def test_a_part_of_another_sort_key_is_placed_by_its_columns_alone(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3]})
    schema = pa.schema([("id", pa.int64())])
    part = written(tmp_path, rows, WriteSpec(schema=schema, sort_key=("id desc",)))
    assert range_of(part.stats, order_columns(schema, ["id desc"], ())) == Range((1, -3), (1, -1))
    assert range_of(part.stats, order_columns(schema, ["id"], ())) == Range((1, 1), (1, 3))
    assert range_of(part.stats, order_columns(schema, ["bucket(2, id)"], ())) == Range()


def test_footers_say_what_leading_columns_a_part_is_sorted_by(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.struct([("x", pa.int64()), ("y", pa.int64())])), *NUMBERED])

    def told(*key: str) -> list[tuple[str, bool, bool]]:
        rows = pa.table({field.name: pa.nulls(2, field.type) for field in schema})
        spec = WriteSpec(schema=schema, sort_key=key)
        [again] = merged(tmp_path, [written(tmp_path, rows, spec)], spec)
        group = pq.read_metadata(tmp_path / again.path).row_group(0)
        return [
            (group.column(each.column_index).path_in_schema, each.descending, each.nulls_first)
            for each in group.sorting_columns
        ]

    assert told("id desc", "string nulls last") == [("id", True, False), ("string", False, False)]
    assert told("date", "year(timestamp)", "id") == [("date", False, True)]
    assert told("id", "double") == [("id", False, True)], "readers differ on NaN"
    assert told("date(timestamp)") == [] == told("zorder(id, date)")
