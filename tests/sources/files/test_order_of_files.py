"""Files are read in the order of their times, then of their paths, whatever their sizes, and however tasks share them."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.positions.truncates import Truncate, cutoff_of
from lakebed.sources.files import planner, reader
from lakebed.sources.files.folder import LocalFolder
from tests.internals import log_of
from tests.sources.files.folders import NOW, Process, here, in_groups, remarks, write
from tests.worlds import seeds

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.string())])


def truncates_of(table: lakebed.Table) -> tuple[Truncate, ...]:
    return cutoff_of(log_of(table).refresh()).known


@pytest.fixture
def table(tmp_path: Path) -> str:
    return lakebed.create(tmp_path / "t", SCHEMA, keys=["id"]).path


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.mark.parametrize("parallel", [here, in_groups(1), in_groups(30)], ids=["here", "a task a range", "some tasks"])
def test_a_newer_file_wins_over_an_older_one_whatever_their_sizes(table: str, inbox: Path, parallel: object) -> None:
    rows = {0: 900, 1: 1, 2: 300, 3: 1, 4: 2000, 5: 1}
    for file, more in rows.items():
        other = [{"id": 1000 + number, "v": f"{file}"} for number in range(more)]
        deletes = [] if file != 4 else [{"id": 2, "v": "gone before"}]
        write(inbox, f"{9 - file}.json", [{"id": 1, "v": f"{file}"}, *other, *deletes], NOW + file)
    process = Process(table, inbox, run=parallel)  # type: ignore[arg-type]
    [done] = process.follow()
    assert process.rows()[1] == "5" and process.rows()[1000] == "5" and process.rows()[1001] == "4"
    assert done.written.rows >= 2001


def test_files_of_one_time_are_read_in_the_order_of_their_paths(table: str, inbox: Path) -> None:
    names = ["b.json", "a=2/a.json", "a.json", "a=10/z.json", "a.json.gz.json"]
    for name in names:
        write(inbox, name, [{"id": 1, "v": name}])
    process = Process(table, inbox)
    document = process.plan()
    assert document is not None
    assert [path for path, *_ in document["files"]] == sorted(names)
    process.bring(document)
    assert process.rows() == {1: sorted(names)[-1]}


def test_a_large_file_is_cut_and_its_rows_keep_their_order(
    table: str, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SPLIT_BYTES", 300)
    write(inbox, "a.json", [{"id": number % 7, "v": f"{number}"} for number in range(500)], NOW)
    write(inbox, "b.json", [{"id": 6, "v": "last"}], NOW + 1)
    one = Process(table, inbox, run=in_groups(1))
    document = one.plan()
    assert document is not None
    ranges = one.reader.ranges({}, document)
    assert len(ranges) > 20 and sum(each.size for each in ranges) == sum(
        file.stat().st_size for file in inbox.iterdir()
    )
    one.bring(document)
    assert one.rows() == {0: "497", 1: "498", 2: "499", 3: "493", 4: "494", 5: "495", 6: "last"}


@pytest.mark.few(2)
@seeds(4)
def test_rows_are_in_the_order_of_files_and_rows_at_every_replay_and_in_every_parallelism(
    seed: int, inbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(reader, "SPLIT_BYTES", rng.choice([64, 500, 1 << 20]))
    numbers = itertools.count()
    expected: dict[int, str] = {}
    times = [NOW + rng.randint(-5, 5) for _ in range(rng.randint(1, 15))]
    for place, time in enumerate(sorted(times)):
        rows = [{"id": rng.randrange(9), "v": f"{next(numbers)}"} for _ in range(rng.choice([1, 2, 50]))]
        expected |= {row["id"]: row["v"] for row in rows}
        write(inbox, f"{place:02}.json", rows, time)
    found, parts = [], []
    for number, run in enumerate([here, in_groups(1), in_groups(rng.randint(2, 40))]):
        path = lakebed.create(tmp_path / f"t{number}", SCHEMA, keys=["id"]).path
        process = Process(path, inbox, run=run)
        document = process.plan()
        assert document is not None
        parts.append(document["files"])
        process.bring(document)
        found.append(process.rows())
    assert found == [expected] * 3 and parts == [parts[0]] * 3


@pytest.mark.parametrize("parallel", [here, in_groups(1)], ids=["here", "a task a range"])
def test_a_truncate_in_a_file_removes_what_came_before_it_in_the_batch_and_nothing_after(
    table: str, inbox: Path, parallel: object
) -> None:
    """All events have one time, and no place in the log of the source, so only the order of files and lines tells."""

    def change(op: str, key: int = 0) -> dict[str, Any]:
        source = {"connector": "x", "ts_ms": 5}
        return {"op": op, "before": None, "after": {"id": key, "v": "x"} if key else None, "source": source, "ts_ms": 5}

    write(inbox, "c.json", [change("c", 1), change("c", 2)], NOW)
    write(inbox, "b.json", [change("c", 3), change("t"), change("c", 4), change("t"), change("c", 5)], NOW + 1)
    write(inbox, "a.json", [change("c", 6)], NOW + 2)
    process = Process(table, inbox, "debezium-json", run=parallel)  # type: ignore[arg-type]
    process.follow()
    assert process.rows() == {5: "x", 6: "x"}
    write(inbox, "d.json", [change("c", 7)], NOW + 3)
    Process(table, inbox, "debezium-json").follow()
    assert process.rows() == {5: "x", 6: "x", 7: "x"}
    assert len(truncates_of(process.table)) == 1, "what is remembered does not grow with the files"


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_an_old_file_is_read_and_one_of_the_future_holds_nothing_back(table: str, inbox: Path, format: str) -> None:
    def add(name: str, key: int, text: str, time: float | None) -> None:
        if format == "json":
            write(inbox, f"{name}.json", [{"id": key, "v": text}], time)
        else:
            pq.write_table(pa.table({"id": [key], "v": [text]}), inbox / f"{name}.parquet")
            os.utime(inbox / f"{name}.parquet", None if time is None else (time, time))

    process = Process(table, inbox, format)
    year = 365 * 86_400
    add("future", 1, "future", NOW + 70 * year)
    add("old", 2, "old", NOW - 20 * year)
    add("before the epoch", 3, "oldest", -year)
    process.follow()
    assert process.rows() == {1: "future", 2: "old", 3: "oldest"}
    add("now", 1, "now", None)
    add("older", 2, "older", NOW - 30 * year)
    process.follow()
    assert process.rows() == {1: "now", 2: "older", 3: "oldest"}
    assert remarks(process.table) == {"file_late": [f"older.{format}"]}, "one of the future makes no other one late"


def test_files_that_wait_are_read_without_another_look_and_those_that_are_gone_are_left_out(
    table: str, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in range(7):
        write(inbox, f"{file}.json", [{"id": file, "v": f"{file}"}], NOW + file)
    process = Process(table, inbox, files_per_batch_max=2)
    looks: list[int] = []
    whole = LocalFolder.children
    monkeypatch.setattr(LocalFolder, "children", lambda self, path: looks.append(1) or whole(self, path))
    monkeypatch.setattr(planner, "STORE_LOOK_SECONDS", 10.0)
    monkeypatch.setattr(LocalFolder, "is_quick", property(lambda self: False))
    documents = []
    while (document := process.planner.next(process.checkpoint)) != process.checkpoint:
        if not documents:
            assert process.planner.left_some
            monkeypatch.undo()  # a local file is looked at once more before it is planned
            (inbox / "3.json").unlink()
        documents.append(document)
        process.bring(document)
    assert len(looks) == 1 and not process.planner.left_some
    assert sorted(process.rows()) == [0, 1, 2, 4, 5, 6]


def test_files_that_wait_are_shared_out_in_batches_in_their_order(
    table: str, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in range(10):
        write(inbox, f"{file}.json", [{"id": 1, "v": f"{file}"}], NOW + file)
    few = Process(table, inbox, files_per_batch_max=4)
    assert [done.written.ignored for done in few.follow()] == [0, 0, 0] and few.rows() == {1: "9"}
    for file in range(10, 14):
        write(inbox, f"{file}.json", [{"id": 1, "v": f"{file}" * 100}], NOW + file)
    monkeypatch.setattr(planner, "BYTES_MAX", 500)
    bounded = Process(table, inbox)
    assert len(bounded.follow()) == 2 and bounded.rows()[1].startswith("13")
    write(inbox, "whole.json", [{"id": 1, "v": "x" * 5000}], NOW + 99)
    assert len(bounded.follow()) == 1, "a file that is larger than a batch is a batch"
    by_option = Process(table, inbox, options={"MaxBytesPerTrigger": "1", "maxFilesPerTrigger": "3"})
    for file in range(3):
        write(inbox, f"more {file}.json", [{"id": 1, "v": f"{file}"}], NOW + 100 + file)
    assert len(by_option.follow()) == 3
