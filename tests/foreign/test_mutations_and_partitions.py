"""Every Delta reader sees rows go, partitions leave and the same files come back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import lakebed
from tests.foreign.readers import all_agree
from tests.internals import log_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.infra.foreign_duckdb import ForeignDuckDB

pytestmark = pytest.mark.slow
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("p", pa.string())])


@pytest.mark.long
@pytest.mark.parametrize("keys", [("id",), ()])
def test_every_reader_sees_mutations_and_partitions_alike(
    keys: tuple[str, ...], tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB
) -> None:
    table = lakebed.create(
        tmp_path / "t", SCHEMA, keys=keys, partition_by=["p"], properties={"lakebed.checkpoint_interval": "4"}
    )
    table.apply(pa.table([range(100), range(100), ["a", "b"] * 50], schema=SCHEMA))
    table.settle()
    table.delete("id % 7 = 0")
    table.update({"v": "-v"}, "id % 3 = 0")
    table.settle()
    counts = {table.version: 85}
    name = table.detach_partition({"p": "a"})
    counts[table.version] = 43
    table.attach_partition(name)
    counts[table.version] = 85
    table.delete("id = 1 or id = 2")
    table.settle()
    counts[table.version] = 83
    table.replace_partition({"p": "b"}, pa.table([[1], [1], ["b"]], schema=SCHEMA))
    log_of(table).write_checkpoint(log_of(table).refresh())
    counts[table.version] = 42
    table.truncate()
    counts[table.version] = 0
    for version, rows in counts.items():
        assert len(all_agree(table, spark, duckdb_delta, version)) == rows, f"version {version}"
