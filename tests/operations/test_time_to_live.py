"""Time to live: old rows leave, whole parts without being read, whatever the tail, merges and other writers do."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import MergeOutcome, Progress
from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.log.commit_kind import CommitKind, kind_of
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.operations import time_to_live
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.parts.changes import OP_COLUMN, UNAVAILABLE_COLUMN, WriteSpec
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from lakebed.table import internals_of
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.operations.interrupted import before_its_commits

NOW = datetime.datetime.now(datetime.UTC).replace(hour=12, minute=0, second=0, microsecond=0)
"""Noon, so that no clock of the same day is more than twelve hours away from it."""
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("value", pa.int64())])
TTL = {"lakebed.ttl": "at: 30 days"}


pytestmark = pytest.mark.usefixtures("own_cache")


def row(id: int, days: float | None, value: int = 0) -> dict[str, Any]:
    at = None if days is None else NOW - datetime.timedelta(days=days)
    return {"id": id, "at": at, "day": at.date() if at else None, "value": value}


def make(folder: Path, batches: list[list[dict[str, Any]]], keyed: bool = True, **options: Any) -> lakebed.Table:
    options = {"properties": TTL} | options
    table = lakebed.create(folder / "t", SCHEMA, keys=["id"] if keyed else [], **options)
    for rows in batches:
        table.apply(pa.Table.from_pylist(rows, SCHEMA))
        if keyed:
            table.settle()
    return table


def ids(table: lakebed.Table, version: int | None = None) -> list[int]:
    return sorted(table.to_arrow(["id"], version=version)["id"].to_pylist())


def expired(table: lakebed.Table, dry_run: bool = False) -> list[tuple[int, int, bool]]:
    found = table.maintenance.expire_rows(dry_run).to_pylist()
    return sorted((one["expired_rows"], one["rows_left"], one["removed"]) for one in found)


def files_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read: list[str] = []
    rows_before = time_to_live.rows_before

    def counted(part: Any, *rest: Any) -> Any:
        read.append(part.path)
        return rows_before(part, *rest)

    monkeypatch.setattr(time_to_live, "rows_before", counted)
    return read


BATCHES = [[row(1, 50), row(2, 40)], [row(3, 31), row(4, 29), row(5, None)], [row(6, 1)]]


@pytest.mark.parametrize("keyed", [True, False])
def test_old_rows_leave_and_old_parts_leave_unread(
    keyed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, read = make(tmp_path, BATCHES, keyed), files_read(monkeypatch)
    before, files = table.version, {path for path, _, _ in storage_of(table).list("_lakebed/")}
    assert expired(table, dry_run=True) == [(1, 2, False), (2, 0, True)]
    assert table.version == before
    assert expired(table) == [(1, 2, False), (2, 0, True)]
    assert ids(table) == [4, 5, 6]
    assert len(set(read)) == 1, "the part with old rows alone was read"
    assert table.version == before + 1
    found = log_of(table).read_commit(table.version)
    assert found is not None and kind_of(found) is CommitKind.EXPIRE_ROWS
    assert {path for path, _, _ in storage_of(table).list("_lakebed/")} == files, "a file was written or deleted"
    assert ids(table, before) == [1, 2, 3, 4, 5, 6]
    assert expired(table) == []
    assert table.version == before + 1
    assert not table.doctor(deep=True).findings


@pytest.mark.parametrize("keyed", [True, False])
def test_partitions_leave_by_their_value(keyed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = files_read(monkeypatch)
    table = make(tmp_path, BATCHES, keyed, partition_by=["day"], properties={"lakebed.ttl": "day: 30 days"})
    assert expired(table) == [(1, 0, True)] * 3
    assert ids(table) == [4, 5, 6]
    assert read == []


def test_the_newest_value_of_a_row_decides(tmp_path: Path) -> None:
    table = make(tmp_path, [[row(1, 50), row(2, 50)], [row(3, 5)]])
    table.apply(pa.Table.from_pylist([row(1, 1, 7), row(3, 60)], SCHEMA))  # in the tail
    assert expired(table) == [(1, 1, False)]
    assert ids(table) == [1, 3], "what the tail changes waits for the settle"
    table.settle()
    assert expired(table) == [(1, 1, False)], "row 3 is old by its newest value"
    assert table.to_arrow(["id", "value"]).to_pylist() == [{"id": 1, "value": 7}]


def test_a_change_that_lacks_values_still_finds_them_in_an_old_row(tmp_path: Path) -> None:
    table = make(tmp_path, [[row(1, 50, 7), row(2, 50)]])
    change = {**row(1, 1), "value": None, OP_COLUMN: "u", UNAVAILABLE_COLUMN: ["value"]}
    schema = SCHEMA.append(pa.field(OP_COLUMN, pa.string())).append(pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string())))
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.apply(pa.Table.from_pylist([change], schema)), lambda: None):
        assert expired(table) == [(1, 1, False)]
    table.settle()
    assert table.to_arrow(["id", "value"]).to_pylist() == [{"id": 1, "value": 7}]


def test_an_update_does_not_bring_back_a_row_that_expired_while_it_was_computed(tmp_path: Path) -> None:
    table = make(tmp_path, BATCHES[1:])  # no part leaves as a whole
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: expired(other)):
        table.update({"value": "7"}, "id in (3, 4)")
    found = table.to_arrow(["id", "value"]).sort_by("id").to_pylist()
    assert found == [{"id": 4, "value": 7}, {"id": 5, "value": 0}, {"id": 6, "value": 0}]


def test_a_merge_under_way_carries_over_what_expired(tmp_path: Path) -> None:
    table = make(tmp_path, BATCHES)

    class Kernel:
        def merge(
            self, sources: list[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
        ) -> list[MergedPart]:
            merged = merge_parts(sources, spec, output, connect())
            expired(lakebed.open(table.path))
            return merged

    merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "replica")
    result = merger.run(sorted(log_of(table).refresh().parts), 1, Kernel())  # type: ignore[arg-type]
    assert (result.outcome, result.carried_rows) == (MergeOutcome.COMPLETED, 3)
    assert ids(table) == [4, 5, 6]


def test_a_merge_that_comes_first_is_read_instead(tmp_path: Path) -> None:
    table = make(tmp_path, BATCHES)
    other = lakebed.open(table.path)

    def merge() -> None:
        merger = Merger(log_of(other), storage_of(other), deletion_vectors_of(other), "replica")
        merger.run(sorted(log_of(other).refresh().parts), 1, LocalKernel(storage_of(other), log_of(other).refresh))

    with before_its_commits(table, merge):
        expired(table)
    expired(table)
    assert ids(table) == [4, 5, 6]


def test_readers_of_changes_get_deletes(tmp_path: Path) -> None:
    table = make(tmp_path, BATCHES, sequence_by="value")
    expired(table)
    (found,) = versions_with_changes(table.path, table.version, table.version)
    rows = [one for each in read_version(table.path, found) for one in each.to_pylist()]
    assert sorted((one["_change_type"], one["id"]) for one in rows) == [("delete", 1), ("delete", 2), ("delete", 3)]


def test_maintenance_removes_old_parts_always_and_reads_mixed_ones_once_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path, BATCHES, properties=TTL | {"lakebed.off_peak": "00:00-23:59"})
    expiry, read = internals_of(table).row_expiry, files_read(monkeypatch)
    at = [NOW.replace(hour=23, minute=59)]  # the one minute that is not off-peak
    monkeypatch.setattr(time_to_live, "time_of_cleaning", lambda log, storage: int(at[0].timestamp() * 1000))
    expiry.run_due()
    assert (ids(table), read) == ([3, 4, 5, 6], [])
    at[0] += datetime.timedelta(minutes=2)
    expiry.run_due()
    assert (ids(table), len(read)) == ([4, 5, 6], 1)
    version = table.version
    at[0] += datetime.timedelta(hours=23)
    expiry.run_due()
    internals_of(lakebed.open(table.path)).row_expiry.run_due()  # another process knows it from the log
    assert (table.version, len(read)) == (version, 1)
    at[0] += datetime.timedelta(hours=2)
    expiry.run_due()
    assert len(read) == 2


def test_old_parts_leave_in_one_commit_and_rows_of_others_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_to_live, "PARTS_AT_ONCE", 2)
    table = make(tmp_path, [*([row(id, 40)] for id in range(3)), *([row(id, 40), row(-id, 1)] for id in range(3, 8))])
    version = table.version
    assert len(expired(table)) == 8
    assert (table.version, ids(table)) == (version + 3, [-7, -6, -5, -4, -3])


def test_the_property_is_checked_when_it_is_set_and_follows_its_column(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is no column of the table"):
        make(tmp_path, [], properties={"lakebed.ttl": "when: 3 days"})
    table = make(tmp_path, BATCHES, properties={})
    with pytest.raises(InvalidInput, match=r"the table has no lakebed.ttl; set it"):
        table.maintenance.expire_rows()
    with pytest.raises(InvalidInput, match="rows live from a date or a timestamp on"):
        table.set_properties({"lakebed.ttl": "value: 3 days"})
    table.set_properties(TTL)
    with pytest.raises(InvalidSchema, match=r"'at' can't be dropped: it is the column that says when rows expire"):
        table.alter(drop=["at"])
    table.alter(rename={"at": "born"})
    assert table.properties["lakebed.ttl"] == "born: 30 days"
    expired(table)
    assert ids(table) == [4, 5, 6]
    table.set_properties({"lakebed.ttl": ""})
    table.alter(drop=["born"])


def test_a_time_without_a_zone_is_utc(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    table = lakebed.create(tmp_path / "t", schema, properties={"lakebed.ttl": "at: 1 hours"})
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    old, young = now - datetime.timedelta(minutes=61), now - datetime.timedelta(minutes=59)
    table.apply(pa.Table.from_pylist([{"id": 1, "at": old}, {"id": 2, "at": young}], schema))
    expired(table)
    assert ids(table) == [2]
