"""Invariant G1: a cleanup deletes nothing that a kept version needs, and leaves nothing behind that no version needs."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakebed
from lakebed.cli import main
from lakebed.coordination.read_counts import begin_hold, end_hold
from lakebed.errors import Corrupt, InvalidInput, LakebedError, StoreUnavailable, VersionNotFound
from lakebed.log.actions import CommitInfo, Domain
from lakebed.log.claims import Claim
from lakebed.log.conflicts import BLIND
from lakebed.log.holds import Hold, first_unexpired, holds_of, trim_log_before
from lakebed.operations import cleanup
from lakebed.operations.cleanup import CLEANED_SCHEMA, BackgroundCleanup, LiveSet, reason_to_go
from lakebed.operations.purge import files as purge_files
from lakebed.operations.references import hold
from lakebed.parts import deletion_vector_cache
from lakebed.parts.change_rows import changed_versions, read_version
from lakebed.storage.data_files import LocalPartStorage
from lakebed.storage.local_folders import delete_each
from lakebed.storage.part_storage import PartStorage
from lakebed.table import internals_of
from tests.clock import Clock
from tests.infra.s3 import S3Server
from tests.internals import log_of, storage_of
from tests.oracle import Row, in_order
from tests.table.test_every_version_equals_the_oracle import World, close, make_world, step
from tests.worlds import seeds

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
HOUR, DAY = 3600, 86_400
NOW_OF_THE_DISK = LocalPartStorage.now
NOW = 4_000_000_000.0  # far ahead of the disk's clock: every file is old, so that only its name can save it
NO_TIME = "0 seconds"


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def store_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk's clock is no earlier than the table's, which these tests set."""
    monkeypatch.setattr(LocalPartStorage, "now", lambda self: 2 * NOW)


@pytest.fixture(autouse=True)
def vectors_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletion vectors of a few rows would stand in the log; here they are files, which a cleanup must know."""
    monkeypatch.setattr(deletion_vector_cache, "_INLINE_BYTES_MAX", 0)


def at(table: lakebed.Table, clock: Clock) -> lakebed.Table:
    log_of(table).clock = clock
    return table


def a_table(folder: Path, clock: Clock, days: int = 6) -> lakebed.Table:
    """A change of all rows a day, settled: two versions a day, and the clock on the last one."""
    table = at(lakebed.create(folder / "t", SCHEMA, keys=["id"]), clock)
    for day in range(days):
        clock.now += DAY
        table.apply(rows_of(day))
        table.settle()
        written_now(table)
    return table


def written_now(table: lakebed.Table) -> None:
    """Give files that are new the time of the table's clock."""
    moment = log_of(table).now_ms() / 1000
    for file in Path(table.path, "_lakebed").glob("*"):
        if file.stat().st_mtime < NOW - 1000 * DAY:
            os.utime(file, (moment, moment))


def rows_of(day: int) -> pa.Table:
    return pa.table({"id": [1, 2, 3], "v": [f"day {day}"] * 2 + ["same"]})


def files(table: lakebed.Table) -> set[str]:
    return {path for path, _, _ in storage_of(table).list("_lakebed/")}


def put(table: lakebed.Table, path: str, age: timedelta = timedelta(days=30)) -> Path:
    """A file that no version names."""
    place = Path(table.path) / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"x")
    moment = log_of(table).now_ms() / 1000 - age.total_seconds()
    os.utime(place, (moment, moment))
    return place


def reasons(cleaned: pa.Table) -> set[str]:
    assert cleaned.schema == CLEANED_SCHEMA
    return set(cleaned["reason"].to_pylist())


class Hooked:
    """A storage that calls ``after_list`` when a listing has ended, and ``before_delete`` before each deletion."""

    def __init__(
        self,
        inner: PartStorage,
        after_list: Callable[[], object] | None = None,
        before_delete: Callable[[str], object] | None = None,
    ) -> None:
        self._inner, self._after_list, self._before_delete = inner, after_list, before_delete

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int, float]]:
        yield from self._inner.list(prefix)
        if self._after_list and prefix == "_lakebed/":
            self._after_list()

    def delete(self, path: str) -> None:
        if self._before_delete:
            self._before_delete(path)
        self._inner.delete(path)

    def delete_many(self, paths: Sequence[str]) -> dict[str, LakebedError]:
        return delete_each(self.delete, paths)


def hooked(table: lakebed.Table, **hooks: Callable[..., object]) -> PartStorage:
    return cast("PartStorage", Hooked(storage_of(table), **hooks))


# -- nothing that is needed goes -------------------------------------------------------------------------------------


@dataclass
class Cleaned:
    """A world whose versions expire at once, what of it must be readable, and who holds what."""

    world: World
    tidy: BackgroundCleanup
    first: int = 0
    held: dict[int, AbstractContextManager[int]] = field(default_factory=dict)

    @property
    def table(self) -> lakebed.Table:
        return self.world.table

    def note(self, rows: list[Row] | None = None) -> None:
        """What the versions since the last note must be."""
        for version in range(self.table.version + 1):
            self.world.states.setdefault(version, self.world.oracle.rows() if rows is None else rows)

    def clean(self) -> None:
        """Any of the cleanups. Files are made old before, so that only their names can save them."""
        if not self.table.path.startswith("s3"):
            for file in Path(self.table.path, "_lakebed").glob("*"):
                os.utime(file, (0, 0))
        rng, keep = self.world.random, self.world.random.choice([1, 1, 3, 8])
        match rng.choice(["expire", "vacuum", "orphans", "tidy"]):
            case "expire":
                self.first = max(self.first, self.table.version - keep + 1)
                self.table.maintenance.expire_snapshots(NO_TIME, keep, False, allow_short_retention=True)
                self.world.oldest = max(self.world.oldest, log_of(self.table).oldest_version())
            case "vacuum":
                self.first = self.table.version
                self.table.maintenance.vacuum(NO_TIME, dry_run=False, allow_short_retention=True)
            case "orphans":
                self.first = self.table.version
                self.table.maintenance.remove_orphan_files(NO_TIME, dry_run=False, allow_short_retention=True)
            case "tidy":
                self.first = self.table.version
                self.tidy.log = log_of(self.table)
                if rng.random() < 0.5:
                    self.tidy.list_next()
                self.tidy.run_once()

    def hold_or_release(self) -> None:
        if self.held and self.world.random.random() < 0.5:
            version = self.world.random.choice(sorted(self.held))
            self.held.pop(version).__exit__(None, None, None)
        else:
            version = self.world.random.randint(max(self.first, self.world.oldest), self.table.version)
            if version not in self.held:
                self.held[version] = self.table.maintenance.hold(version, DAY)
                self.held[version].__enter__()
        self.note()

    def detach_clean_attach(self) -> None:
        regions = sorted({json.dumps(row["region"]) for row in self.world.oracle.rows()})
        if "region" not in log_of(self.table).refresh().metadata.partition_columns or not regions:
            return
        if self.world.replica is not None:
            return  # it would lose its claims, which its steps do not expect
        region = json.loads(self.world.random.choice(regions))
        self.table.settle()
        self.note()
        name = self.table.detach_partition({"region": region})
        self.note([row for row in self.world.oracle.rows() if row["region"] != region])
        without = self.world.states[self.table.version]
        if without:
            self.clean()
            self.note(without)
        self.table.attach_partition(name)
        self.note()

    def check(self) -> None:
        needed = {v for v in self.world.states if v >= max(self.first, self.world.oldest)} | self.held.keys()
        for version, rows in self.world.states.items():
            try:
                found = self.table.to_arrow(version=version)
            except VersionNotFound:
                assert version not in needed, f"version {version} of {self.table.version} is gone"
            else:
                assert in_order(found.to_pylist()) == rows, f"version {version} of {self.table.version}"


def run_cleaned_world(seed: int, folder: Path, steps: int) -> None:
    world = make_world(seed, folder)
    run = Cleaned(world, BackgroundCleanup(log_of(world.table), storage_of(world.table)))
    world.table.set_properties({"delta.deletedFileRetentionDuration": NO_TIME})
    run.note()
    for _ in range(steps):
        match world.random.choice(["step"] * 6 + ["clean", "clean", "hold", "detach"]):
            case "step":
                step(world, folder)
                run.note()
            case "clean" if world.oracle.rows():  # else nothing may be named, which another test is about
                run.clean()
                run.note()
                run.check()
            case "hold":
                run.hold_or_release()
            case "detach":
                run.detach_clean_attach()
    run.check()
    close(world.replica)


@pytest.mark.few(4)
@seeds(4)
def test_every_kept_and_every_held_version_equals_the_oracle_whatever_is_cleaned(seed: int, tmp_path: Path) -> None:
    run_cleaned_world(seed, tmp_path, steps=random.Random(seed).choice([10, 20, 30]))


@pytest.mark.few(1)
def test_the_same_holds_on_s3(s3: S3Server) -> None:
    class Prefix(str):
        def __truediv__(self, name: str) -> str:
            return f"{self}/{name}"

    run_cleaned_world(1000, cast("Path", Prefix(f"s3://{s3.create_bucket()}/lake")), steps=15)


def test_on_s3_orphans_and_expired_files_go(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from lakebed.storage.data_files import RemotePartStorage

    monkeypatch.setattr(RemotePartStorage, "now", lambda self: 2 * NOW)
    clock = Clock(NOW)
    table = at(lakebed.create(f"s3://{s3.create_bucket()}/t", SCHEMA, keys=["id"]), clock)
    storage_of(table).write_bytes("_lakebed/nobody.parquet", b"x")
    for day in range(4):
        clock.now += DAY
        table.apply(rows_of(day))
        table.settle()
    cleaned = table.maintenance.expire_snapshots("2 hours", dry_run=False)
    assert reasons(cleaned) == {"expired", "orphan"} | ({"log"} if log_of(table).oldest_version() else set())
    assert files(table) == needed_by(table, table.version - 3)
    assert table.to_arrow().num_rows == 3


def needed_by(table: lakebed.Table, first: int) -> set[str]:
    """Independent of the code under test: parts and vectors of the versions from one on, read one by one."""
    needed: set[str] = set()
    for version in range(first, table.version + 1):
        snapshot = log_of(table).at_version(version)
        for part in snapshot.parts.values():
            needed.add(part.path)
            if part.deletion_vector and part.deletion_vector.file_path():
                needed.add(str(part.deletion_vector.file_path()))
        needed.update(part.path for part in snapshot.tail.values())
    return needed


# -- what is not needed goes -----------------------------------------------------------------------------------------


def test_exactly_the_files_that_kept_versions_name_are_left(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock)
    before = files(table)
    first = table.version - 4  # two versions of today, two of yesterday, and the one that was current at the horizon
    cleaned = table.maintenance.vacuum("36 hours", dry_run=False)
    assert files(table) == needed_by(table, first) != before
    assert set(cleaned["path"].to_pylist()) == before - files(table)
    assert sum(cleaned["bytes"].to_pylist()) > 0
    assert len(table.maintenance.vacuum("36 hours", dry_run=False)) == 0, "a second cleanup finds nothing"


def test_a_change_part_that_never_joined_the_base_goes_when_its_versions_expired(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = at(lakebed.create(tmp_path / "t", SCHEMA, keys=["id"]), clock)
    table.apply(rows_of(0))
    [first] = table.inspect.parts()["path"].to_pylist()
    table.apply(rows_of(1))
    table.settle()
    assert first not in table.inspect.parts()["path"].to_pylist(), "all its rows were superseded"
    clock.now += DAY
    assert len(table.maintenance.vacuum("2 days", dry_run=False)) == 0
    clock.now += 8 * DAY
    assert table.maintenance.vacuum(dry_run=False)["path"].to_pylist() == [first]


def test_a_dry_run_is_the_default_deletes_nothing_and_tells_what_would_go(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock)
    put(table, "_lakebed/nobody.parquet")
    put(table, "_lakebed/.lakebed-tmp-0.parquet")
    everything = {p: p.read_bytes() for p in Path(table.path).rglob("*") if p.is_file()}
    told = table.maintenance.expire_snapshots("1 day")
    assert reasons(told) == {"expired", "orphan", "temporary", "log"}
    assert len(table.maintenance.vacuum("1 day")) + len(table.maintenance.remove_orphan_files()) > 0
    assert {p: p.read_bytes() for p in Path(table.path).rglob("*") if p.is_file()} == everything
    done = table.maintenance.expire_snapshots("1 day", dry_run=False)
    assert set(done["path"].to_pylist()) == set(told["path"].to_pylist())


def test_orphans_go_by_age_and_other_files_stay(tmp_path: Path) -> None:
    table = a_table(tmp_path, Clock(NOW), days=1)
    old = [put(table, "_lakebed/nobody.parquet"), put(table, "_lakebed/deletion_vector_nobody.bin")]
    crashed = put(table, "_lakebed/.lakebed-tmp-1.parquet")
    young = put(table, "_lakebed/soon.parquet", age=timedelta(days=2))
    others = [
        put(table, path)
        for path in ("_lakebed/streams/q/x.parquet", "_lakebed/notes.txt", "export.parquet", "_delta_log/x.parquet")
    ]
    cleaned = table.maintenance.remove_orphan_files(dry_run=False)
    assert reasons(cleaned) == {"orphan", "temporary"}
    assert not any(place.exists() for place in [*old, crashed])
    assert all(place.exists() for place in [young, *others])
    table.maintenance.remove_orphan_files("1 day", dry_run=False)
    assert not young.exists()


@pytest.mark.parametrize("clean", ["vacuum", "a running maintenance"])
def test_what_a_killed_writer_left_in_the_log_goes_by_age(tmp_path: Path, clean: str) -> None:
    clock = Clock(NOW)
    table = at(lakebed.create(tmp_path / "t", SCHEMA, keys=["id"]), clock)
    left = put(table, "_delta_log/.lakebed-tmp-1.json", age=timedelta(days=20))
    young = put(table, "_delta_log/.lakebed-tmp-2.json", age=timedelta(hours=1))
    log_files = set((tmp_path / "t" / "_delta_log").iterdir())
    if clean == "vacuum":
        assert reasons(table.maintenance.vacuum(dry_run=False)) == {"temporary"}
    else:
        assert BackgroundCleanup(log_of(table), storage_of(table)).run_once() == 1
    assert young.exists() and not left.exists()
    assert set((tmp_path / "t" / "_delta_log").iterdir()) >= log_files - {left}


def test_what_a_claim_under_way_may_have_written_is_no_orphan(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock, days=1)
    output = put(table, "_lakebed/output.parquet", age=timedelta(days=5))
    since = int((clock.now - 6 * DAY) * 1000)
    [part] = table.inspect.parts()["path"].to_pylist()[:1]
    claim = Claim(id="c", replica="r", sources=(part,), level=1, lease_ms=int((clock.now + DAY) * 1000), since_ms=since)
    log_of(table).commit(
        log_of(table).refresh(), [claim.to_action()], CommitInfo(operation="CLAIM", commit_id=""), BLIND
    )
    assert len(table.maintenance.remove_orphan_files(dry_run=False)) == 0
    clock.now += 10 * DAY
    assert table.maintenance.remove_orphan_files(dry_run=False)["path"].to_pylist() == ["_lakebed/output.parquet"]
    assert not output.exists()


def test_any_file_that_an_entry_of_the_log_mentions_stays(tmp_path: Path) -> None:
    table = a_table(tmp_path, Clock(NOW), days=1)
    spaced = put(table, "_lakebed/a b.parquet")
    entry = {"parts": [{"path": "_lakebed/a%20b.parquet"}], "more": {"sources": ["_lakebed/c.parquet"]}}
    mentioned = put(table, "_lakebed/c.parquet")
    action = Domain("lakebed.detached.x", json.dumps(entry))
    log_of(table).commit(log_of(table).refresh(), [action], CommitInfo(operation="DETACH", commit_id=""), BLIND)
    assert len(table.maintenance.remove_orphan_files(dry_run=False)) == 0
    assert spaced.exists()
    assert mentioned.exists()


def test_files_of_a_converted_table_go_and_those_of_tables_below_it_stay(tmp_path: Path) -> None:
    root, clock = tmp_path / "t", Clock(NOW)
    for number in range(2):
        write_deltalake(str(root), pa.table({"id": [number], "v": ["a"]}), mode="append")
    table = at(lakebed.convert(root, keys=["id"]), clock)
    write_deltalake(str(root / "inner" / "table"), pa.table({"id": [1]}))
    clock.now += DAY
    adopted = set(table.inspect.parts()["path"].to_pylist())
    table.apply(pa.table({"id": [0, 1], "v": ["b", "b"]}))
    table.settle()
    left = put(table, "left-by-a-failed-writer.parquet")
    hidden = [put(table, "_other/x.parquet"), put(table, ".x.parquet"), put(table, "readme.txt")]
    clock.now += 30 * DAY
    table.apply(pa.table({"id": [2], "v": ["c"]}))
    inner = list((root / "inner").rglob("*.parquet"))
    rows = table.maintenance.vacuum(dry_run=False)
    cleaned = dict(zip(rows["path"].to_pylist(), rows["reason"].to_pylist(), strict=True))
    assert cleaned.items() >= {left.name: "orphan", **dict.fromkeys(adopted, "expired")}.items()
    assert all(place.exists() for place in [*hidden, *inner])
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_the_newest_versions_stay_when_asked_to(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock)
    newest, clock.now = table.version, clock.now + 30 * DAY
    table.maintenance.expire_snapshots("1 day", retain_last=5, dry_run=False)
    assert all(table.to_arrow(version=version).num_rows == 3 for version in range(newest - 4, newest + 1))
    with pytest.raises(VersionNotFound, match=f"version {newest - 5} has expired.*kept is {newest - 4}"):
        table.to_arrow(version=newest - 5)
    with pytest.raises(InvalidInput, match="retain_last is 0"):
        table.maintenance.expire_snapshots(retain_last=0)


def test_a_writer_that_sleeps_while_all_versions_it_knows_expire_does_its_work_again(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = at(lakebed.create(tmp_path / "t", SCHEMA, keys=["id"]), clock)
    asleep = log_of(table).refresh()
    for day in range(3):
        table.apply(rows_of(day))
        table.settle()
    clock.now += 2 * HOUR
    table.apply(rows_of(9))
    clock.now += 2 * HOUR
    assert "log" in reasons(table.maintenance.expire_snapshots("1 hour", dry_run=False))
    assert log_of(table).read_commit(asleep.version + 1) is None
    late = log_of(table).commit(asleep, [Domain("lakebed.x", "{}")], CommitInfo(operation="LATE", commit_id=""), BLIND)
    assert type(late).__name__ == "Conflicted"


# -- stop rather than be wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["expire_snapshots", "vacuum", "remove_orphan_files"])
def test_a_short_retention_is_refused(tmp_path: Path, call: str) -> None:
    table = a_table(tmp_path, Clock(NOW), days=1)
    with pytest.raises(InvalidInput, match="allow_short_retention"):
        getattr(table.maintenance, call)("59 minutes")
    with pytest.raises(InvalidInput, match="short retention"):
        getattr(table.maintenance, call)(timedelta(seconds=-1), allow_short_retention=True)
    getattr(table.maintenance, call)("59 minutes", allow_short_retention=True)


@pytest.mark.parametrize("clean", ["expire_snapshots", "vacuum", "clean_log", "running maintenance"])
def test_a_cleanup_whose_clock_is_a_year_ahead_ends_no_version_and_no_hold(
    clean: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalPartStorage, "now", lambda self: NOW)
    table = at(lakebed.create(tmp_path / "t", SCHEMA, keys=["id"]), Clock(NOW - DAY))
    for number in range(4):
        table.apply(rows_of(number))
        table.settle()
        log_of(table).write_checkpoint(log_of(table).refresh())  # below which the log could be cleaned
    with table.maintenance.hold(3, seconds=5 * DAY):
        late = at(lakebed.open(tmp_path / "t"), Clock(NOW + 365 * DAY))
        if clean == "running maintenance":
            internals_of(late).tidy()
        else:
            getattr(late.maintenance, clean)(**({} if clean == "clean_log" else {"dry_run": False}))
        for version in range(1, 9):
            assert f"day {(version - 1) // 2}" in table.to_arrow(["v"], version=version)["v"].to_pylist()


@pytest.mark.parametrize("call", ["expire_snapshots", "vacuum", "remove_orphan_files", "a running maintenance"])
def test_a_clock_days_ahead_takes_no_file_that_the_store_calls_young(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalPartStorage, "now", NOW_OF_THE_DISK)
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    for day in range(3):
        table.apply(rows_of(day))
        table.settle()
    names = ("_lakebed/part-young.parquet", "_lakebed/deletion_vector_young.bin", "_lakebed/.lakebed-tmp-young")
    young = [put(table, name, timedelta(hours=1)) for name in names]
    old = put(table, "_lakebed/part-old.parquet", timedelta(days=5))
    log_of(table).clock = lambda: time.time() + 30 * DAY
    table.apply(rows_of(4))
    if call == "a running maintenance":
        BackgroundCleanup(log_of(table), storage_of(table)).run_once()
    else:
        getattr(table.maintenance, call)(dry_run=False)
    assert all(file.exists() for file in young)
    assert not old.exists() or call == "a running maintenance"
    assert table.to_arrow().num_rows


@pytest.mark.parametrize("call", ["expire_snapshots", "vacuum", "remove_orphan_files", "a running maintenance"])
def test_what_a_writer_has_not_committed_yet_stays_however_short_the_retention_property(
    tmp_path: Path, call: str
) -> None:
    table = a_table(tmp_path, Clock(NOW), days=3)
    table.set_properties({"delta.deletedFileRetentionDuration": NO_TIME})
    young = put(table, "_lakebed/part-young.parquet", timedelta(hours=71))
    vector = put(table, "_lakebed/deletion_vector_young.bin", timedelta(hours=71))
    old = put(table, "_lakebed/part-old.parquet")
    written_now(table)
    if call == "a running maintenance":
        BackgroundCleanup(log_of(table), storage_of(table)).run_once()
    else:
        getattr(table.maintenance, call)(dry_run=False)
    assert young.exists() and vector.exists()
    assert not old.exists()


def emptied_by_truncate(table: lakebed.Table) -> None:
    table.truncate()


def emptied_by_a_delete(table: lakebed.Table) -> None:
    table.delete("true")
    table.settle()


def emptied_before_the_tail_was_settled(table: lakebed.Table) -> None:
    table.apply(rows_of(9))
    table.truncate()


@pytest.mark.parametrize("empty", [emptied_by_truncate, emptied_by_a_delete, emptied_before_the_tail_was_settled])
@pytest.mark.parametrize("clean", ["expire_snapshots", "vacuum", "a running maintenance"])
def test_a_table_of_which_the_log_tells_how_it_was_emptied_is_cleaned(
    tmp_path: Path, empty: Callable[[lakebed.Table], None], clean: str
) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock, days=2)
    clock.now += DAY
    empty(table)
    written_now(table)
    clock.now += 6 * DAY
    assert BackgroundCleanup(log_of(table), storage_of(table)).run_once() == len(table.maintenance.vacuum()) == 0, (
        "versions with rows are kept"
    )
    clock.now += 30 * DAY
    table = at(lakebed.open(table.path), clock)
    if clean == "a running maintenance":
        BackgroundCleanup(log_of(table), storage_of(table)).run_once()
    else:
        getattr(table.maintenance, clean)(dry_run=False)
    assert not files(table)
    table.apply(rows_of(0))
    assert table.to_arrow().num_rows == 3


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("lost", ["all of the log", "what emptied it", "the parts of a checkpoint"])
def test_an_empty_live_set_that_the_log_does_not_explain_stops_everything(
    tmp_path: Path, dry_run: bool, lost: str
) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock, days=2)
    if lost == "all of the log":
        shutil.rmtree(tmp_path / "t" / "_delta_log")
        table = at(lakebed.create(table.path, SCHEMA, keys=["id"]), clock)
        table.set_properties({"lakebed.read_budget": "4"})
    elif lost == "the parts of a checkpoint":
        whole = log_of(table).refresh()
        log_of(table).write_checkpoint(replace(whole, parts={}))
        removals = [part.removed(0) for part in whole.parts.values()]
        log_of(table).commit(whole, removals, CommitInfo(operation="X", commit_id=""), BLIND)
        trim_log_before(log_of(table), whole.version)
        table = at(lakebed.open(table.path), clock)
    else:
        table.truncate()
        table.set_properties({"lakebed.read_budget": "4"})
        log_of(table).write_checkpoint(log_of(table).refresh())
        table.set_properties({"lakebed.read_budget": "5"})
        trim_log_before(log_of(table), table.version)
    clock.now += 30 * DAY
    before = files(table)
    for call in (table.maintenance.expire_snapshots, table.maintenance.vacuum):
        with pytest.raises(Corrupt, match="nothing was deleted"):
            call(dry_run=dry_run)
    assert BackgroundCleanup(log_of(table), storage_of(table)).run_once() == 0
    assert files(table) == before
    table.apply(rows_of(0))
    assert len(table.maintenance.vacuum(dry_run=dry_run)) > 0


@pytest.mark.parametrize("empty", [emptied_by_truncate, None], ids=["truncated", "purged of all its rows"])
@pytest.mark.parametrize("clean", ["expire_snapshots", "vacuum", "remove_orphan_files", "a running maintenance"])
def test_a_table_that_a_purge_found_empty_is_cleaned(
    tmp_path: Path, empty: Callable[[lakebed.Table], None] | None, clean: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)
    clock = Clock(NOW)
    table = a_table(tmp_path, clock, days=2)
    if empty:
        empty(table)
    table.purge("id > 0")
    assert not files(table) and log_of(table).oldest_version() > 0, "the log has no commit that removed a part"
    orphan = put(table, "_lakebed/part-orphan.parquet")
    clock.now += DAY
    table = at(lakebed.open(table.path), clock)
    if clean == "a running maintenance":
        assert BackgroundCleanup(log_of(table), storage_of(table)).run_once() == 1
    else:
        assert reasons(getattr(table.maintenance, clean)(dry_run=False)) >= {"orphan"}
    assert not orphan.exists()


@pytest.mark.parametrize("lost", ["before the purge", "after the purge"])
def test_parts_that_a_checkpoint_after_a_purge_lost_stay(
    tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)
    clock = Clock(NOW)
    table = a_table(tmp_path, clock, days=2)
    table.purge("id > 0" if lost == "after the purge" else "id = 1")
    first = log_of(table).oldest_version()
    if lost == "after the purge":
        table.apply(rows_of(3))
    clock.now += 30 * DAY
    whole = log_of(table).refresh()
    log_of(table).write_checkpoint(replace(whole, parts={}, tail={}))
    if lost == "before the purge":
        log_of(table).write_checkpoint(replace(log_of(table).at_version(first), parts={}, tail={}))
    table.set_properties({"lakebed.read_budget": "4"})
    table = at(lakebed.open(table.path), clock)
    assert table.to_arrow().num_rows == 0
    before = files(table)
    assert before
    assert BackgroundCleanup(log_of(table), storage_of(table)).run_once() == 0
    with pytest.raises(Corrupt, match="nothing was deleted"):
        table.maintenance.vacuum(dry_run=False)
    assert files(table) == before


def test_an_entry_that_cannot_be_read_stops_everything(tmp_path: Path) -> None:
    table = a_table(tmp_path, Clock(NOW))
    log_of(table).commit(
        log_of(table).refresh(), [Domain("lakebed.later", "?")], CommitInfo(operation="X", commit_id=""), BLIND
    )
    with pytest.raises(Corrupt, match=r"lakebed\.later"):
        table.maintenance.vacuum("1 day", dry_run=False)


class CrashError(Exception):
    pass


@pytest.mark.parametrize("survived", range(0, 12, 2))
def test_a_crash_in_the_middle_leaves_kept_versions_whole_and_the_next_cleanup_ends_it(
    tmp_path: Path, survived: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock)
    left = survived

    def count(_: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise CrashError

    delete_log = log_of(table).store.delete

    def delete_counted(name: str) -> None:
        count(name)
        delete_log(name)

    monkeypatch.setattr(log_of(table).store, "delete", delete_counted)
    with pytest.raises(CrashError):
        cleanup.expire_snapshots(log_of(table), hooked(table, before_delete=count), DAY, dry_run=False)
    monkeypatch.setattr(log_of(table).store, "delete", delete_log)

    again = at(lakebed.open(table.path), clock)
    first = first_unexpired(log_of(again).refresh().domains)
    for version in range(again.version + 1):
        if version >= first:
            assert again.to_arrow(version=version).num_rows == 3
        else:
            with pytest.raises(VersionNotFound):
                again.to_arrow(version=version)
    again.maintenance.expire_snapshots("1 day", dry_run=False)
    clock.now += 4 * DAY  # what the log's names were lost of goes as orphans
    again.apply(rows_of(1))
    again.maintenance.expire_snapshots("1 day", dry_run=False)
    assert files(again) == needed_by(again, again.version - 2)


def test_a_file_that_cannot_be_deleted_is_tried_again(tmp_path: Path) -> None:
    table = a_table(tmp_path, Clock(NOW))
    candidates = table.maintenance.vacuum("1 day")["path"].to_pylist()

    def fail(path: str) -> None:
        if path == candidates[0]:
            raise StoreUnavailable("away")

    deleted = cleanup.vacuum(log_of(table), hooked(table, before_delete=fail), DAY, dry_run=False)
    assert deleted["path"].to_pylist() == candidates[1:]
    assert table.maintenance.vacuum("1 day", dry_run=False)["path"].to_pylist() == candidates[:1]


# -- readers ---------------------------------------------------------------------------------------------------------


def test_a_held_version_outlives_every_cleanup_until_it_is_released(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock)
    rows = table.to_arrow(version=3).to_pylist()
    with table.maintenance.hold(3, 100 * DAY) as version:
        clock.now += 40 * DAY
        table.apply(rows_of(0))
        clock.now += 40 * DAY
        table.maintenance.expire_snapshots("1 hour", dry_run=False)
        table.maintenance.clean_log()
        BackgroundCleanup(log_of(table), storage_of(table)).run_once()
        assert at(lakebed.open(table.path), clock).to_arrow(version=version).to_pylist() == rows
        with pytest.raises(VersionNotFound):
            table.to_arrow(version=5)
        with pytest.raises(VersionNotFound, match="can't be held"), table.maintenance.hold(5, 60):
            pass
    assert holds_of(log_of(table).refresh().domains) == []
    table.maintenance.expire_snapshots("1 hour", dry_run=False)
    with pytest.raises(VersionNotFound):
        table.to_arrow(version=3)


def test_a_hold_that_ran_out_holds_nothing_and_is_taken_out_of_the_log(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock)
    holding = table.maintenance.hold(3, 60)
    holding.__enter__()
    clock.now += 61
    table.maintenance.expire_snapshots("1 hour", dry_run=False)
    assert holds_of(log_of(table).refresh().domains) == []
    with pytest.raises(VersionNotFound):
        table.to_arrow(version=3)
    holding.__exit__(None, None, None)


def test_a_reader_that_takes_hold_while_a_cleanup_lists_keeps_its_version(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock)
    rows = table.to_arrow(version=3).to_pylist()
    other = at(lakebed.open(table.path), clock)
    with ExitStack() as stack:
        take = {"after_list": lambda: stack.enter_context(hold(log_of(other), 3, 1000))}
        cleaned = cleanup.expire_snapshots(log_of(table), hooked(table, **take), HOUR, dry_run=False)
        assert len(cleaned) > 0
        assert table.to_arrow(version=3).to_pylist() == rows


def change_rows_of(table: lakebed.Table, clock: Clock, first: int) -> list[object]:
    found = changed_versions(log_of(at(lakebed.open(table.path), clock)), first, table.version)
    return [row for version in found for batch in read_version(table.path, version) for row in batch.to_pylist()]


def onward(table: lakebed.Table, version: int, seconds: int) -> Hold:
    return Hold("reader", version, log_of(table).now_ms() + seconds * 1000, onward=True, reader="a copy")


def test_a_reader_of_changes_finds_every_later_version_whatever_is_cleaned(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock)
    rows = change_rows_of(table, clock, 3)
    begin_hold(log_of(table), onward(table, 2, 100 * DAY))
    clock.now += 40 * DAY
    table.apply(rows_of(0))
    clock.now += 40 * DAY
    table.maintenance.expire_snapshots("1 hour", dry_run=False)
    table.maintenance.clean_log()
    BackgroundCleanup(log_of(table), storage_of(table)).run_once()
    assert change_rows_of(table, clock, 3)[: len(rows)] == rows
    end_hold(log_of(table), onward(table, 2, 0))
    assert len(table.maintenance.expire_snapshots("1 hour", dry_run=False))
    with pytest.raises(VersionNotFound):
        change_rows_of(table, clock, 3)


def test_a_reader_of_changes_that_comes_while_a_cleanup_lists_loses_nothing(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock)
    rows = change_rows_of(table, clock, 3)
    other = at(lakebed.open(table.path), clock)
    take = {"after_list": lambda: begin_hold(log_of(other), onward(table, 2, 1000))}
    cleanup.expire_snapshots(log_of(table), hooked(table, **take), HOUR, dry_run=False)
    assert change_rows_of(table, clock, 3) == rows


def test_a_reader_that_comes_after_the_mark_is_refused(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = a_table(tmp_path, clock)
    other = at(lakebed.open(table.path), clock)
    refused = []

    def take(_: str) -> None:
        with pytest.raises(VersionNotFound), hold(log_of(other), 3, 1000):
            pass
        refused.append(True)

    cleanup.vacuum(log_of(table), hooked(table, before_delete=take), HOUR, dry_run=False)
    assert refused


def test_what_is_committed_while_a_cleanup_lists_stays(tmp_path: Path) -> None:
    table = a_table(tmp_path, Clock(NOW))
    late = put(table, "_lakebed/late.parquet")
    entry = Domain("lakebed.detached.late", json.dumps({"parts": [{"path": "_lakebed/late.parquet"}]}))

    def commit() -> None:
        log_of(table).commit(log_of(table).refresh(), [entry], CommitInfo(operation="DETACH", commit_id=""), BLIND)

    told = table.maintenance.vacuum("1 day")["path"].to_pylist()
    deleted = cleanup.vacuum(log_of(table), hooked(table, after_list=commit), DAY, dry_run=False)["path"].to_pylist()
    assert sorted(set(told) - set(deleted)) == ["_lakebed/late.parquet"]
    assert late.exists()


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_commands_only_list_unless_asked_to_delete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    table.apply(rows_of(0))
    orphan = put(table, "_lakebed/nobody.parquet")
    for only in ([], ["--only", "vacuum"], ["--only", "expire-snapshots"], ["--only", "remove-orphan-files"]):
        assert main(["clean", table.path, *only, "--older-than", "2 days", "--format", "json"]) == 0
        told = capsys.readouterr()
        assert [json.loads(line)["reason"] for line in told.out.splitlines()] == ["orphan"]
        assert "1 files, 1 B, would be deleted" in told.err
    assert main(["clean", "--only", "vacuum", table.path, "--older-than", "1 minute"]) == 2
    assert main(["clean", "--only", "expire-snapshots", table.path, "--retain-last", "0"]) == 2
    assert orphan.exists()
    assert (
        main(
            [
                "clean",
                "--only",
                "vacuum",
                table.path,
                "--older-than",
                "1 minute",
                "--allow-short-retention",
                "--no-dry-run",
            ]
        )
        == 0
    )
    assert not orphan.exists()


# -- in the background -----------------------------------------------------------------------------------------------


def test_rounds_are_bounded_and_come_to_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "DELETIONS_MAX", 3)
    clock = Clock(NOW)
    table = a_table(tmp_path, clock, days=30)
    before = files(table)
    tidy = BackgroundCleanup(log_of(table), storage_of(table), clock)
    rounds: list[int] = []
    while not rounds or rounds[-1] == 3:
        rounds.append(tidy.run_once())
    assert sum(rounds) == len(before) - len(files(table)) > 20
    assert all(table.to_arrow(version=v).num_rows == 3 for v in range(table.version - 16, table.version + 1))
    version = table.version
    assert tidy.run_once() == 0
    assert table.version == version, "a round that finds nothing commits nothing"


def test_an_hourly_round_deletes_expired_parts_without_listing_and_a_daily_one_the_rest(tmp_path: Path) -> None:
    clock, lists = Clock(NOW), []
    table = a_table(tmp_path, clock, days=8)
    tidy = BackgroundCleanup(log_of(table), hooked(table, after_list=lambda: lists.append(True)), clock)
    clock.now += 12 * HOUR
    tidy.run_once()
    assert len(lists) == 1
    put(table, "_lakebed/nobody.parquet", age=timedelta(days=90))
    clock.now += 23 * HOUR
    table.apply(rows_of(0))
    written_now(table)
    before = files(table)
    assert tidy.run_once() == len(before) - len(files(table)) > 0
    assert len(lists) == 1
    assert "_lakebed/nobody.parquet" in files(table)
    clock.now += 4 * DAY
    tidy.run_once()
    assert len(lists) == 2
    assert "_lakebed/nobody.parquet" not in files(table)


@pytest.mark.parametrize(
    ("path", "modified_ms", "reason"),
    [
        ("_lakebed/named.parquet", 0, None), ("_lakebed/removed.parquet", 9, "expired"), ("_lakebed/x.parquet", 4, "orphan"),
        ("_lakebed/x.parquet", 5, None), ("_lakebed/.lakebed-tmp-1", 4, "temporary"), ("_lakebed/.lakebed-tmp-1", 5, None),
        ("day=1/x.parquet", 4, "orphan"), ("_day=1/x.parquet", 4, None), ("_day=1/removed.parquet", 4, "expired"),
        ("_delta_log/.lakebed-tmp-1.json", 4, "temporary"), ("_delta_log/.lakebed-tmp-1.json", 5, None),
        ("below/_delta_log/.lakebed-tmp-1.json", 4, None), ("_delta_log/x.parquet", 4, None),
        ("_lakebed/streams/x.parquet", 4, None), ("x.csv", 4, None),
    ],
)  # fmt: skip
def test_a_file_goes_for_these_reasons(path: str, modified_ms: int, reason: str | None) -> None:
    removed = {"_lakebed/removed.parquet", "_day=1/removed.parquet"}
    kept = LiveSet(
        first=0,
        newest=cast("Any", None),
        referenced={"_lakebed/named.parquet"},
        removed=removed,
        unreferenced_before_ms=5,
        everywhere=True,
    )
    assert reason_to_go(path, modified_ms, kept) == reason
