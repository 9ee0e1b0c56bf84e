"""What a reader is told when a file is gone: by lakebed where it knows before Spark runs, else by Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import lakebed
from lakebed.errors import Corrupt
from lakebed.parts import deletion_vector_cache
from tests.internals import storage_of
from tests.view.test_spark_scan import setting

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(deletion_vector_cache, "_INLINE_BYTES_MAX", 0)
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    for start in (0, 10):
        table.apply(pa.table({"id": range(start, start + 10), "v": [0] * 10}, SCHEMA))
        table.settle()
    return table


def lose(table: lakebed.Table, path: str) -> lakebed.Table:
    Path(table.path, path).unlink()
    return lakebed.open(table.path)


@pytest.mark.parametrize("state", ["base", "tail"])
def test_a_part_that_the_tail_needs_is_named_before_spark_runs(
    spark: SparkSession, table: lakebed.Table, state: str
) -> None:
    table.apply(pa.table({"id": [1, 11], "v": [1, 1]}, SCHEMA))
    [path, *_] = [part["path"] for part in table.inspect.parts().to_pylist() if part["state"] == state]
    table = lose(table, path)
    with pytest.raises(Corrupt, match=f"{path} can't be read .* restore the file"):
        table.read(spark)
    with pytest.raises(Corrupt, match=f"{path} can't be read .* restore the file"):
        table.to_arrow()


def test_a_deletion_vector_is_named_before_spark_runs(spark: SparkSession, table: lakebed.Table) -> None:
    table.apply(pa.table({"id": [1], "v": [1]}, SCHEMA))
    table.settle()
    [vector] = [path for path, _, _ in storage_of(table).list("_lakebed/") if "deletion_vector" in path]
    table = lose(table, vector)
    for read in (lambda: table.read(spark), table.to_arrow):
        with pytest.raises(Corrupt, match=f"{vector}, the deletion vector of .*, is missing: restore the file"):
            read()


@pytest.mark.parametrize("leaves_out", ["false", "true"], ids=["a session", "one that leaves out missing files"])
def test_a_part_of_the_base_is_named_by_spark_when_a_query_reads_it(
    spark: SparkSession, table: lakebed.Table, leaves_out: str
) -> None:
    [gone] = [part["path"] for part in table.inspect.parts().to_pylist() if part["min_block"] == 1]
    table = lose(table, gone)
    frame = table.read(spark)
    assert frame.filter("id >= 10").count() == 10, "what needs other files alone is read"
    left_out = setting(spark, "spark.sql.files.ignoreMissingFiles", leaves_out)
    with left_out, pytest.raises(Py4JJavaError, match=f"FAILED_READ_FILE.*{gone}"):
        table.read(spark).collect()
