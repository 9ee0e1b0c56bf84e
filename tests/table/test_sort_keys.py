"""Tables sorted by expressions, from the first batch to a foreign reader."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

import lakebed
from lakebed.errors import InvalidInput

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("ts", pa.timestamp("us", "UTC")),
        ("region", pa.string()),
        ("amount", pa.float64()),
    ]
)
START = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
KEYS = [
    ["date(ts) desc", "region nulls last"],
    ["month(ts)", "amount desc nulls first", "id"],
    ["substr(region, 1, 1) desc", "hour(ts)"],
    ["bucket(4, id)", "ts"],
    ["zorder(ts, amount, region)"],
    ["hilbert(id, ts)"],
]


def changes(rng: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "ts": rng.choice([None, START + datetime.timedelta(minutes=rng.randrange(100_000))]),
            "region": rng.choice([None, "eu", "us", "ä"]),
            "amount": rng.choice([None, float("inf"), rng.random()]),
        }
        for number in rng.sample(range(500), count)
    ]


def filled(folder: Path, key: Sequence[str]) -> tuple[lakebed.Table, dict[int, dict[str, Any]]]:
    rng = random.Random(str(key))
    table = lakebed.create(folder, SCHEMA, keys=["id"], sort_key=key, properties={"lakebed.read_budget": "2"})
    rows: dict[int, dict[str, Any]] = {}
    for _ in range(8):
        batch = changes(rng, 100)
        table.apply(pa.Table.from_pylist(batch, SCHEMA))
        rows |= {row["id"]: row for row in batch}
        table.settle()
    return table, rows


def by_id(rows: pa.Table) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in rows.to_pylist()}


def foreign(folder: Path, where: str) -> dict[int, dict[str, Any]]:
    """What DataFusion reads through delta-rs."""
    query = f"select id, ts, region, amount from t where {where}"
    return by_id(pa.table(QueryBuilder().register("t", DeltaTable(str(folder))).execute(query)))


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_table_sorted_by_expressions_is_merged_and_read_by_everyone(key: list[str], tmp_path: Path) -> None:
    table, rows = filled(tmp_path / "t", key)
    assert by_id(table.to_arrow()) == rows
    before = table.inspect.clustering().to_pylist()[0]
    table.maintenance.compact()
    assert by_id(table.to_arrow()) == rows == foreign(tmp_path / "t", "true")
    late = {
        number: row for number, row in rows.items() if row["ts"] and row["ts"] >= START + datetime.timedelta(days=30)
    }
    assert foreign(tmp_path / "t", "ts >= '2026-03-31T00:00:00Z'") == late
    after = table.inspect.clustering().to_pylist()[0]
    assert after["cluster_by"] == f"({', '.join(key)})" and after["unsorted_part_count"] == 0
    assert before["max_depth"] > 2 >= after["max_depth"]


def test_merged_rows_lie_as_the_sort_key_says(tmp_path: Path) -> None:
    table, _ = filled(tmp_path / "t", ["date(ts) desc", "region nulls last"])
    table.maintenance.compact()
    parts = table.inspect.parts().to_pylist()
    largest = max(parts, key=lambda part: part["rows"])
    rows = pq.read_table(tmp_path / "t" / largest["path"], partitioning=None).to_pylist()
    days = [row["ts"].date() if row["ts"] else datetime.date.min for row in rows]
    assert days == sorted(days, reverse=True) and len(set(days)) > 10, "the newest day first, then what has none"
    for day in set(days):
        regions = [
            (row["region"] is None, row["region"]) for row, of_row in zip(rows, days, strict=True) if of_row == day
        ]
        assert regions == sorted(regions, key=lambda pair: (pair[0], (pair[1] or "").encode()))


def test_what_lies_deepest_is_reported_as_users_know_it(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, sort_key=["month(ts) desc", "substr(region, 1, 1) desc", "hour(ts)"])
    for _ in range(2):
        days = [START, START + datetime.timedelta(days=40, hours=3)]
        table.apply(pa.table({"id": [1, 2], "ts": days, "region": ["eu", None], "amount": [0.5, 1.5]}))
    [deepest] = table.inspect.clustering().to_pylist()[0]["deepest"]
    assert deepest == {"depth": 2, "from": "(2026-04, NULL, 2026-04-10 03:00)", "to": "(2026-03, e, 2026-03-01 00:00)"}


def test_a_z_order_is_framed_by_the_data_when_the_key_is_set(tmp_path: Path) -> None:
    table, rows = filled(tmp_path / "t", ["id"])
    assert "lakebed.sort_key_frame" not in table.properties
    table.set_sort_key(["zorder(id, ts)"])
    frame = table.properties["lakebed.sort_key_frame"]
    table.maintenance.recluster(final=True)
    assert by_id(table.to_arrow()) == rows
    assert table.inspect.clustering().to_pylist()[0]["max_depth"] == 1
    table.set_sort_key(["zorder(ts, id)"])
    assert table.properties["lakebed.sort_key_frame"] not in ("", frame), "it is computed again"
    table.set_sort_key(["id"])
    assert not table.properties.get("lakebed.sort_key_frame")


def test_a_wrong_sort_key_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"'date\(region\)', character 6: date takes a date or a timestamp"):
        lakebed.create(tmp_path / "t", SCHEMA, sort_key=["date(region)"])
    assert not (tmp_path / "t").exists() or not list((tmp_path / "t").rglob("*.json"))
