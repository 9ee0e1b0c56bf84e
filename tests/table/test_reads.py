"""Reads of parts that wait to be sorted by a new sort key: counted, told to other processes, and sorted first."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.storage.data_files import LocalPartStorage
from lakebed.table import internals_of
from tests.internals import log_of
from tests.waiting import ran, wait_until

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("region", pa.string()),
        ("seen", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(9, 2)),
    ]
)
REGIONS = 6
ROWS = 50
HOUR = 3600
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1  # of Linux: without it permissions hold for root too


pytestmark = pytest.mark.usefixtures("own_cache")


class AheadOfTheDisk:
    """The time, which a test moves on while files keep that of the disk."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


def a_table(folder: Path) -> lakebed.Table:
    """A part a region, of which region r0 came first; ids and times grow from region to region."""
    table = lakebed.create(folder, SCHEMA, keys=["id"], sort_key=["region"])
    for number in range(REGIONS):
        ids = range(number * ROWS, number * ROWS + ROWS)
        day = f"2026-01-{number + 1:02}T12:00:00Z"
        rows = [{"id": each, "region": f"r{number}", "seen": day, "amount": "1.50"} for each in ids]
        strings = pa.schema(
            [SCHEMA.field("id"), *(pa.field(name, pa.string()) for name in ("region", "seen", "amount"))]
        )
        table.apply(pa.Table.from_pylist(rows, strings).cast(SCHEMA))
        table.settle()
    return table


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table to be copied: making one takes longer than most tests."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEBED_CACHE_DIR", str(folder / "cache"))
        a_table(folder / "t")
    return folder / "t"


@pytest.fixture
def uncounted(made: Path, tmp_path: Path) -> lakebed.Table:
    """A copy of it, whose sort key has just been changed."""
    shutil.copytree(made, tmp_path / "t")
    table = lakebed.open(tmp_path / "t")
    table.set_sort_key(["amount", "id"])
    return table


@pytest.fixture
def table(uncounted: lakebed.Table) -> lakebed.Table:
    """The same with the property that makes readers count."""
    uncounted.set_properties({"lakebed.count_reads": "on"})
    return uncounted


def region_of(table: lakebed.Table) -> dict[str, str]:
    """The region of each part of the table before it is sorted anew."""
    parts = sorted(table.inspect.parts().to_pylist(), key=lambda part: part["min_block"])
    return {part["path"]: f"r{number}" for number, part in enumerate(parts)}


def reads(table: lakebed.Table) -> dict[str, int]:
    """Reads by region."""
    regions = region_of(table)
    return {
        regions[path]: count for path, count in sorted(internals_of(table).reads.of(log_of(table).refresh()).items())
    }


def files_of_reads(table: lakebed.Table) -> list[Path]:
    return sorted(Path(table.path, "_lakebed/reads").glob("*"))


def read_elsewhere(table: lakebed.Table, code: str, **options: Any) -> None:
    """Run code in a process of its own, with ``table`` opened."""
    imports = "import lakebed\nfrom lakebed.table import internals_of\nfrom tests.internals import log_of\n"
    code = f"{imports}table = lakebed.open({table.path!r})\n{code}"
    found = ran([sys.executable, "-c", code], **options)
    assert found.returncode == 0 and not found.stderr, found.stderr


def published(table: lakebed.Table) -> None:
    """Have the thread publish now what was counted, and end."""
    internals_of(table).reads.close()


# -- between processes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_another_process_reads_again_and_again_is_sorted_first(table: lakebed.Table, made: Path) -> None:
    regions = region_of(table)
    read_elsewhere(table, "for _ in range(20): table.to_arrow(where=\"region = 'r4'\")")
    first, second = [row for row in table.maintenance.plan().to_pylist() if row["what"] == "resort"]
    assert [regions[path] for path in first["inputs"]] == ["r4"]
    assert first["why"].endswith("read 20 times in the last hour")
    assert [regions[path] for path in second["inputs"]] == ["r0", "r1", "r2", "r3", "r5"]
    table.maintenance.compact()
    merges = sorted(table.inspect.compactions().to_pylist(), key=lambda row: row["version"])
    assert [row["why"] for row in merges] == [first["why"], second["why"]]
    assert table.to_arrow().sort_by("id").equals(lakebed.open(made).to_arrow().sort_by("id"))


@pytest.mark.slow
def test_reads_of_several_processes_are_added_up(table: lakebed.Table) -> None:
    other = lakebed.open(table.path)
    other.lookup([5, 205])
    published(other)
    read_elsewhere(table, "table.query(\"select count(*) from t where id < 60\"); table.to_arrow(where='id = 205')")
    table.to_arrow(where="id between 200 and 210")
    assert reads(table) == {"r0": 2, "r1": 1, "r4": 3}


def test_each_file_is_read_once_and_the_folder_is_listed_once_a_minute(table: lakebed.Table) -> None:
    clock = log_of(table).clock = AheadOfTheDisk()
    put_reads(table, int(time.time()), b'{"a": 1}')
    asked = []
    for ahead in (0, 1, 59, 61, 62, 125):
        clock.ahead = ahead
        snapshot = log_of(table).refresh()
        before = log_of(table).store.counters().operations
        internals_of(table).reads.of(snapshot)
        after = log_of(table).store.counters().operations
        asked.append(
            {
                name: count.requests - (before[name].requests if name in before else 0)
                for name, count in after.items()
                if name not in before or count.requests > before[name].requests
            }
        )
    assert asked == [{"list_from": 1, "read": 1}, {}, {}, {"list_from": 1}, {}, {"list_from": 1}]


def test_a_process_publishes_soon_and_then_at_most_once_a_minute(table: lakebed.Table) -> None:
    table.to_arrow()
    wait_until(lambda: files_of_reads(table))
    for _ in range(30):
        table.to_arrow()
        time.sleep(0.05)
    assert len(files_of_reads(table)) == 1
    published(table)
    assert len(files_of_reads(table)) == 2
    assert reads(lakebed.open(table.path)) == {f"r{number}": 31 for number in range(REGIONS)}


# -- without the property ------------------------------------------------------------------------------------------------


def files_of(table: lakebed.Table) -> set[Path]:
    return {file for file in Path(table.path).rglob("*") if file.is_file()}


@pytest.mark.slow
def test_a_reader_leaves_the_folder_of_a_table_as_it_is(uncounted: lakebed.Table) -> None:
    before = files_of(uncounted)
    code = """
for _ in range(3):
    table.to_arrow(where='id < 60'); table.lookup([5]); table.query('select * from t')
import threading
assert not [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
"""
    read_elsewhere(uncounted, code)
    exec(code.replace("assert", "0 and"), {"table": uncounted})
    published(uncounted)
    assert files_of(uncounted) == before
    assert reads(uncounted) == {} and internals_of(uncounted).reads._thread is None


def test_a_process_that_maintains_counts_its_own_reads_in_memory_for_an_hour(
    uncounted: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = log_of(uncounted).clock = AheadOfTheDisk()
    put_reads(uncounted, int(time.time()), b'{"a": 1}')  # of the time when the property was on
    before = files_of(uncounted)
    internals_of(uncounted).compaction.in_background(None)
    uncounted.to_arrow(where="region = 'r4'")
    published(uncounted)
    uncounted.lookup([5])
    assert reads(uncounted) == {"r0": 1, "r4": 1}
    assert files_of(uncounted) == before
    published(uncounted)
    clock.ahead = HOUR + 100
    assert reads(uncounted) == {}


# -- when there is nothing to say ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sort_again", [False, True], ids=["never changed", "sorted again"])
def test_reads_of_a_steady_table_cost_and_write_nothing(sort_again: bool, made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "t")
    table = lakebed.open(tmp_path / "t")
    table.set_properties({"lakebed.count_reads": "on"})
    if sort_again:
        table.set_sort_key(["amount", "id"])
        table.maintenance.compact()
    before = set(threading.enumerate())
    code = "table.to_arrow(where='id < 60'); table.lookup([5]); table.query('select * from t')"
    read_elsewhere(table, code)
    exec(code)
    snapshot = log_of(table).refresh()
    requests = log_of(table).store.counters()
    assert internals_of(table).reads.of(snapshot) == {}
    assert log_of(table).store.counters() == requests
    assert not files_of_reads(table) and internals_of(table).reads.is_idle
    assert "lakebed-reads" not in {thread.name for thread in set(threading.enumerate()) - before}


@pytest.mark.slow
def test_a_reader_without_write_access_reads_as_ever(table: lakebed.Table) -> None:
    for each in [Path(table.path), *Path(table.path).rglob("*")]:
        each.chmod(0o555 if each.is_dir() else 0o444)
    code = "assert table.to_arrow(where='id < 60').num_rows == 60\n"
    code += "inside = internals_of(table)\nassert sum(inside.reads.of(inside.log.refresh()).values()) == 2"
    read_elsewhere(table, code, preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0))
    assert not files_of_reads(table)


def test_a_table_that_is_gone_does_not_come_back(table: lakebed.Table) -> None:
    table.to_arrow()
    shutil.rmtree(table.path)
    published(table)
    assert not Path(table.path).exists()


# -- bad files and old ones ----------------------------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"[1]", b'{"a": "b"}', b'{"a": -1}', b'{"a": 1.5}', b'{"a": true}']
)
def test_a_file_of_reads_that_is_none_is_ignored_and_reported_once(
    data: bytes, table: lakebed.Table, caplog: pytest.LogCaptureFixture
) -> None:
    clock = log_of(table).clock = AheadOfTheDisk()
    table.to_arrow(where="id < 10")
    bad = put_reads(table, int(time.time()), data)
    with caplog.at_level(logging.DEBUG, "lakebed.reads"):
        assert reads(table) == {"r0": 1}
        clock.ahead = 61
        assert reads(table) == {"r0": 1}
    [line] = caplog.records
    assert line.levelno == logging.WARNING and bad.name in line.message and "is ignored" in line.message


def test_a_file_of_another_name_and_paths_of_another_table_do_no_harm(
    table: lakebed.Table, caplog: pytest.LogCaptureFixture
) -> None:
    put_reads(table, int(time.time()), b'{"_lakebed/of-another-table.parquet": 1000000}')
    strange = put_reads(table, int(time.time()), b'{"a": 1}')
    strange.rename(strange.with_name(f"{int(time.time())}-mine.json"))
    put_reads(table, int(time.time()) + 30 * 24 * HOUR, b"{}")
    assert reads(table) == {} and len(caplog.records) == 1 and "another name" in caplog.text
    table.maintenance.compact()
    assert table.inspect.clustering()["waiting_part_count"][0].as_py() == 0


def put_reads(table: lakebed.Table, seconds: int, data: bytes) -> Path:
    place = Path(table.path, f"_lakebed/reads/{seconds:010d}-{os.urandom(16).hex()}.json")
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(data)
    return place


def test_reads_count_for_an_hour_and_their_files_go_then(table: lakebed.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = log_of(table).clock = AheadOfTheDisk()
    monkeypatch.setattr(LocalPartStorage, "now", lambda storage: clock())
    table.to_arrow(where="id < 10")
    published(table)
    other = lakebed.open(table.path)
    log_of(other).clock = clock
    for ahead, counted in ((HOUR - 100, {"r0": 1}), (HOUR + 100, {})):
        clock.ahead = ahead
        assert reads(table) == reads(other) == counted
        gone = other.maintenance.remove_orphan_files(dry_run=False).to_pylist()
        assert [row["reason"] for row in gone] == ([] if counted else ["temporary"])
        assert len(files_of_reads(table)) == len(counted)


def test_a_running_maintenance_removes_old_files_of_reads(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = log_of(table).clock = AheadOfTheDisk()
    monkeypatch.setattr(LocalPartStorage, "now", lambda storage: clock())
    internals_of(table).tidy_up.run_once()  # the one that lists everything
    table.to_arrow(where="id < 10")
    published(table)
    assert internals_of(table).tidy_up.run_once() == 0
    clock.ahead = HOUR + 100
    assert internals_of(table).tidy_up.run_once() == 1 and not files_of_reads(table)


# -- what a query reads --------------------------------------------------------------------------------------------------

ALL = {f"r{number}" for number in range(REGIONS)}


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("sql", "read"),
    [
        ("select * from t", ALL),
        ("select count(*) from t where region = 'r2'", {"r2"}),
        ("select id from t where id between 60 and 110 and region <> 'it''s c0'", {"r1", "r2"}),
        ("select id from t where id in (7, 9, 260, 270, 271, 272, 273)", {"r0", "r5"}),
        ("select id from t where seen >= timestamptz '2026-01-05 00:00:00+00'", {"r4", "r5"}),
        ("select id from t where amount > 2", set()),
        ("select a.id from t a join t b using (id) where a.id = 7", {"r0"}),
        ("select id from t where id = 7 union all select id from t where id = 299", {"r0", "r5"}),
        ("with early as (select * from t where id < 5) select * from early -- c9 = 'x", {"r0"}),
        ("select id from t where region like 'r1%' or id = 7", ALL),
        ("select id + 1 from t where id + 1 = 8", {"r0"}),
        ("select 1", set()),
        ("describe t", set()),
    ],
)
def test_a_query_counts_what_its_conditions_leave(sql: str, read: set[str], table: lakebed.Table) -> None:
    table.query(sql)
    assert reads(table) == dict.fromkeys(sorted(read), 1)


def test_queries_of_several_statements_are_counted_and_run_once(table: lakebed.Table) -> None:
    several = (
        "create temp table made as select 7 as id; select t.id from t where id = 7; select id from t where id > 290"
    )
    assert len(table.query(several, allow_files=True)) == 9
    assert reads(table) == {"r0": 1, "r5": 1}


# -- what is shown -------------------------------------------------------------------------------------------------------


def test_progress_shows_what_waits_and_how_often_it_is_read(
    table: lakebed.Table, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        table.to_arrow(where="id < 60")
    published(table)
    of_all, of_level = table.inspect.clustering().to_pylist()
    for row in (of_all, of_level):
        assert (row["waiting_part_count"], row["waiting_part_reads"]) == (REGIONS, 6)
    found = table.status()
    assert (found.waiting_parts, found.waiting_part_reads) == (REGIONS, 6)
    assert "read 3 times in the last hour" in found.will_do[0]
    main(["status", table.path])
    assert "0 of 6 parts are sorted by it; 6 wait to be, read 6 times in the last hour" in capsys.readouterr().out
    table.maintenance.compact()
    main(["status", table.path])
    told = capsys.readouterr().out
    assert "parts are sorted by it" in told and "wait to be" not in told


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name == "lakebed-reads":
            thread.join(5)
