"""Deletes stay as long as they outweigh late events, and then leave the table."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_runner import MergeRunner
from lakebed.parts.changes import OP_COLUMN
from tests.internals import deletion_vectors_of, log_of, storage_of

SCHEMA = pa.schema([("id", pa.int64()), ("seq", pa.int64())])


pytestmark = pytest.mark.usefixtures("own_cache")


def changes(ids: range, seq: int, op: str = "u") -> pa.Table:
    return pa.table({"id": ids, "seq": [seq] * len(ids), OP_COLUMN: [op] * len(ids)})


def compact(table: lakebed.Table, days: float) -> int:
    """Merge what there is to merge so many days from now; returns how many merges there were."""

    def clock() -> float:
        return time.time() + days * 86_400

    merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "r", clock)
    kernel = LocalKernel(storage_of(table), log_of(table).refresh)
    done = MergeRunner(table.path, log_of(table), merger, kernel, clock=clock).run_until_idle()
    merger.close()
    return len(done)


def deletes(table: lakebed.Table) -> int:
    return sum(part.deletes for part in log_of(table).refresh().parts.values())


def test_deletes_leave_the_table_when_no_late_event_can_meet_them_any_more(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sequence_by="seq")
    table.apply(changes(range(100), 1))
    table.settle()
    table.apply(changes(range(40), 5, "d"))
    table.settle()
    assert compact(table, 6.9) == 0
    assert deletes(table) == 40
    table.apply(changes(range(10), 3))
    table.settle()
    assert table.to_arrow().num_rows == 60, "late events meet the deletes"
    assert compact(table, 7.1) > 0
    assert deletes(table) == 0
    assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(40, 100))
    assert [part.live_rows for part in log_of(table).refresh().parts.values() if part.live_rows == 0] == []
    assert compact(table, 7.1) == 0
