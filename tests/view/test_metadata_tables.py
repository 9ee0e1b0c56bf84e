"""Claims and merges as tables, and every metadata table in Spark."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakebed
from lakebed.compaction.merge import Merger
from lakebed.errors import InvalidInput
from tests.internals import deletion_vectors_of, log_of, storage_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
NAMES = ("claims", "clustering", "compactions", "detached", "detail", "mutations", "parts", "plan", "timeline")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    """Three parts over the same keys, one more than the read budget."""
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties={"lakebed.read_budget": "2"})
    for batch in range(3):
        table.apply(pa.table({"id": range(batch, 1000, 100), "v": [batch] * 10}, SCHEMA))
        table.settle()
    return table


def test_a_claim_tells_who_what_and_until_when(table: lakebed.Table) -> None:
    first, second, _ = table.inspect.parts()["path"].to_pylist()
    log, storage, deletion_vectors = log_of(table), storage_of(table), deletion_vectors_of(table)
    Merger(log, storage, deletion_vectors, "gone", clock=lambda: time.time() - 3600).claim([first], 1)
    Merger(log, storage, deletion_vectors, "here").claim([second], 2, volatile=True)
    gone, here = table.inspect.claims().to_pylist()
    assert (gone["replica"], gone["kind"], gone["state"], gone["level"]) == ("gone", "merge", "expired", 1)
    assert (here["replica"], here["kind"], here["state"], here["level"]) == ("here", "volatile", "live", 2)
    assert (here["parts"], here["rows"], here["left"], here["sources"]) == (1, 10, 0, [second])
    assert here["since"] < here["lease_until"]


def test_a_merge_records_what_it_cost_beside_what_its_plan_predicted(table: lakebed.Table) -> None:
    table.delete("id = 0")
    table.settle()
    [plan] = [plan for plan in table.maintenance.plan().to_pylist() if plan["what"] == "merge"]
    result = table.maintenance.compact()
    [merge] = table.inspect.compactions().to_pylist()
    assert (merge["operation"], merge["plan"], merge["level"], merge["why"]) == ("merge", "merge", 1, plan["why"])
    assert merge["rows_predicted"] == plan["rows"] - plan["dead_rows"]
    assert (merge["bytes_in"], merge["bytes_predicted"]) == (plan["bytes_in"], plan["bytes_out"])
    assert (merge["parts_in"], merge["parts_out"]) == (result.parts_in, result.parts_out)
    assert (merge["rows_in"], merge["rows_out"], merge["bytes_out"]) == (result.rows, result.rows, result.bytes_out)
    assert merge["version"] == result.version
    assert 0 <= merge["seconds"] <= 60
    assert merge["replica"]


@pytest.mark.parametrize("name", ["timeline", "compactions"])
def test_no_commits_at_all_are_asked_for_by_mistake(table: lakebed.Table, name: str) -> None:
    assert len(getattr(table.inspect, name)(last=1)) <= 1
    for last in (0, -1):
        with pytest.raises(InvalidInput, match=f"last is {last}"):
            getattr(table.inspect, name)(last=last)


@pytest.mark.parametrize("name", NAMES)
def test_spark_queries_every_metadata_table(table: lakebed.Table, spark: SparkSession, name: str) -> None:
    rows = table.maintenance.plan() if name == "plan" else getattr(table.inspect, name)()
    frame = spark.createDataFrame(rows)
    assert frame.columns == rows.column_names
    assert frame.count() == len(rows)
