"""A table that is dropped counts as not there, comes back whole, and leaves nothing behind when its files go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import lakebed
from lakebed.cli import main
from lakebed.discovery import all_tables_below, tables_below, tables_in
from lakebed.errors import InvalidInput, StoreUnavailable, TableDropped, TableExists, TableNotFound
from lakebed.log.actions import CommitInfo, Domain
from lakebed.log.conflicts import BLIND
from lakebed.log.entries import DROPPED, Operation
from lakebed.log.removals import DROPPED_FOLDER
from lakebed.log.stores import LocalLogStore, commit_name, open_store
from lakebed.log.table_log import TableLog
from lakebed.operations import drop as drops
from lakebed.operations.drop import REMOVED_SCHEMA, remove_dropped
from lakebed.operations.references import mark
from lakebed.storage.data_files import LocalPartStorage
from lakebed.table import internals_of
from tests.infra.s3 import S3Server
from tests.internals import log_of, storage_of
from tests.operations.interrupted import before_its_commits
from tests.stepping import Steps

pytestmark = pytest.mark.usefixtures("own_cache")
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.string())])
DAY = 86_400


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    """The table shop.orders, with a row in the base and one in the tail."""
    return made(str(tmp_path / "shop" / "orders"))


def made(path: str, **properties: str) -> lakebed.Table:
    table = lakebed.create(path, SCHEMA, keys=["id"], properties=properties)
    table.apply([{"id": 1, "v": "a"}])
    table.settle()
    table.apply([{"id": 2, "v": "b"}])
    return table


def ids(table: lakebed.Table) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


def listed(folder: Path | str) -> set[str]:
    """All that lists of tables have."""
    return {*tables_in(str(folder)), *tables_below(str(folder)).values(), *all_tables_below(str(folder)).values()}


def dropped_before(table: lakebed.Table, days: int) -> None:
    """Drop the table, so many days ago, for the store too."""
    log, then = log_of(table), time.time() - days * DAY
    log.clock = lambda: then
    table.drop()
    os.utime(Path(table.path, commit_name(log.newest_version())), (then, then))
    log.clock = time.time


VERBS: dict[str, Callable[[lakebed.Table], Any]] = {
    "open": lambda table: lakebed.open(table.path),
    "version": lambda table: table.version,
    "read": lambda table: table.to_arrow(),
    "apply": lambda table: table.apply([{"id": 3, "v": "c"}]),
    "delete": lambda table: table.delete("id = 1"),
    "alter": lambda table: table.alter(add={"n": "long"}),
    "settle": lambda table: table.settle(),
    "compact": lambda table: table.maintenance.compact(),
    "vacuum": lambda table: table.maintenance.vacuum(),
    "status": lambda table: table.status(),
    "doctor": lambda table: table.doctor(),
    "maintain": lambda table: internals_of(table).duties(),
    "convert": lambda table: lakebed.convert(table.path),
    "drop": lambda table: table.drop(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_dropped_table_is_not_found(table: lakebed.Table, verb: str) -> None:
    assert lakebed.open(table.path).drop() == 0
    with pytest.raises(
        TableDropped, match=r"was dropped at 20.* UTC; lakebed\.undrop\('.*orders'\) brings it back, and from"
    ):
        VERBS[verb](table)


def test_lists_of_tables_lack_it(table: lakebed.Table, tmp_path: Path) -> None:
    other = made(str(tmp_path / "shop" / "others"))
    table.drop()
    assert listed(tmp_path) == {other.path}
    assert lakebed.warehouse(tmp_path).tables() == ("shop.others",)
    assert tables_in(str(tmp_path), dropped=True) == [table.path]
    assert tables_in(table.path) == [] and tables_in(table.path, dropped=True) == [table.path]


def test_it_comes_back_as_it_was(table: lakebed.Table, tmp_path: Path) -> None:
    table.drop()
    back = lakebed.undrop(table.path)

    assert ids(back) == ids(table) == [1, 2]
    assert listed(tmp_path) == {table.path}
    assert [row["operation"] for row in back.inspect.timeline(2).to_pylist()] == ["UNDROP TABLE", "DROP TABLE"]
    table.apply([{"id": 3, "v": "c"}])
    assert lakebed.undrop(table.path).version == back.version, "it is there, and only opened"


def test_what_was_never_there_does_not_come_back(tmp_path: Path) -> None:
    with pytest.raises(TableNotFound):
        lakebed.undrop(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_other_readers_see_it_as_long_as_its_files_are_there(table: lakebed.Table) -> None:
    table.drop()
    assert len(DeltaTable(table.path).file_uris()) == 1


def test_no_commit_lands_behind_a_drop(table: lakebed.Table) -> None:
    other = lakebed.open(table.path)
    for write in (lambda: table.apply([{"id": 9, "v": "z"}]), lambda: table.settle(), lambda: table.delete("id = 1")):
        with before_its_commits(table, other.drop), pytest.raises(TableDropped):
            write()
        other = lakebed.undrop(table.path)
        assert ids(other) == [1, 2] and len(log_of(other).refresh().tail) == 1


def test_of_two_that_drop_it_one_does(table: lakebed.Table) -> None:
    with before_its_commits(table, lakebed.open(table.path).drop), pytest.raises(TableDropped):
        table.drop()


def test_maintenance_ends(table: lakebed.Table, steps: Steps) -> None:
    maintenance = internals_of(table).maintain()
    steps.run()
    lakebed.open(table.path).drop()
    steps.run_until(lambda: not maintenance.isActive)
    assert isinstance(maintenance.exception(), TableDropped)


def test_another_table_waits_until_its_files_are_gone(table: lakebed.Table) -> None:
    with pytest.raises(TableExists):
        made(table.path)
    table.drop()
    with pytest.raises(TableDropped, match=r"lakebed\.undrop\('.*'\)\.drop\(purge=True\) deletes them now"):
        made(table.path)
    assert lakebed.undrop(table.path).drop(purge=True) > 0
    assert ids(made(table.path)) == [1, 2]


def test_files_go_when_those_of_an_old_version_would(tmp_path: Path) -> None:
    week, month = (
        made(str(tmp_path / "a" / "week")),
        made(str(tmp_path / "a" / "month"), **{"delta.deletedFileRetentionDuration": "interval 30 days"}),
    )
    for table in (week, month):
        dropped_before(table, 8)
    foreseen = remove_dropped(str(tmp_path), dry_run=True)
    assert foreseen.schema == REMOVED_SCHEMA and not any(foreseen["removed"].to_pylist())
    waits = {row["table"]: (row["due"] - row["dropped"]).days for row in foreseen.to_pylist()}
    assert waits == {"a.month": 30, "a.week": 7}

    found = {row["table"]: (row["removed"], row["files"]) for row in remove_dropped(str(tmp_path)).to_pylist()}
    assert found["a.month"] == (False, None) and found["a.week"][0] and found["a.week"][1] > 3
    assert not os.path.exists(week.path)
    assert ids(lakebed.undrop(month.path)) == [1, 2]


@pytest.mark.parametrize("clock", ["of the one who dropped it", "of the store", "of the one who cleans"])
def test_a_clock_that_is_wrong_only_keeps_files_longer(
    table: lakebed.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    dropped_before(table, 8)
    now = time.time()
    if clock == "of the one who dropped it":
        os.utime(Path(table.path, commit_name(log_of(table).newest_version())), (now, now))
    elif clock == "of the store":
        monkeypatch.setattr(LocalPartStorage, "now", lambda self: now - 2 * DAY)
    else:
        monkeypatch.setattr(TableLog, "now_ms", lambda self: int((now - 2 * DAY) * 1000))
    assert remove_dropped(str(tmp_path))["removed"].to_pylist() == [False]


def test_files_of_one_go_at_once(table: lakebed.Table, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not dropped"):
        remove_dropped(str(tmp_path), table.path)
    table.drop()
    [row] = remove_dropped(str(tmp_path), table.path).to_pylist()
    assert row["removed"] and not os.path.exists(table.path)


@pytest.mark.parametrize("is_dropped_again", [False, True])
def test_a_table_that_comes_back_meanwhile_stays(
    table: lakebed.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dropped_again: bool
) -> None:
    """Between the look at its log and the deletion of its files."""

    def meanwhile(*looked_at: object) -> bool:
        lakebed.undrop(table.path)
        if is_dropped_again:
            table.drop()
        return True

    dropped_before(table, 8)
    monkeypatch.setattr(drops, "_has_waited", meanwhile)
    assert remove_dropped(str(tmp_path))["removed"].to_pylist() == [False]
    assert ids(lakebed.undrop(table.path)) == [1, 2]


def test_a_purge_that_is_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each deletion once: until the end nobody takes the table for one that is there, and nothing of it is left then."""
    for allowed in count():
        table = made(str(tmp_path / str(allowed) / "orders"))
        with monkeypatch.context() as patched:
            left = [allowed]
            for owner in (LocalPartStorage, LocalLogStore):
                patched.setattr(owner, "delete", killed_after(left, owner.delete))
            try:
                table.drop(purge=True)
                assert not os.path.exists(table.path)
                break
            except StoreUnavailable:
                pass
        if any(log_of(table).versions()):
            with pytest.raises(TableDropped, match="its files are being deleted"):
                lakebed.open(table.path)
            with pytest.raises(TableDropped):
                lakebed.undrop(table.path)
            with pytest.raises(TableDropped):
                made(table.path)
            assert listed(tmp_path / str(allowed)) == set()
            assert remove_dropped(str(tmp_path / str(allowed)))["removed"].to_pylist() == [True]
        with pytest.raises(TableNotFound, match="there is no table"):
            lakebed.open(table.path)
        assert ids(made(table.path)) == [1, 2]
        assert listed(tmp_path / str(allowed)) == {table.path}
    assert allowed > 5


def killed_after(left: list[int], delete: Callable[..., None]) -> Callable[..., None]:
    def instead(store: Any, name: str) -> None:
        if os.path.exists(os.path.join(store.root, name)):
            if left[0] == 0:
                raise StoreUnavailable("killed")
            left[0] -= 1
        delete(store, name)

    return instead


def test_a_purge_leaves_a_table_alone_that_was_made_in_its_place(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes it as soon as the last file of the log is gone."""
    delete, anew = LocalLogStore.delete, list[lakebed.Table]()

    def and_then(store: LocalLogStore, name: str) -> None:
        delete(store, name)
        if name.startswith("_delta_log/") and not anew and not list(Path(store.root, "_delta_log").glob("0*")):
            monkeypatch.setattr(LocalLogStore, "delete", delete)
            anew.append(made(table.path))

    monkeypatch.setattr(LocalLogStore, "delete", and_then)
    table.drop(purge=True)
    assert ids(anew[0]) == [1, 2] and ids(lakebed.open(table.path)) == [1, 2]


def test_a_mark_without_an_entry_hides_nothing_for_long(
    table: lakebed.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process pauses between the commit of its drop and the mark; meanwhile the table is brought back."""
    monkeypatch.setattr(drops, "mark", lambda storage: (lakebed.undrop(table.path), mark(storage)))
    table.drop()
    assert listed(tmp_path) == {table.path}

    mark(storage_of(table))  # or is killed there
    assert listed(tmp_path) == set() and ids(lakebed.open(table.path)) == [1, 2]
    assert len(remove_dropped(str(tmp_path))) == 0
    assert listed(tmp_path) == {table.path}


def test_an_entry_without_a_mark_is_enough(table: lakebed.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(storage: object) -> None:
        raise StoreUnavailable("killed")

    monkeypatch.setattr(drops, "mark", killed)
    with pytest.raises(StoreUnavailable):
        table.drop()
    with pytest.raises(TableDropped):
        lakebed.open(table.path)


def test_an_entry_that_cannot_be_read_drops_the_table_and_deletes_nothing(table: lakebed.Table, tmp_path: Path) -> None:
    log = log_of(table)
    log.commit(log.refresh(), [Domain(DROPPED, "{")], CommitInfo(operation=Operation.DROP, commit_id=""), BLIND)
    mark(storage_of(table))
    with pytest.raises(TableDropped, match="at an unknown time"):
        lakebed.open(table.path)
    assert remove_dropped(str(tmp_path))["removed"].to_pylist() == [False]
    assert ids(lakebed.undrop(table.path)) == [1, 2]


def test_clean_of_a_folder_deletes_what_is_due(
    table: lakebed.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table.drop()
    assert main(["clean", str(tmp_path / "shop")]) == 0
    assert "1 dropped tables; --no-dry-run deletes the files of those that are due" in capsys.readouterr().err
    lakebed.undrop(table.path)
    dropped_before(table, 8)
    assert main(["clean", str(tmp_path), "--no-dry-run", "--format", "json"]) == 0
    assert '"table": "shop.orders"' in capsys.readouterr().out
    assert not os.path.exists(table.path)
    assert main(["clean", str(tmp_path)]) == 2
    assert main(["clean", str(tmp_path), "--only", "vacuum"]) == 2


def test_a_command_says_how_it_comes_back(table: lakebed.Table, capsys: pytest.CaptureFixture[str]) -> None:
    table.drop()
    assert main(["show", "parts", table.path]) == 2
    said = capsys.readouterr().err
    assert "lakebed.undrop" in said and "did you mean" not in said


def test_in_s3_all_objects_go(s3: S3Server) -> None:
    root = f"s3://{s3.create_bucket()}"
    table, other = made(f"{root}/shop/orders"), made(f"{root}/shop/others")
    table.drop()
    assert listed(root) == {other.path}
    assert ids(lakebed.undrop(table.path)) == [1, 2]
    assert listed(root) == {table.path, other.path}
    assert table.drop(purge=True) > 3
    assert [*storage_of(table).list()] == [] and open_store(table.path).list_from("_delta_log", "") == []
    assert listed(root) == {other.path} and ids(other) == [1, 2]


def test_the_folder_of_the_mark_goes_with_it(table: lakebed.Table) -> None:
    table.drop()
    assert os.path.isdir(os.path.join(table.path, DROPPED_FOLDER))
    lakebed.undrop(table.path)
    assert not os.path.exists(os.path.join(table.path, DROPPED_FOLDER))
