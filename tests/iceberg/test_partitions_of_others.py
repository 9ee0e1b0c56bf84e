"""Partitions that only other writers make: by numbers with a fraction. Readers of Iceberg read and prune them as lakebed does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakebed
from tests.iceberg.readers import all_agree, duckdb_rows, opened, pyiceberg
from tests.infra.foreign_duckdb import ICEBERG, ForeignDuckDB

VALUES = [0.5, -1.5, 0.0, -0.0, math.nan, math.inf, -math.inf, None]


@pytest.fixture(scope="module")
def duckdb() -> Iterator[ForeignDuckDB]:
    with ForeignDuckDB(ICEBERG) as found:
        yield found


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_partitions_by_floating_point(kind: pa.DataType, tmp_path: Path, duckdb: ForeignDuckDB) -> None:
    rows = pa.table({"id": pa.array(range(len(VALUES)), pa.int64()), "v": pa.array(VALUES, kind)})
    write_deltalake(tmp_path / "t", rows, partition_by=["v"])
    table = lakebed.convert(tmp_path / "t", keys=["id"])
    table.set_properties({"lakebed.iceberg": "on"})
    table.maintenance.publish_iceberg()
    all_agree(table, duckdb)
    for where, ids in {"v = 0.5": [0], "v < -1": [1, 6], "v = 0.0": [2, 3], "v is null": [7]}.items():
        assert sorted(pyiceberg(table, where=where)["id"].to_pylist()) == ids, where
        assert sorted(duckdb_rows(table, duckdb, where=where)["id"].to_pylist()) == ids, where
    assert len(list(opened(table).scan(row_filter="v = 0.5").plan_files())) == 1


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_bounds_of_partitions_have_both_zeros(names: str, tmp_path: Path) -> None:
    """Iceberg: where -0.0 is a value, the lower bound must not be 0.0; where 0.0 is one, the upper bound must not be -0.0."""
    write_deltalake(tmp_path / "t", pa.table({"id": [1, 2], "v": [0.0, -0.0]}), partition_by=["v"])
    log = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    text = log.read_text()
    for folder, name in zip(("v=0", "v=-0"), names, strict=True):  # they decide which value is seen first
        [file] = (tmp_path / "t" / folder).iterdir()
        file.rename(tmp_path / "t" / name)
        text = text.replace(f"{folder}/{file.name}", name)
    log.write_text(text)
    table = lakebed.convert(tmp_path / "t", keys=["id"])
    table.set_properties({"lakebed.iceberg": "on"})
    table.maintenance.publish_iceberg()
    [[said]] = opened(table).inspect.manifests()["partition_summaries"].to_pylist()
    assert (said["lower_bound"], said["upper_bound"]) == ("-0.0", "0.0")
