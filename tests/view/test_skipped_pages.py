"""Spark skips pages by the page index of a part, and still knows which rows are dead and where a NaN may be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import lakebed

SCHEMA = pa.schema([("id", pa.int64()), ("group", pa.int32()), ("x", pa.float64())])
ROWS = 100_000


def test_a_selective_read_finds_the_live_rows_and_every_nan(spark: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.random(ROWS)
    x[[5, 50_000]] = np.nan
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sort_key=["id"])
    table.apply(pa.table({"id": range(ROWS), "group": np.arange(ROWS) // 1000, "x": x}, SCHEMA))
    table.settle()
    gone = sorted(rng.choice(ROWS, 5000, replace=False).tolist())
    nothing = {name: pa.nulls(len(gone), SCHEMA.field(name).type) for name in ("group", "x")}
    deletes = pa.table({"id": gone, **nothing, "op": ["d"] * len(gone)})
    table.apply(deletes, apply_as_deletes="op = 'd'")
    table.settle()
    live = sorted(set(range(ROWS)) - set(gone))
    for _ in range(2):  # before and after a merge
        frame = table.read(spark)
        found = sorted(
            row[0] for row in frame.where("id between 20000 and 31000 and `group` <> 25").select("id").collect()
        )
        assert found == [key for key in live if 20_000 <= key <= 31_000 and key // 1000 != 25]
        above = sorted(row[0] for row in frame.where("x > 1").select("id").collect())
        assert above == [key for key in (5, 50_000) if key in live]
        table.set_properties({"lakebed.read_budget": "1"})
        table.maintenance.compact()
