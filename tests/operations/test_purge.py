"""A purge leaves no byte of its rows: files are searched for a marker, raw and decoded, before and after."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lakebed
from lakebed.cli import main
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.compaction.volatile import VolatileMerger
from lakebed.coordination.read_counts import begin_hold
from lakebed.errors import Contention, InvalidInput, LakebedError, Retry, VersionNotFound
from lakebed.ingest.batch_writer import commit_written, write_arrow
from lakebed.log.actions import CommitInfo, Domain
from lakebed.log.claims import claims_of
from lakebed.log.conflicts import BLIND
from lakebed.log.entries import REPLAY, Operation
from lakebed.log.holds import Hold, trim_log_before
from lakebed.log.removals import purged_before
from lakebed.log.snapshot import Snapshot
from lakebed.merge.kernel import MergedPart
from lakebed.operations.purge import files as purge_files
from lakebed.operations.purge.rows import RowsToPurge, parts_of_versions
from lakebed.parts.changes import prepare, write_spec_of
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, QUARANTINE_SUFFIX, WITH_HEADERS
from lakebed.parts.write import write_parts
from lakebed.storage.engine import connect
from lakebed.storage.local_folders import TEMPORARY_PREFIX, files_below
from lakebed.table import internals, internals_of
from tests.infra.s3 import S3Server
from tests.internals import compaction_of, deletion_vectors_of, log_of, storage_of
from tests.marker import holds
from tests.operations.test_partitions import claim_everything
from tests.waiting import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("email", pa.string()), ("v", pa.int64())])


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process has these tables open."""
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)


@pytest.fixture
def marker() -> str:
    return f"marker-{secrets.token_hex(12)}"


def files_with(marker: str, *folders: Path | str) -> list[str]:
    """Others may write and delete files meanwhile."""
    found = []
    for path, _ in (each for folder in folders for each in files_below(Path(folder))):
        with contextlib.suppress(FileNotFoundError):
            if holds(Path(path).read_bytes(), path, marker):
                found.append(path)
    return sorted(found)


def everywhere(table: lakebed.Table, tmp_path: Path, marker: str) -> list[str]:
    return files_with(marker, table.path, f"{table.path}_quarantine", tmp_path / "cache")


def rows(*some: tuple[int, str, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in some], SCHEMA)


def test_no_file_of_a_table_without_keys_has_a_byte_of_purged_rows(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA)
    table.apply(rows((1, marker, 1), (2, "b", 2)))
    table.apply(rows((3, "c", 3)))
    table.update({"email": "'elsewhere'"}, f"email = '{marker}'")  # a former value
    table.apply(rows((4, marker, 4)))
    assert files_with(marker, table.path)
    report = table.purge(f"email = '{marker}'")
    assert files_with(marker, table.path) == []
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3]
    assert None not in report["gone_at"].to_pylist()
    assert {"table", "version", "log"} >= set(report["where"].to_pylist())
    assert table.doctor(deep=True).findings == ()
    with pytest.raises(VersionNotFound, match="purged"):
        table.to_arrow(version=1)
    with pytest.raises(VersionNotFound):
        table.restore(version=1)
    assert files_with(marker, table.path) == []


def test_no_file_of_a_table_with_keys_has_a_byte_of_purged_rows(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id"], sequence_by="v")
    table.apply(rows((1, marker, 1), (2, "b", 1)))
    table.settle()
    table.apply(rows((1, "now another", 2), (3, marker, 1)))
    table.settle()
    table.apply(rows((4, marker, 1), (5, "e", 1)))
    assert files_with(marker, table.path)
    table.purge(f"email = '{marker}'")
    assert everywhere(table, tmp_path, marker) == []
    assert (
        sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])
        == rows((1, "now another", 2), (2, "b", 1), (5, "e", 1)).to_pylist()
    )
    assert table.doctor(deep=True).findings == ()


def test_a_value_of_few_in_many_rows_is_gone_from_dictionaries_too(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA)
    table.apply(rows(*((number, marker if number % 3 else "another", 1) for number in range(100))))
    table.purge(f"email = '{marker}'")
    assert everywhere(table, tmp_path, marker) == []
    assert set(table.to_arrow()["email"].to_pylist()) == {"another"}


def test_a_key_is_gone_from_deletes_and_from_the_key_index(tmp_path: Path, marker: str) -> None:
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), ("email", pa.string()), ("v", pa.int64())])
    table = lakebed.create(str(tmp_path / "t"), schema=schema, keys=["id"], sequence_by="v")
    other = f"other-{secrets.token_hex(8)}"
    table.apply(
        [{"id": marker, "email": "a", "v": 1}, {"id": other, "email": "b", "v": 1}, {"id": "c", "email": "c", "v": 1}]
    )
    table.settle()
    table.apply([{"id": marker, "email": "a", "v": 2}, {"id": other, "email": "b", "v": 2}], apply_as_deletes="true")
    table.settle()
    internals_of(table).locators.release()  # what it holds in memory is written too
    assert files_with(marker, table.path) and files_with(marker, tmp_path / "cache")
    report = lakebed.open(table.path).purge("email = 'a'")
    assert everywhere(table, tmp_path, marker) == []
    assert "key index" in report["where"].to_pylist()
    assert files_with(other, table.path), "a delete that the purge is not about stays, and late changes lose against it"
    table.apply([{"id": other, "email": "late", "v": 1}])
    table.settle()
    assert [row["id"] for row in table.to_arrow().to_pylist()] == ["c"]
    assert table.doctor(deep=True).findings == ()


def test_a_delete_that_came_since_the_purge_stays_though_it_was_merged_with_older_rows(
    tmp_path: Path, marker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id"], sequence_by="v")
    table.apply(rows((1, marker, 1), (2, "b", 1)))
    table.settle()
    other, look, came = lakebed.open(table.path), RowsToPurge.look_at_all, list[int]()

    def meanwhile(found: RowsToPurge, snapshot: Snapshot) -> None:
        if not came:
            came.append(other.apply(rows((1, "since", 9)), apply_as_deletes="true"))
            other.settle()
            merger = Merger(log_of(other), storage_of(other), deletion_vectors_of(other), "somebody")
            kernel = LocalKernel(storage_of(other), log_of(other).refresh)
            assert merger.run(list(log_of(other).refresh().parts), 1, kernel).parts_out == 1
        look(found, snapshot)

    monkeypatch.setattr(RowsToPurge, "look_at_all", meanwhile)
    table.purge(f"email = '{marker}'")
    assert everywhere(table, tmp_path, marker) == []
    table.apply(rows((1, "late", 8)))
    assert table.to_arrow()["id"].to_pylist() == [2]


def test_a_partition_value_leaves_the_log_too(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, partition_by=["email"])
    table.apply(rows((1, marker, 1), (2, "b", 2)))
    table.maintenance.clean_log()
    table.purge(f"email = '{marker}'")
    assert files_with(marker, table.path) == []
    assert table.to_arrow()["id"].to_pylist() == [2]


def test_rows_of_a_detached_partition_are_erased_and_the_others_come_back(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id", "v"], partition_by=["v"], sequence_by=None)
    table.apply(rows((1, marker, 7), (2, "b", 7), (3, "c", 8)))
    name = table.detach_partition({"v": 7})
    report = table.purge(f"email = '{marker}'")
    assert files_with(marker, table.path) == []
    assert "detached" in report["where"].to_pylist()
    table.attach_partition(name)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [2, 3]
    assert table.doctor(deep=True).findings == ()


def test_a_former_value_goes_and_the_row_of_today_stays(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id"])
    table.apply(rows((1, marker, 1), (2, "b", 1)))
    table.settle()
    table.apply(rows((1, "today", 2)))
    table.settle()
    table.maintenance.compact()
    before = table.to_arrow().sort_by("id")
    report = table.purge(f"email = '{marker}'")
    assert files_with(marker, table.path) == []
    assert table.to_arrow().sort_by("id") == before
    assert report.filter(pc.field("rows") > 0)["rows"].to_pylist(), "it says which files had it"


def test_what_a_killed_writer_left_behind_is_erased_however_young(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA)
    table.apply(rows((2, "b", 2)))
    list(write_parts(rows((1, marker, 1)), write_spec_of(log_of(table).refresh()), storage_of(table)))
    unfinished = Path(table.path, "_lakebed", f"{TEMPORARY_PREFIX}1.parquet")
    unfinished.write_bytes(marker.encode())
    os.utime(unfinished, (1, 1))
    report = table.purge(f"email = '{marker}'")
    assert files_with(marker, table.path) == []
    assert [row["rows"] for row in report.to_pylist() if row["where"] == "uncommitted"] == [None, 1]
    assert table.to_arrow()["id"].to_pylist() == [2]


def test_what_was_written_before_a_purge_and_committed_after_it_is_written_again(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA)
    log = log_of(table)
    table.apply(rows((2, "b", 2)))
    read = log.refresh()
    written = write_arrow(prepare(rows((3, "c", 3)), write_spec_of(read), connect()), write_spec_of(read), table.path)
    assert table.purge(f"email = '{marker}'").num_rows
    assert not any(storage_of(table).exists(part.path) for part in written.parts), "no version refers to it"
    assert commit_written(log, read, written, None, Operation.APPLY).outdated
    assert table.to_arrow()["id"].to_pylist() == [2]
    table.apply(rows((3, "c", 3)))
    assert sorted(table.to_arrow()["id"].to_pylist()) == [2, 3]


def test_files_that_came_and_left_while_the_purge_ran_are_in_its_report(
    tmp_path: Path, marker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id"])
    table.apply(rows((2, "b", 2)))
    other, settle, came = lakebed.open(table.path), internals._PurgedTable.settle, set[str]()

    def meanwhile(purged: internals._PurgedTable) -> object:
        settled = settle(purged)
        if not came:
            other.apply(rows((1, marker, 1)))
            other.settle()
            came.update(files_with(marker, Path(table.path, "_lakebed")))
            other.apply(rows((1, "today", 2)))
            other.settle()
            other.maintenance.recluster()
            [written] = write_parts(rows((9, marker, 1)), write_spec_of(log_of(table).refresh()), storage_of(table))
            came.add(str(Path(table.path, written.path)))
        return settled

    monkeypatch.setattr(internals._PurgedTable, "settle", meanwhile)
    report = {str(Path(table.path, row["path"])): row for row in table.purge(f"email = '{marker}'").to_pylist()}
    assert sorted((report[path]["where"], report[path]["rows"]) for path in came) == [
        ("uncommitted", 1),
        ("version", 1),
    ]
    assert everywhere(table, tmp_path, marker) == []
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]


class Crash(BaseException):
    """The process ends here."""


def crashing(table: lakebed.Table, survived: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process of a table die after so many changes of the store."""
    left = survived

    def counted(act: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash
            return act(*arguments)

        return run

    store, storage = log_of(table).store, storage_of(table)
    for name in ("put_if_absent", "put", "delete"):
        monkeypatch.setattr(store, name, counted(getattr(store, name)))
    for name in ("write_file", "delete"):
        monkeypatch.setattr(type(storage), name, counted(getattr(type(storage), name)))


@pytest.mark.few(6)
@pytest.mark.slow
@pytest.mark.parametrize("survived", range(0, 30, 2))
def test_a_purge_that_is_killed_at_any_step_is_brought_to_its_end(
    tmp_path: Path, survived: int, marker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id"])
    table.apply(rows((1, marker, 1), (2, "b", 1)))
    table.settle()
    table.apply(rows((1, "today", 2), (3, marker, 1)))
    with monkeypatch.context() as patched:
        crashing(table, survived, patched)
        with contextlib.suppress(Crash):
            table.purge(f"email = '{marker}'")
    again = lakebed.open(table.path)
    log_of(again).clock = lambda: time.time() + 3600
    internals_of(again).go_on_with_purges()
    assert not any(name.startswith("lakebed.purge.") for name in log_of(again).refresh().domains)
    if purged_before(log_of(again).refresh().domains) == 0:  # it died before it had begun
        again.purge(f"email = '{marker}'")
    assert files_with(marker, table.path) == []
    assert sorted(again.to_arrow()["id"].to_pylist()) == [1, 2]
    assert again.doctor(deep=True).findings == ()


def test_a_purge_whose_log_is_cleaned_meanwhile_may_be_tried_again(tmp_path: Path) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA)
    table.apply(rows((1, "a", 1)))
    table.apply(rows((2, "b", 2)))
    log_of(table).write_checkpoint(log_of(table).refresh())
    table.apply(rows((3, "c", 3)))
    newest = log_of(table).refresh()
    assert trim_log_before(log_of(table), 2)
    with pytest.raises(Contention, match="version 0 left the log"):
        list(parts_of_versions(log_of(lakebed.open(table.path)), 0, newest))


def test_purging_again_finds_nothing_and_harms_nothing(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA)
    table.apply(rows((1, marker, 1), (2, "b", 2)))
    table.purge(f"email = '{marker}'")
    again = table.purge(f"email = '{marker}'")
    assert set(again["where"].to_pylist()) == {"log"}
    assert table.to_arrow()["id"].to_pylist() == [2]


def test_a_dry_run_reports_the_files_and_changes_nothing(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA)
    table.apply(rows((1, marker, 1), (2, "b", 2)))
    before = files_with("", table.path)
    [file] = table.purge(f"email = '{marker}'", dry_run=True).to_pylist()
    assert (file["where"], file["rows"], file["gone_at"]) == ("table", 1, None)
    assert files_with("", table.path) == before


def test_a_reader_that_holds_a_version_is_waited_for_unless_it_is_forced(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA)
    table.apply(rows((1, marker, 1), (2, "b", 2)))
    with table.maintenance.hold(1, 3600):
        with pytest.raises(InvalidInput, match="hold versions"):
            table.purge(f"email = '{marker}'")
        assert table.to_arrow(version=1).num_rows == 2
        table.purge(f"email = '{marker}'", force=True)
    assert files_with(marker, table.path) == []
    with pytest.raises(VersionNotFound, match="purged"), table.maintenance.hold(1, 60):
        pass


def test_a_reader_of_changes_reads_on_before_the_files_go(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id"])
    table.apply(rows((1, marker, 1), (2, "b", 2)))
    log, slept = log_of(table), []
    held = Hold("reader", 1, log.now_ms() + 3_600_000, onward=True, reader="a layer")
    begin_hold(log, held)

    def read_on(seconds: float) -> None:
        slept.append(seconds)
        assert files_with(marker, table.path), "the reader has not read them yet"
        with pytest.raises(VersionNotFound, match="purged"):
            begin_hold(log, Hold("another", 2, held.until_ms))
        with pytest.raises(VersionNotFound, match="purged"):
            table.restore(version=1)
        begin_hold(log, replace(held, version=log.refresh().version))

    log.sleep = read_on
    table.purge(f"email = '{marker}'")
    assert slept
    assert files_with(marker, table.path) == []


def test_a_condition_that_fails_on_a_dead_row_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA)
    table.apply(rows((1, "no number", 1), (2, "2", 2)))
    table.delete("id = 1")
    version = table.version
    with pytest.raises(InvalidInput, match="try_cast"):
        table.purge("email::int = 2")
    assert table.version == version
    table.purge("try_cast(email as int) = 2")
    assert table.to_arrow().num_rows == 0


def test_records_of_the_quarantine_with_a_key_of_the_rows_go_and_others_stay(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id"])
    table.apply(rows((7, marker, 1), (17, "b", 1)))
    beside = lakebed.create(table.path + QUARANTINE_SUFFIX, QUARANTINE_SCHEMA)
    values = [
        f'{{"id": 7, "v": "x{marker}"}}',
        '{"id": 17, "v": "y"}',
        '{"id": 3, "v": 7}',
        f'["{marker}"]',
        '{"id":7}',
    ]
    for value in values:
        record = {"key": None, "value": value.encode(), "topic": "t", "partition": 0, "offset": 1, "reason": "r"}
        beside.apply([{**record, "time": None}])
    report = table.purge(f"email = '{marker}'")
    assert everywhere(table, tmp_path, marker) == []
    assert "quarantine" in report["where"].to_pylist()
    left = sorted(value.decode() for value in lakebed.open(beside.path).to_arrow()["value"].to_pylist())
    assert left == sorted(['{"id": 17, "v": "y"}', '{"id": 3, "v": 7}'])
    table.purge("id = 17", quarantine="true")
    assert lakebed.open(beside.path).to_arrow().num_rows == 0


def test_a_purge_ends_before_records_that_a_replay_may_bring_back(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id"])
    table.apply(rows((7, marker, 1)))
    lakebed.create(table.path + QUARANTINE_SUFFIX, QUARANTINE_SCHEMA)
    log = log_of(table)
    log.commit(log.refresh(), [Domain(REPLAY + "q", "{}")], CommitInfo(operation="REPLAY", commit_id=""), BLIND)
    with pytest.raises(Contention, match="a replay of the quarantine"):
        table.purge(f"email = '{marker}'")


def test_a_merge_of_parts_that_have_left_ends_with_the_versions_that_had_them(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA)
    table.apply(rows((7, marker, 1)))
    claim_everything(table)
    table.delete("id = 7")
    table.purge(f"email = '{marker}'")
    assert not claims_of(log_of(table).refresh().domains)


def test_a_record_of_the_quarantine_goes_whose_header_has_a_key_of_the_rows(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id"])
    table.apply(rows((7, marker, 1), (17, "b", 1)))
    beside = lakebed.create(table.path + QUARANTINE_SUFFIX, WITH_HEADERS)
    record = {"key": None, "topic": "t", "partition": 0, "offset": 1, "reason": "r", "time": None}
    for value, new_key in ((b"gone", b'{"id": 7}'), (b"left", b'{"id": 17}'), (b"none", None)):
        headers = new_key and [{"key": "__debezium.newkey", "value": new_key}]
        beside.apply([{**record, "value": value, "headers": headers}])
    table.purge(f"email = '{marker}'")
    assert sorted(lakebed.open(beside.path).to_arrow()["value"].to_pylist()) == [b"left", b"none"]


def test_a_materialized_part_of_this_host_goes(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id"])
    for at in range(3):
        table.apply(rows((1 + at, marker, 1), (10 + at, "b", 1)))
        table.settle()
    snapshot = log_of(table).refresh()
    replica = VolatileMerger(
        log_of(table), storage_of(table), deletion_vectors_of(table), compaction_of(table).volatile_base
    )
    kernel = LocalKernel(storage_of(table), log_of(table).refresh)
    assert replica.run(sorted(snapshot.parts), 1, kernel).local
    assert files_with(marker, tmp_path / "cache")
    report = table.purge(f"email = '{marker}'")
    assert everywhere(table, tmp_path, marker) == []
    assert "volatile" in report["where"].to_pylist()
    replica.extend()
    assert replica.held() == []
    assert sorted(table.to_arrow()["id"].to_pylist()) == [10, 11, 12]


def test_a_merge_under_way_leaves_nothing_on_the_local_disk(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id"])
    for at in range(2):
        table.apply(rows((1 + at, marker, 1), (10 + at, "b", 1)))
        table.settle()

    class Slow(LocalKernel):
        def merge(self, *arguments: Any) -> list[MergedPart]:
            merged = super().merge(*arguments)
            lakebed.open(table.path).purge(f"email = '{marker}'")
            super().merge(*arguments)  # and writes on
            return merged

    internals = internals_of(lakebed.open(table.path))
    replica = VolatileMerger(
        internals.log, internals.storage, internals.deletion_vectors, internals.compaction.volatile_base
    )
    paths = sorted(internals.log.refresh().parts)
    with contextlib.suppress(LakebedError):  # its sources are gone
        assert replica.run(paths, 1, Slow(internals.storage, internals.log.refresh)).version == -1
    assert everywhere(table, tmp_path, marker) == []
    assert replica.held() == []


@pytest.mark.slow
def test_ingest_and_maintenance_go_on_beside_a_purge(tmp_path: Path, marker: str) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA, keys=["id"], properties={"lakebed.read_budget": "2"})
    table.apply(rows((1, marker, 1), (2, "b", 1)))
    done, failed, batches = threading.Event(), [], itertools.count(100)
    applied: list[int] = []

    def keep_on(act: Callable[[lakebed.Table], object]) -> None:
        own = lakebed.open(table.path)
        while not done.is_set():
            try:
                act(own)
            except Retry:
                continue
            except BaseException as error:
                failed.append(error)
                return

    def ingest(own: lakebed.Table) -> None:
        at = next(batches)
        own.apply(rows((at, f"row {at}", 1), (2, f"b{at}", at)), batch_id=f"batch {at}")
        applied.append(at)
        done.wait(0.1)  # a table into which rows come without any pause lets no condition over its rows commit

    def maintain(own: lakebed.Table) -> None:
        own.settle()
        own.maintenance.compact()

    threads = [threading.Thread(target=keep_on, args=(act,)) for act in (ingest, maintain)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(applied) > 2)
        for purged in range(2):
            lakebed.open(table.path).apply(rows((-1 - purged, marker, 1)))
            report = lakebed.open(table.path).purge(f"email = '{marker}'")
            assert everywhere(table, tmp_path, marker) == []
            assert report["gone_at"].null_count == 0
        before = len(applied)
        wait_until(lambda: len(applied) > before or bool(failed))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failed == []
    again = lakebed.open(table.path)
    assert sorted(again.to_arrow()["id"].to_pylist()) == sorted([2, *applied])
    assert again.doctor(deep=True).findings == ()
    assert everywhere(table, tmp_path, marker) == [], "what was being written at the first look had a row"


def test_the_command_asks_first_and_lists_the_files(
    tmp_path: Path, marker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = lakebed.create(str(tmp_path / "t"), schema=SCHEMA)
    table.apply(rows((1, marker, 1), (2, "b", 2)))
    command = ["purge", table.path, "--where", f"email = '{marker}'"]
    assert main(command) != 0
    assert "ends all versions" in capsys.readouterr().err
    assert main([*command, "--dry-run"]) == 0
    assert "1 files have such rows" in capsys.readouterr().err
    assert main([*command, "--yes", "--format", "json"]) == 0
    assert files_with(marker, table.path) == []
    assert '"where":"table"' in capsys.readouterr().out.replace(" ", "")


def test_no_object_in_s3_has_a_byte_of_purged_rows(s3: S3Server, tmp_path: Path, marker: str) -> None:
    table = lakebed.create(f"s3://{s3.create_bucket()}/t", schema=SCHEMA, keys=["id"])
    table.apply(rows((1, marker, 1), (2, "b", 1)))
    table.settle()
    table.apply(rows((1, "today", 2), (3, marker, 1)))
    table.maintenance.clean_log()

    def objects() -> list[str]:
        storage = storage_of(table)
        return [path for path, _, _ in storage.list("") if holds(storage.read_bytes(path), path, marker)]

    assert objects()
    report = table.purge(f"email = '{marker}'")
    assert objects() == []
    assert files_with(marker, tmp_path / "cache") == []
    assert report["gone_at"].null_count == 0
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]
