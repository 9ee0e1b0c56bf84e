"""Why lakebed keeps numbers of columns under a name of its own where a table has no column mapping (ADR 63).

Delta's numbers without column mapping are harmless for Spark and delta-rs. DuckDB, by delta-kernel, refuses the table. The day
that this test is red for DuckDB, ``schema.iceberg_columns`` can become simpler.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from lakebed.schema.iceberg_columns import COLUMN_ID
from tests.infra.foreign_duckdb import ForeignDuckDB, ForeignError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.table({"a": [1, 2], "b": ["x", "y"]})
FEATURES = ["deletionVectors"]
PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": FEATURES, "writerFeatures": FEATURES}
DELTA_ID = "delta.columnMapping.id"


def numbered(path: Path, key: str) -> str:
    """A table without column mapping whose fields have numbers under this key."""
    write_deltalake(path, ROWS)
    log = path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"], 1):
                field["metadata"] = {key: number}
            action["metaData"]["schemaString"] = json.dumps(schema)
        if "protocol" in action:
            action["protocol"] = PROTOCOL
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return str(path)


def delta_rs(path: str) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("select * from t"))


def test_duckdb_refuses_delta_s_numbers_and_reads_lakebed_s(tmp_path: Path, duckdb_delta: ForeignDuckDB) -> None:
    with pytest.raises(ForeignError, match=f"Column mapping is not enabled but field 'a' is annotated with {DELTA_ID}"):
        duckdb_delta.read(numbered(tmp_path / "delta", DELTA_ID))
    assert duckdb_delta.read(numbered(tmp_path / "own", COLUMN_ID)).to_pylist() == ROWS.to_pylist()


@pytest.mark.parametrize("key", [DELTA_ID, COLUMN_ID])
def test_delta_rs_reads_both(key: str, tmp_path: Path) -> None:
    assert delta_rs(numbered(tmp_path / "t", key)).to_pylist() == ROWS.to_pylist()


@pytest.mark.long
@pytest.mark.parametrize("key", [DELTA_ID, COLUMN_ID])
def test_spark_reads_both(key: str, tmp_path: Path, spark: SparkSession) -> None:
    found = spark.read.format("delta").load(numbered(tmp_path / "t", key)).toArrow()
    assert found.to_pylist() == ROWS.to_pylist()
