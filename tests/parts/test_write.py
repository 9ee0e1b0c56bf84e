"""Invariant S1: a part's rows are in sort-key order, and its statistics hold for every row of it."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import StoreUnavailable
from lakebed.log.actions import Part
from lakebed.parts import order, write
from lakebed.parts.changes import OP_COLUMN, WriteSpec, prepare
from lakebed.parts.order import newest_per_key
from lakebed.parts.part_filter import parts_that_may_overlap
from lakebed.parts.write import write_parts
from lakebed.parts.write_arrow import write_tables
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from tests.worlds import seeds

UTC = dt.UTC
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(20, 4)),
        pa.field("ratio", pa.float64()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
    ]
)


def random_rows(rng: random.Random, count: int) -> list[dict[str, Any]]:
    def some(value: Any) -> Any:
        return None if rng.random() < 0.1 else value

    return [
        {
            "id": rng.randrange(-(2**63), 2**63),
            "name": some("".join(rng.choice("aäß😀\x7f\U0010ffff") for _ in range(rng.choice([0, 3, 31, 32, 33, 60])))),
            "price": some(decimal.Decimal(rng.randrange(-(10**19), 10**19)).scaleb(-4)),
            "ratio": some(rng.choice([rng.uniform(-1e300, 1e300), -0.0, float("inf"), float("nan")])),
            "day": some(dt.date(rng.choice([1, 1582, 1969, 2026, 9999]), 1, 1)),
            "at": some(dt.datetime(rng.choice([1, 1969, 2026]), 3, 4, 5, 6, 7, rng.randrange(10**6), tzinfo=UTC)),
            "local": some(dt.datetime(2026, 3, 4, 5, 6, 7, rng.randrange(10**6))),
        }
        for _ in range(count)
    ]


def written(rows: pa.Table, spec: WriteSpec, folder: Path) -> list[tuple[Any, pa.Table]]:
    storage = open_part_storage(folder)
    return [(part, pq.read_table(folder / part.path)) for part in write_parts(rows, spec, storage)]


def may_hold(part: Part, name: str, least: Any, greatest: Any, schema: pa.Schema) -> bool:
    values = pa.table({name: pa.array([least, greatest], schema.field(name).type)})
    return part in parts_that_may_overlap(
        connect(), [part, Part(path="_lakebed/other", rows=1, bytes=1)], schema, values
    )


@seeds(6, quick=0)
def test_statistics_hold_for_every_row(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    rows = pa.Table.from_pylist(random_rows(rng, rng.choice([1, 5, 80])), SCHEMA)
    [(part, stored)] = written(rows, WriteSpec(schema=SCHEMA), tmp_path)
    stats = orjson.loads(part.stats)
    assert stats["numRecords"] == len(rows) == part.rows
    base = part.base_part(has_op_column=False)
    for name in SCHEMA.names:
        assert stats["nullCount"][name] == stored[name].null_count
        for value in stored[name].drop_null().to_pylist():
            if value == value:
                assert may_hold(base, name, value, value, SCHEMA), (name, value)


def test_statistics_leave_out_a_part_that_can_not_match(tmp_path: Path) -> None:
    rows = pa.table({"id": [5, 9], "name": ["m", "p" * 50]})
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    [(part, _)] = written(rows, WriteSpec(schema=schema), tmp_path)
    base = part.base_part(has_op_column=False)
    assert not may_hold(base, "id", 10, 20, schema)
    assert not may_hold(base, "name", "q", "z", schema)
    assert may_hold(base, "name", "p" * 40, "z", schema)


@pytest.mark.parametrize(
    ("day", "bounds"),
    [
        (0, "1970-01-01"), (-1, "1969-12-31"), (-719_162, "0001-01-01"), (2_932_896, "9999-12-31"),
        (2_932_897, None), (-719_529, None), (-781_103, None), (2**31 - 1, None), (-(2**31), None),
    ],
)  # fmt: skip
def test_a_day_has_bounds_in_the_log_only_if_readers_can_compare_them(
    day: int, bounds: str | None, tmp_path: Path
) -> None:
    schema = pa.schema([("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))])
    microseconds = max(-(2**63), min(day * 86_400_000_000, 2**63 - 1))
    at = pa.array([microseconds], pa.int64()).cast(schema.field("at").type)
    rows = pa.table([pa.array([day], pa.int32()).cast(pa.date32()), at], schema=schema)
    [(part, _)] = written(rows, WriteSpec(schema=schema), tmp_path)
    stats = orjson.loads(part.stats)
    moment = None if bounds is None else f"{bounds}T00:00:00.000Z"
    for of in (stats["minValues"], stats["maxValues"]):
        assert (of.get("day"), of.get("at")) == (bounds, moment)


def test_a_full_disk_is_an_error_that_may_pass_also_at_the_last_bytes() -> None:
    class Full:
        def write_file(self, path: str, writer: Callable[[str], Any]) -> Any:
            return writer("/dev/full")

    rows = pa.table({"id": [1, 2, 3]})
    with pytest.raises(StoreUnavailable, match=r"'/dev/full' could not be written .*No space left"):
        write_tables([rows], rows.schema, [], 1000, cast("PartStorage", Full()))


def test_a_disk_that_fills_in_the_midst_of_a_file_is_such_an_error_too(tmp_path: Path) -> None:
    """By a limit of this process: the beginning of the file is written, and what comes after it is not."""
    rows = pa.table({"id": range(20_000), "note": [hashlib.sha256(b"%d" % n).hexdigest() for n in range(20_000)]})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        with pytest.raises(StoreUnavailable, match=r"could not be written .*File too large.*; check the disk"):
            write_tables([rows], rows.schema, [], 1 << 20, open_part_storage(str(tmp_path)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_rows_are_in_sort_key_order_with_nulls_first(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3, 4], "name": ["b", None, "a", "b"]})
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    [(_, stored)] = written(rows, WriteSpec(schema=schema, sort_key=("name", "id")), tmp_path)
    assert stored["name"].to_pylist() == [None, "a", "b", "b"] and stored["id"].to_pylist() == [2, 3, 1, 4]
    keyed = WriteSpec(schema=schema, keys=("id",))
    [(_, stored)] = written(prepare(rows.take([3, 1, 0, 2]), keyed, connect()), keyed, tmp_path)
    assert stored["id"].to_pylist() == [1, 2, 3, 4], "without a sort key the keys order a part"


def test_a_part_belongs_to_one_partition_and_holds_a_million_rows_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "PART_ROWS_MAX", 3)
    schema = pa.schema([("id", pa.int64()), ("region", pa.string())])
    rows = pa.table({"id": range(10), "region": ["eu", None, "us", "", "eu"] * 2})
    spec = WriteSpec(schema=schema, keys=("id",), partition_by=("region",))
    found = written(prepare(rows, spec, connect()), spec, tmp_path)
    assert all(part.rows <= 3 for part, _ in found)
    assert sum(part.rows for part, _ in found) == 10
    for part, stored in found:
        assert set(stored["region"].to_pylist()) == {part.partition_values["region"]}
    assert {part.partition_values["region"] for part, _ in found} == {"eu", "us", None}


def test_the_newest_change_of_a_key_is_the_last_or_the_one_with_the_highest_sequence() -> None:
    schema = pa.schema([("id", pa.int64()), ("seq", pa.int64()), ("v", pa.string())])
    rows = pa.table({"id": [1, 2, 1, 2, 1], "seq": [5, 1, 9, 1, 7], "v": list("abcde"), OP_COLUMN: ["u"] * 5})
    by_arrival = newest_per_key(rows, WriteSpec(schema=schema, keys=("id",)), connect())
    assert by_arrival["v"].to_pylist() == ["d", "e"]
    by_sequence = newest_per_key(rows, WriteSpec(schema=schema, keys=("id",), sequence_by="seq"), connect())
    assert by_sequence["v"].to_pylist() == ["c", "d"], "of equal sequences the last wins"


def test_a_part_lets_readers_skip_pages_but_never_one_that_may_hold_nan(tmp_path: Path) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("x", pa.float64()), ("n", pa.struct([("x", pa.float32()), ("i", pa.int8())]))]
    )
    nested = [{"x": float("nan"), "i": 1}] * 20_000
    rows = pa.table({"id": range(20_000), "x": [float("nan"), *range(1, 20_000)], "n": nested}, schema)
    [(part, _)] = written(rows, WriteSpec(schema=schema, keys=("id",)), tmp_path)
    footer = pq.read_metadata(tmp_path / part.path).row_group(0)
    chunks = {footer.column(at).path_in_schema: footer.column(at) for at in range(footer.num_columns)}
    assert [name for name, chunk in chunks.items() if chunk.statistics is not None] == ["id", "n.i"]
    assert all(chunk.has_offset_index for chunk in chunks.values()) and chunks["id"].has_column_index
    stats = orjson.loads(part.stats)
    assert "x" not in stats["minValues"] and stats["nullCount"]["x"] == 0
    assert stats["minValues"]["id"] == 0 and stats["maxValues"]["id"] == 19_999


def test_the_newest_of_few_plain_changes_is_the_one_that_a_query_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.string()), ("seq", pa.int64())])
    rng = random.Random(3)
    for case in range(60):
        count = rng.randrange(2, 200)
        rows = pa.table(
            [
                [rng.choice((-1, 0, 1, 2**31 - 1)) for _ in range(count)],
                [rng.choice(("", "a", "A", "ä", "a\u0308", "a\0", "a ")) for _ in range(count)],
                [rng.choice((-(2**63), -1, 0, 1, 2, 2**63 - 1)) for _ in range(count)],
            ],
            schema=schema,
        )
        spec = WriteSpec(
            schema=schema, keys=(("a", "b"), ("a",), ("b",))[case % 3], sequence_by="seq" if case % 2 else None
        )
        few = newest_per_key(rows, spec, connect())
        with monkeypatch.context() as patch:
            patch.setattr(order, "FEW_ROWS_MAX", 0)
            assert few.equals(newest_per_key(rows, spec, connect()))
