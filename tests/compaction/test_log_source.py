"""The log as a stream: its commits, and the looks at a table into which nothing comes."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction import log_source
from lakebed.compaction.log_source import IDLE_LOOK_SECONDS, TAIL_LOOK_SECONDS, LogReader
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from tests.clock import Clock
from tests.internals import log_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


class Stream:
    """What Spark does with a reader: it goes on where it was. Time passes when the test says so."""

    def __init__(self, table: lakebed.Table, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.clock = Clock(log_of(table).refresh().timestamp_ms / 1000)
        monkeypatch.setattr(log_source, "time", SimpleNamespace(monotonic=self.clock, sleep=self.clock.sleep))
        self.reader = LogReader({"path": table.path, **options})
        self.reader.__dict__["_log"] = TableLog(open_store(table.path), self.clock)
        self.offset = self.reader.initialOffset()

    def batch(self, after_seconds: float = 0.0) -> list[dict[str, Any]] | None:
        """The rows of a batch; None if there is none."""
        self.clock.sleep(after_seconds)
        batches, end = self.reader.read(self.offset)
        is_one, self.offset = end != self.offset, end
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert is_one or not rows
        return rows if is_one else None


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    return lakebed.create(
        tmp_path / "t",
        SCHEMA,
        keys=["id"],
        properties={"lakebed.settle_after_age": "2 seconds", "lakebed.read_budget": "1"},
    )


def apply(table: lakebed.Table, first: int = 0, rows: int = 1) -> None:
    table.apply(pa.table({"id": [first + 2 * row for row in range(rows)], "v": [0] * rows}, SCHEMA))


def test_a_batch_has_the_commits_since_the_last_one_and_what_they_did(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(table, monkeypatch)
    assert [row["version"] for row in stream.batch() or ()] == [0], "the newest commit, at once"
    assert stream.batch() is None
    for first in range(2):
        apply(table, first, rows=3)
        table.settle()
    table.maintenance.compact()
    rows = stream.batch() or []
    assert [row["kind"] for row in rows if row["kind"] != "claim"] == ["append", "settle"] * 2 + ["merge"]
    assert [row["settled_rows"] for row in rows if row["kind"] == "settle"] == [3, 3]
    merged = sum(part.bytes for part in log_of(table).refresh().parts.values())
    assert sum(row["merged_bytes"] for row in rows) == merged > 0
    assert stream.batch(IDLE_LOOK_SECONDS) is None, "nobody asked for looks"


def test_a_stream_goes_on_after_commits_that_are_gone(table: lakebed.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "_COMMITS_MAX", 3)
    stream = Stream(table, monkeypatch, startingVersion="0")
    for _ in range(5):
        apply(table)
    pickle.dumps(stream.reader.__class__({"path": table.path}))
    log_of(table).checkpoint_if_due(log_of(table).refresh(), 0)
    for version in range(3):
        Path(table.path, "_delta_log", f"{version:020d}.json").unlink()
    assert [[row["version"] for row in stream.batch() or ()] for _ in range(2)] == [[], [3, 4, 5]]


def test_a_table_that_was_made_again_is_followed_from_its_newest_version(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(table, monkeypatch, startingVersion="1000")
    assert stream.batch() == []
    apply(table)
    assert [row["version"] for row in stream.batch() or ()] == [1]


def test_a_look_comes_at_the_start_when_the_tail_is_due_and_now_and_then(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(table)
    stream = Stream(table, monkeypatch, looks="true", startingVersion="2")
    assert stream.batch() == [], "whatever it may have missed"
    assert stream.batch(1.0) is None
    assert stream.batch(1.0) == [], "the tail is due by its age"
    assert stream.batch(TAIL_LOOK_SECONDS / 2) is None
    assert stream.batch(TAIL_LOOK_SECONDS / 2) == [], "it is still there"
    table.settle()
    assert len(stream.batch() or ()) == 1
    assert stream.batch(TAIL_LOOK_SECONDS) is None
    assert stream.batch(IDLE_LOOK_SECONDS) == []
