"""The change rows of a version: what was applied, with keys and without, also in the version of a truncate."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import TableReplaced
from lakebed.ingest.batch_writer import Written, commit_written, write_arrow
from lakebed.log.actions import Transaction
from lakebed.log.entries import Operation
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.parts.changes import prepare, write_spec_of
from lakebed.positions.truncates import Truncate
from lakebed.storage.engine import connect
from lakebed.view.changes import ChangesSource
from tests.internals import log_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.string())])


def rows_of(table: lakebed.Table, version: int) -> list[tuple[Any, ...]]:
    versions = versions_with_changes(table.path, version, version)
    found = [row for each in versions for batch in read_version(table.path, each) for row in batch.to_pylist()]
    return [(row["_change_type"], row["id"], row["value"]) for row in found]


@pytest.mark.parametrize("keys", [(), ("id",)])
def test_what_came_after_a_truncate_in_its_batch_is_among_the_changes(keys: tuple[str, ...], tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=keys)
    table.apply(pa.table({"id": [1], "value": ["gone"]}))
    snapshot = log_of(table).refresh()
    spec = write_spec_of(snapshot)
    after = write_arrow(prepare(pa.table({"id": [2], "value": ["new"]}), spec, connect()), spec, table.path)
    truncate = Written(parts=after.parts, truncates=(Truncate(topic="orders", partition=0, offset=7),))
    version = commit_written(
        log_of(table), snapshot, truncate, Transaction("test", 1), Operation.STREAMING_UPDATE
    ).version
    assert table.to_arrow().to_pylist() == [{"id": 2, "value": "new"}]
    assert rows_of(table, version) == [("truncate", None, None), ("upsert", 2, "new")]


def test_a_settle_brings_no_changes_of_its_own(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    version = table.apply(pa.table({"id": [1, 2], "value": ["a", "b"], "op": ["u", "d"]}), apply_as_deletes="op = 'd'")
    assert rows_of(table, table.settle().version) == []
    assert rows_of(table, version) == [("upsert", 1, "a"), ("delete", 2, "b")]


def test_tasks_do_not_read_the_log(tmp_path: Path) -> None:
    """The planner reads each commit once, however many versions there are; tasks read nothing but their parts."""
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    for number in range(5):
        table.apply(pa.table({"id": [number], "value": [str(number)]}))
        table.settle()
    versions = versions_with_changes(table.path, 0, table.version)
    assert len(versions) == 5
    (tmp_path / "t" / "_delta_log").rename(tmp_path / "log")
    rows = [row for each in versions for batch in read_version(table.path, each) for row in batch.to_pylist()]
    assert [row["id"] for row in rows] == [0, 1, 2, 3, 4]


def test_versions_without_changes_give_an_empty_dataframe(tmp_path: Path, spark: SparkSession) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    assert table.changes(0, 0, spark).collect() == []
    table.apply(pa.table({"id": [1], "value": ["a"]}))
    settled = table.settle().version
    assert table.changes(settled, settled, spark).collect() == []
    assert [row["id"] for row in table.changes(0, settled, spark).collect()] == [1]


def test_a_mutation_without_keys_stands_as_the_rows_that_went_and_came(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA)
    table.apply(pa.table({"id": [1, 2, 3], "value": ["a", "b", "c"]}))
    table.delete("id = 1")
    assert rows_of(table, table.version) == [("delete", 1, "a")]
    table.update({"value": "'new'"}, "id = 2")
    assert rows_of(table, table.version) == [("delete", 2, "b"), ("upsert", 2, "new")]
    table.delete("true")
    assert sorted(rows_of(table, table.version)) == [("delete", 2, "new"), ("delete", 3, "c")]


def test_a_partition_stands_as_its_live_rows_when_it_goes_and_comes(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id", "value"], partition_by=["value"])
    table.apply(pa.table({"id": [1, 2, 3], "value": ["a", "a", "b"]}))
    table.apply(pa.table({"id": [2], "value": ["a"], "op": ["d"]}), apply_as_deletes="op = 'd'")
    table.settle()
    name = table.detach_partition({"value": "a"})
    assert rows_of(table, table.version) == [("delete", 1, "a")]
    table.attach_partition(name)
    assert rows_of(table, table.version) == [("upsert", 1, "a")]
    table.replace_partition({"value": "a"}, pa.table({"id": [7], "value": ["a"]}))
    assert rows_of(table, table.version) == [("delete", 1, "a"), ("upsert", 7, "a")]


def test_a_query_does_not_read_on_in_another_table_of_the_same_place(tmp_path: Path) -> None:
    def made() -> None:
        lakebed.create(tmp_path / "t", SCHEMA, keys=["id"]).apply(pa.table({"id": [1], "value": ["a"]}))

    made()
    source = ChangesSource({"path": str(tmp_path / "t")})
    query = source.streamReader(source.schema())
    begin, end = query.initialOffset(), {"version": 1}
    assert query.partitions(begin, end)
    shutil.rmtree(tmp_path / "t")
    made()
    with pytest.raises(TableReplaced, match="another table is in the place of the one that this query has read"):
        query.partitions(begin, end)
    of_an_older_lakebed = {"version": 0}
    assert query.partitions(of_an_older_lakebed, end)
