"""Looking rows up: exactly the rows of the keys, whatever state the table is in, from the parts and row groups that hold them."""

from __future__ import annotations

import datetime
import decimal
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput
from lakebed.parts.write import ROW_GROUP_ROWS
from lakebed.view import lookup
from tests.view.damage import UNVERIFIED, keep_row_groups
from tests.worlds import seeds

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("shop", pa.string()),
        ("x", pa.float64()),
        ("region", pa.string()),
        ("tags", pa.list_(pa.string())),
    ]
)


def rows_of(rng: random.Random, ids: list[int]) -> pa.Table:
    columns = {
        "id": ids,
        "shop": [f"shop {id % 7}" for id in ids],
        "x": [rng.choice([0.0, -0.0, float("nan"), rng.random(), None]) for _ in ids],
        "region": ["eu" if id % 2 else "us" for id in ids],
        "tags": [rng.choice([None, [], ["a", None]]) for _ in ids],
    }
    return pa.table(columns, SCHEMA)


def plain(rows: pa.Table) -> list[str]:
    return sorted(repr(row) for row in rows.to_pylist())


@pytest.mark.few(2)
@seeds(4)
def test_a_lookup_gives_the_rows_of_its_keys_and_no_other(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(lookup, "ROWS_MAX", rng.choice([-1, 20, 2000]))
    keys = rng.choice([["id"], ["id", "shop", "region"]])
    sort_key = rng.choice([[], ["shop"], ["x", "id"]])
    partition_by = ["region"] if "region" in keys else []
    table = lakebed.create(tmp_path / "t", SCHEMA, keys, sort_key, partition_by=partition_by)
    table.set_properties({"lakebed.read_budget": "1"})
    for _ in range(5):
        batch = rows_of(rng, rng.sample(range(300), 60))
        ops = pa.array([rng.choice("uuud") for _ in range(60)])
        table.apply(batch.append_column("op", ops), apply_as_deletes="op = 'd'")
        if rng.random() < 0.6:
            table.settle()
        if rng.random() < 0.4:
            table.maintenance.compact()
    everything = table.to_arrow()
    for count in (1, 3, 70):
        wanted = rows_of(rng, rng.choices(range(400), k=count)).select(rng.choice([keys, ["id"], ["shop"], ["x"]]))
        values = {tuple(_same(value) for value in row.values()) for row in wanted.to_pylist()}
        mask = [
            tuple(_same(value) for value in row.values()) in values and None not in row.values()
            for row in everything.select(wanted.column_names).to_pylist()
        ]
        for reader in (table, lakebed.open(tmp_path / "t")):  # with a key index, if it was settled, and without one
            assert plain(reader.lookup(wanted)) == plain(everything.filter(pa.array(mask)))
            assert reader.lookup(wanted, []).num_rows == sum(mask)


def _same(value: Any) -> Any:
    """NaN equals itself, and -0.0 is 0.0."""
    return "nan" if value != value else value


def test_values_alone_are_those_of_the_one_key(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    table.apply(rows_of(random.Random(1), list(range(10))))
    assert sorted(table.lookup([3, 5, 5, 99], columns=["id"])["id"].to_pylist()) == [3, 5]
    assert table.lookup([]).num_rows == 0
    assert table.lookup(pa.table({"id": pa.array([3], pa.int16())}), columns=["region"])["region"].to_pylist() == ["eu"]
    table.delete("id = 3")
    assert table.lookup([3]).num_rows == 0
    assert table.lookup([3], version=1).num_rows == 1


def test_a_key_is_sought_in_its_own_partition(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("region", pa.string()), ("v", pa.string())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id", "region"], partition_by=["region"])
    table.apply([{"id": id, "region": region, "v": f"{id} {region}"} for id in (1, 2) for region in ("eu", "us")])
    table.settle()
    found = lakebed.open(tmp_path / "t").lookup([{"id": 1, "region": "us"}, {"id": 2, "region": "eu"}])
    assert sorted(found["v"].to_pylist()) == ["1 us", "2 eu"]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (pa.table({"idd": [1]}), "there is no column 'idd'"),
        (pa.table({}), "at least one column"),
        (["a"], r"do not fit id \(int64\)"),
        ([1, "a"], r"do not fit id \(int64\)"),
        ([2**70], r"do not fit id \(int64\)"),
        (pa.table({"id": ["1.5"]}), r"do not fit id \(int64\)"),
    ],
)
def test_what_can_not_be_looked_up_is_reported(keys: Any, says: str, tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    with pytest.raises(InvalidInput, match=says):
        table.lookup(keys)
    two = lakebed.create(tmp_path / "two", SCHEMA, keys=["id", "shop"])
    with pytest.raises(InvalidInput, match="2 key columns"):
        two.lookup([1])


def test_columns_named_like_the_numbers_of_duckdb_are_columns(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("file_index", pa.int64()), ("File_Row_Number", pa.int64())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])
    table.apply(pa.table({"id": range(100), "file_index": range(100), "File_Row_Number": range(100)}, schema))
    table.settle()
    table.delete("id < 50")
    table.settle()
    assert table.lookup([10, 70]).to_pylist() == [{"id": 70, "file_index": 70, "File_Row_Number": 70}]


def test_parts_and_row_groups_that_can_not_hold_the_keys_are_not_read(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], properties=UNVERIFIED)
    for start in (0, 200_000, 400_000):
        table.apply(pa.table({"id": range(start, start + 100_000), "x": [0.5] * 100_000}))
    table.settle()
    first, second, third = (tmp_path / "t" / path for path in sorted_by_block(table))
    first.unlink()
    keep_row_groups(second, {0})
    keep_row_groups(third, {2})
    wanted = [200_000, 200_007, 499_990, 350_000]
    assert sorted(table.lookup(wanted, ["id"])["id"].to_pylist()) == [200_000, 200_007, 499_990]
    assert table.to_arrow(where=f"id in ({', '.join(map(str, wanted))})").num_rows == 3


GROUPS = 4


@pytest.fixture
def scattered(tmp_path: Path) -> lakebed.Table:
    """One part, in the order of ``place``, the row's number; its keys are far apart and in no order."""
    count = GROUPS * ROW_GROUP_ROWS
    keys = np.random.default_rng(1).permutation(count) * 10_000
    schema = pa.schema([("id", pa.int64()), ("place", pa.int64()), ("x", pa.float64())])
    table = lakebed.create(tmp_path / "scattered", schema, keys=["id"], sort_key=["place"], properties=UNVERIFIED)
    table.apply(pa.table({"id": keys, "place": range(count), "x": [0.5] * count}, schema))
    table.settle()
    return table


def test_a_reader_decodes_other_columns_than_the_sought_ones_only_where_the_rows_are(scattered: lakebed.Table) -> None:
    wanted = [*range(10), *range(ROW_GROUP_ROWS * 3, ROW_GROUP_ROWS * 3 + 10)]
    keys = scattered.to_arrow(["id"], where=f"place in ({', '.join(map(str, wanted))})")["id"].to_pylist()
    [part] = scattered.inspect.parts()["path"].to_pylist()
    keep_row_groups(Path(scattered.path, part), {0, 3}, columns_kept={"id"})
    found = lakebed.open(scattered.path).lookup(keys)
    assert sorted(found["place"].to_pylist()) == wanted


def test_a_process_with_a_key_index_reads_only_the_row_groups_of_the_keys(scattered: lakebed.Table) -> None:
    place = ROW_GROUP_ROWS + 5
    keys = scattered.to_arrow(["id"], where=f"place = {place}")["id"].to_pylist()
    [part] = scattered.inspect.parts()["path"].to_pylist()
    keep_row_groups(Path(scattered.path, part), {1})
    assert scattered.lookup(keys)["place"].to_pylist() == [place]
    assert scattered.lookup([key + 1 for key in keys]).num_rows == 0


def sorted_by_block(table: lakebed.Table) -> list[str]:
    return [part["path"] for part in sorted(table.inspect.parts().to_pylist(), key=lambda part: part["min_block"])]


def test_a_key_is_sought_as_it_is_or_refused(tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.date32()), ("price", pa.decimal128(10, 2))])
    table = lakebed.create(tmp_path / "t", schema, keys=["day"])
    day = datetime.date(2024, 1, 5)
    table.apply(pa.table({"day": [day], "price": [decimal.Decimal(3)]}, schema))
    assert table.lookup([day]).num_rows == 1
    assert table.lookup([datetime.datetime(2024, 1, 5)]).num_rows == 1
    assert table.lookup(pa.table({"price": [1, 3]})).num_rows == 1
    for wrong in ([datetime.datetime(2024, 1, 5, 13)], "12", 12):
        with pytest.raises(InvalidInput, match="look up"):
            table.lookup(wrong)  # type: ignore[arg-type]
