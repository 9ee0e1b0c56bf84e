"""The change rows of a version: what was applied, with keys and without, also in the version of a truncate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.ingest.batch_writer import Written, commit_written, write_arrow
from lakebed.manifest.actions import Transaction
from lakebed.parts.changes import prepare, shape_of
from lakebed.parts.engine import connect
from lakebed.view.changes import _read_version

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.string())])


def rows_of(table: lakebed.Table, version: int) -> list[tuple[Any, ...]]:
    found = [row for batch in _read_version(table.path, version) for row in batch.to_pylist()]
    return [(row["_change_type"], row["id"], row["value"]) for row in found]


@pytest.mark.parametrize("keys", [(), ("id",)])
def test_what_came_after_a_truncate_in_its_batch_is_among_the_changes(keys: tuple[str, ...], tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=keys)
    table.apply(pa.table({"id": [1], "value": ["gone"]}))
    snapshot = table._log.refresh()
    shape = shape_of(snapshot)
    after = write_arrow(prepare(pa.table({"id": [2], "value": ["new"]}), shape, connect()), shape, table.path)
    truncate = Written(after.parts, truncated_at=7)
    version = commit_written(table._log, snapshot, truncate, Transaction("test", 1), "STREAMING UPDATE", "test").version
    assert table.to_arrow().to_pylist() == [{"id": 2, "value": "new"}]
    assert rows_of(table, version) == [("truncate", None, None), ("upsert", 2, "new")]


def test_a_settle_brings_no_changes_of_its_own(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    version = table.apply(pa.table({"id": [1, 2], "value": ["a", "b"], "op": ["u", "d"]}), apply_as_deletes="op = 'd'")
    assert rows_of(table, table.settle().version) == []
    assert rows_of(table, version) == [("upsert", 1, "a"), ("delete", 2, "b")]
