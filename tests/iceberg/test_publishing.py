"""The same bytes, whoever writes: processes at once, one that takes over from a killed one, one that begins or goes on."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.errors import InvalidInput
from lakebed.events import IcebergMetadataDamaged
from lakebed.iceberg.metadata import FOLDER, metadata_name
from lakebed.iceberg.publisher import BackgroundPublisher, Publisher, needed_files
from lakebed.log.stores import LocalLogStore
from lakebed.log.table_log import TableLog
from lakebed.table import internals_of
from tests.iceberg.readers import opened, pyiceberg
from tests.internals import log_of, storage_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


class Killed(BaseException):
    """The end of a process, at any line."""


class Interrupted(LocalLogStore):
    """A store that calls ``act`` before the write of this number."""

    def __init__(self, root: str, at: int, act: Callable[[], object]) -> None:
        super().__init__(root)
        self.left, self.act, self.writes = at, act, 0

    def _count(self) -> None:
        self.writes += 1
        self.left -= 1
        if self.left == 0:
            self.act()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._count()
        return super().put_if_absent(name, data)

    def put(self, name: str, data: bytes) -> None:
        self._count()
        super().put(name, data)


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    """A table with deletion vectors, of which Iceberg's readers see an older version."""
    found = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties={"lakebed.iceberg": "on"})
    change(found, range(100))
    found.maintenance.publish_iceberg()
    change(found, range(0, 100, 7))
    return found


def change(table: lakebed.Table, keys: range) -> None:
    table.apply([{"id": key, "name": f"{key} at {table.version}"} for key in keys])
    table.settle()


def files(table: lakebed.Table) -> dict[str, bytes]:
    folder = Path(table.path) / FOLDER
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def publisher(
    table: lakebed.Table, at: int = 0, act: Callable[[], object] = lambda: None
) -> tuple[Publisher, Interrupted]:
    store = Interrupted(table.path, at, act)
    return Publisher(TableLog(store), storage_of(table)), store


def kill() -> None:
    raise Killed


def test_whenever_a_process_is_killed_the_next_one_leaves_the_same_bytes(table: lakebed.Table) -> None:
    snapshot, folder = log_of(table).refresh(), Path(table.path) / FOLDER
    shutil.copytree(folder, folder.with_name("before"))
    whole, store = publisher(table)
    whole.publish(snapshot)
    expected = files(table)
    assert store.writes >= 6
    for at in range(1, store.writes + 1):
        shutil.rmtree(folder)
        shutil.copytree(folder.with_name("before"), folder)
        with pytest.raises(Killed):
            publisher(table, at, kill)[0].publish(snapshot)
        publisher(table)[0].publish(snapshot)
        assert files(table) == expected, f"killed before write {at}"
    assert sorted(pyiceberg(table)["id"].to_pylist()) == list(range(100))


def test_two_processes_at_once_leave_the_same_bytes(table: lakebed.Table) -> None:
    snapshot, folder = log_of(table).refresh(), Path(table.path) / FOLDER
    shutil.copytree(folder, folder.with_name("before"))
    whole, store = publisher(table)
    first = whole.publish(snapshot)
    expected = files(table)
    for at in range(1, store.writes + 1):
        shutil.rmtree(folder)
        shutil.copytree(folder.with_name("before"), folder)
        other = publisher(table)[0]
        both = [
            publisher(table, at, lambda other=other: other.publish(snapshot))[0].publish(snapshot),
            other.publish(snapshot),
        ]
        assert files(table) == expected, f"the other before write {at}"
        assert {each.metadata for each in both} == {first.metadata}


def test_readers_never_go_back_to_an_older_version_whoever_comes_late(table: lakebed.Table) -> None:
    """A publication of an earlier version, before each of whose writes another process publishes the newest one."""
    earlier = log_of(table).refresh()
    change(table, range(0, 100, 3))
    newest = log_of(table).refresh()
    folder = Path(table.path) / FOLDER
    shutil.copytree(folder, folder.with_name("before"))
    for at in range(8):  # at 0 it was there before
        shutil.rmtree(folder)
        shutil.copytree(folder.with_name("before"), folder)
        other = publisher(table)[0]
        if not at:
            other.publish(newest)
        late, store = publisher(table, at, lambda other=other: other.publish(newest))
        late.publish(earlier)
        if at and store.left > 0:
            break  # it makes no more writes
        head = publisher(table)[0].head()
        assert head is not None and head.version == newest.version, f"before write {at}"
        assert list(head.versions()) == sorted(head.versions())
        assert files(table)["version-hint.text"] == str(head.number).encode(), f"before write {at}"
    assert at > 3


def test_what_readers_see_already_is_not_written_again(table: lakebed.Table) -> None:
    table.maintenance.publish_iceberg()
    again = table.maintenance.publish_iceberg()
    assert (again.files, again.version) == (0, table.version)
    table.set_properties({"mine": "x"})  # a version with the same base
    assert table.maintenance.publish_iceberg().files == 0


def test_a_process_that_goes_on_writes_what_one_that_begins_writes(table: lakebed.Table) -> None:
    kept = publisher(table)[0]
    for at in range(4):
        kept.publish(log_of(table).refresh())
        change(table, range(at, 100, 5))
    folder = Path(table.path) / FOLDER
    shutil.copytree(folder, folder.with_name("before"))
    kept.publish(log_of(table).refresh())
    expected = files(table)
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("before"), folder)
    publisher(table)[0].publish(log_of(table).refresh())
    assert files(table) == expected


def test_manifests_and_twins_that_did_not_change_are_used_again(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties={"lakebed.iceberg": "on"})
    for at in range(4):
        change(table, range(10 * at, 10 * at + 10))
    change(table, range(0, 40, 3))
    table.maintenance.publish_iceberg()
    change(table, range(100, 110))  # marks nothing
    before = files(table)
    new = table.maintenance.publish_iceberg()
    written = sorted(name.partition("-")[0].split(".")[0] for name in files(table).keys() - before.keys())
    assert written == ["manifest", "snap", "v2"] and new.files == 4, "and the hint"


def test_the_background_publishes_another_base_and_no_more(table: lakebed.Table) -> None:
    log = log_of(table)
    background = BackgroundPublisher(log, storage_of(table))
    log.refresh()
    assert background.is_behind()
    background.publish_newest()
    assert not background.is_behind()
    table.set_properties({"mine": "x"})
    log.refresh()
    background.publish_newest()
    assert not background.is_behind()
    change(table, range(3))
    log.refresh()
    assert background.is_behind()
    table.set_properties({"lakebed.iceberg": "off"})
    log.refresh()
    assert not background.is_behind()


def test_maintenance_publishes_before_the_table_rests(table: lakebed.Table) -> None:
    duties = internals_of(table).duties()
    try:
        [chore] = [each for each in duties.chores if each.is_owed]
        assert chore.is_needed() and chore.seconds == 10
        chore.run()
        assert not chore.is_needed()
        assert sorted(pyiceberg(table)["id"].to_pylist()) == list(range(100))
    finally:
        duties.release(None)


def test_a_table_that_is_moved_is_published_for_its_new_place(table: lakebed.Table, tmp_path: Path) -> None:
    table.maintenance.publish_iceberg()
    shutil.move(table.path, tmp_path / "elsewhere")
    moved = lakebed.open(tmp_path / "elsewhere")
    assert [each.check for each in moved.doctor().findings] == ["iceberg"]
    moved.maintenance.publish_iceberg()
    assert sorted(pyiceberg(moved)["id"].to_pylist()) == list(range(100))
    assert moved.doctor().findings == ()


@pytest.mark.parametrize(
    "content", [b"", b'{"format-version": 3', b"{}", b"[]", b'{"snapshots": [], "current-snapshot-id": 1}']
)
def test_damaged_metadata_is_passed_over_said_and_written_again(table: lakebed.Table, content: bytes) -> None:
    """Whether the process that goes on knows the metadata before it, or begins."""
    said = list[IcebergMetadataDamaged]()
    end = events.listen(lambda event: said.append(event) if isinstance(event, IcebergMetadataDamaged) else None)
    for number, begins in ((2, False), (4, True)):
        other = publisher(table)[0]
        if not begins:
            other.head()
        change(table, range(number, 100, 9))
        table.maintenance.publish_iceberg()
        (Path(table.path) / metadata_name(number)).write_bytes(content)
        [found] = table.doctor().findings
        assert (found.check, found.severity.value, found.where) == ("iceberg", "critical", metadata_name(number))
        done = other.publish(log_of(table).refresh())
        assert done.metadata.endswith(metadata_name(number + 1)) and done.version == table.version
        assert (said[-1].file, said[-1].number) == (metadata_name(number), number + 1)
        assert sorted(pyiceberg(table)["id"].to_pylist()) == list(range(100))
        assert table.doctor().findings == ()
        assert other.publish(log_of(table).refresh()).files == 0
    end()
    assert len(said) == 2
    assert len(opened(table).metadata.snapshots) == 3, "those of the metadata before it are kept"


def test_where_all_metadata_is_damaged_it_is_written_anew(table: lakebed.Table) -> None:
    table.maintenance.publish_iceberg()
    for path in (Path(table.path) / FOLDER / "metadata").glob("v*"):
        path.write_bytes(b"{")
    assert {each.check for each in table.doctor().findings} == {"iceberg"}
    assert table.maintenance.publish_iceberg().metadata.endswith("v3.metadata.json")
    assert sorted(pyiceberg(table)["id"].to_pylist()) == list(range(100))
    assert table.doctor().findings == ()


@pytest.mark.parametrize("kind", ["manifest", "dv"])
def test_the_doctor_sees_a_file_of_another_length(table: lakebed.Table, kind: str) -> None:
    table.maintenance.publish_iceberg()
    needed = needed_files(Publisher(log_of(table), storage_of(table)))
    damaged = next(name for name in needed if f"/{kind}-" in name)
    path = Path(table.path) / damaged
    path.write_bytes(path.read_bytes()[:-1] if kind == "dv" else path.read_bytes() + b"!")
    found = [str(each) for each in table.doctor().findings]
    assert any(damaged in each and "bytes, and Iceberg's metadata says" in each for each in found), found


_KILLED = """
import os, signal, sys
import lakebed
from lakebed.iceberg.publisher import Publisher
from lakebed.log.table_log import TableLog
from tests.iceberg.test_publishing import Interrupted
from tests.internals import log_of, storage_of
table = lakebed.open(sys.argv[1])
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
Publisher(TableLog(Interrupted(table.path, int(sys.argv[2]), kill)), storage_of(table)).publish(log_of(table).refresh())
"""


@pytest.mark.few(2)
@pytest.mark.parametrize("at", [1, 3, 5, 6])
def test_a_process_that_kill_9_ends_leaves_what_the_next_one_needs(table: lakebed.Table, at: int) -> None:
    folder = Path(table.path) / FOLDER
    shutil.copytree(folder, folder.with_name("before"))
    publisher(table)[0].publish(log_of(table).refresh())
    expected = files(table)
    shutil.rmtree(folder)
    shutil.move(folder.with_name("before"), folder)
    command = [sys.executable, "-c", _KILLED, table.path, str(at)]
    assert subprocess.run(command, cwd=Path(__file__).parents[2]).returncode == -signal.SIGKILL
    lakebed.open(table.path).maintenance.publish_iceberg()
    assert files(table) == expected


def test_it_is_refused_where_it_is_off(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA)
    with pytest.raises(InvalidInput, match=r"lakebed.iceberg is off .*: set it to 'on' first"):
        table.maintenance.publish_iceberg()
