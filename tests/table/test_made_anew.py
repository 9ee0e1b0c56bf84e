"""A table that is dropped and made again in the same place, while somebody has it open."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import Corrupt, LakebedError, TableExists, TableNotFound, TableReplaced
from lakebed.log.holds import trim_log_before
from tests.internals import log_of


@pytest.mark.parametrize("versions", [1, 2, 3, 6])
def test_another_table_in_the_same_place_is_noticed_within_a_minute(versions: int, tmp_path: Path) -> None:
    """However many versions the new table has, and whatever of it was read before it was noticed."""
    schema = pa.schema([("id", pa.int64())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])
    table.apply(pa.table({"id": [1]}))
    table.settle()
    assert table.to_arrow()["id"].to_pylist() == [1]
    shutil.rmtree(tmp_path / "t")
    anew = lakebed.create(tmp_path / "t", schema, keys=["id"])
    for number in range(versions):
        anew.apply(pa.table({"id": [10 + number]}))
    if versions == 6:
        assert table.version == 6  # mistaken for later versions of the table before
    log = log_of(table)
    log.clock = lambda: time.time() + 61
    assert sorted(table.to_arrow()["id"].to_pylist()) == sorted(anew.to_arrow()["id"].to_pylist())
    assert log.refresh() == log_of(anew).refresh()


SCHEMA = pa.schema([("id", pa.int64())])


def rows_of(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, schema=SCHEMA)


def opened_twice(path: Path, versions: int) -> tuple[lakebed.Table, lakebed.Table]:
    """A handle on a table that is gone, and one on the table that was made in its place, with some versions."""
    old = made(path)
    return old, made_in_its_place(path, versions)


def made(path: Path) -> lakebed.Table:
    table = lakebed.create(path, SCHEMA, keys=["id"])
    for number in range(3):
        table.apply(rows_of(number))
    table.settle()
    return table


def made_in_its_place(path: Path, versions: int) -> lakebed.Table:
    shutil.rmtree(path)
    table = lakebed.create(path, SCHEMA, keys=["id"])
    for number in range(versions):
        table.apply(rows_of(100 + number))
    return table


WRITES: dict[str, Callable[[lakebed.Table], object]] = {
    "apply": lambda table: table.apply(rows_of(7)),
    "delete": lambda table: table.delete("id = 1"),
    "truncate": lambda table: table.truncate(),
    "set_properties": lambda table: table.set_properties({"lakebed.read_budget": "4"}),
    "set_sort_key": lambda table: table.set_sort_key(["id"]),
    "settle": lambda table: table.settle(),
    "compact": lambda table: table.maintenance.compact(),
    "vacuum": lambda table: table.maintenance.vacuum(dry_run=False),
    "clean_log": lambda table: table.maintenance.clean_log(),
}


@pytest.mark.few(10)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("versions", [0, 4, 6])
def test_what_a_handle_of_the_table_before_does_leaves_the_new_table_right(
    versions: int, write: str, tmp_path: Path
) -> None:
    old, new = opened_twice(tmp_path / "t", versions)
    told = False
    try:
        WRITES[write](old)
    except LakebedError as error:
        told = isinstance(error, TableReplaced | Corrupt)  # a file of the table before is missing
    rows = {100 + number for number in range(versions)}
    if write == "apply" and not told:  # it noticed before it began, and wrote to the new table
        rows.add(7)
    anew = lakebed.open(new.path)
    if write != "truncate":
        assert set(anew.to_arrow()["id"].to_pylist()) == rows
    assert anew.doctor(deep=True).findings == ()
    new.apply(rows_of(999))
    assert 999 in anew.to_arrow()["id"].to_pylist()


def test_an_apply_to_the_table_before_says_that_another_is_in_its_place(tmp_path: Path) -> None:
    old, new = opened_twice(tmp_path / "t", 1)
    with pytest.raises(TableReplaced, match="open it again"):
        old.apply(rows_of(7))
    assert [path.name for path in sorted((tmp_path / "t" / "_delta_log").iterdir())] == [
        f"{version:020d}.json" for version in (0, 1)
    ]
    assert new.to_arrow()["id"].to_pylist() == [100]


def test_a_checkpoint_of_the_table_before_does_not_land_in_the_new_one(tmp_path: Path) -> None:
    old = made(tmp_path / "t")
    asleep = log_of(old).refresh()
    new = made_in_its_place(tmp_path / "t", 1)
    log_of(old).write_checkpoint(asleep)
    assert not list((tmp_path / "t" / "_delta_log").glob("*checkpoint*"))
    assert lakebed.open(new.path).to_arrow()["id"].to_pylist() == [100]


@pytest.mark.parametrize("versions", [1, 4, 6])
def test_a_checkpoint_that_the_table_before_left_behind_is_passed_over(versions: int, tmp_path: Path) -> None:
    old = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    for number in range(4):
        old.apply(rows_of(number))
    log_of(old).write_checkpoint(log_of(old).refresh())
    [left] = (tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet")
    data = left.read_bytes()
    shutil.rmtree(tmp_path / "t")
    new = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    for number in range(versions):
        new.apply(rows_of(100 + number))
    left.write_bytes(data)
    anew = lakebed.open(new.path)
    assert set(anew.to_arrow()["id"].to_pylist()) == {100 + number for number in range(versions)}
    assert trim_log_before(log_of(anew), anew.version) == 0
    assert anew.apply(rows_of(7)) == versions + 1


def test_a_table_that_was_dropped_is_not_half_made_by_who_still_has_it_open(tmp_path: Path) -> None:
    old = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(TableNotFound, match="dropped"):
        old.apply(rows_of(7))
    assert lakebed.create(tmp_path / "t", SCHEMA, keys=["id"]).version == 0


def test_a_table_whose_first_version_left_the_log_can_not_be_created_over(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    for number in range(4):
        table.apply(rows_of(number))
    log_of(table).write_checkpoint(log_of(table).refresh())
    table.apply(rows_of(9))
    assert trim_log_before(log_of(table), table.version) > 0
    with pytest.raises(TableExists):
        lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    assert lakebed.open(table.path).to_arrow().num_rows == 5


def test_a_table_that_stays_is_not_read_again(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]), keys=["id"])
    table.apply(pa.table({"id": [1]}))
    snapshot = log_of(table).refresh()
    log_of(table).clock = lambda: time.time() + 61
    assert log_of(table).refresh() is snapshot
