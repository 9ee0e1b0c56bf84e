"""The log of a table has the files that it has read, and tells them from others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import Corrupt
from lakebed.ingest.batch_writer import BatchResult, Written, commit_written
from lakebed.log.entries import Operation
from lakebed.positions import files_read
from lakebed.positions.files_read import FileRead, FilesRead, ReadFiles, files_in, same_path
from tests.internals import log_of


def commit(table: lakebed.Table, files: ReadFiles) -> BatchResult:
    log = log_of(table)
    return commit_written(log, log.refresh(), Written(), None, Operation.STREAMING_UPDATE, marks=files)


def read_by(table: lakebed.Table) -> FilesRead:
    return FilesRead.of(log_of(table).refresh())


def file(url: str, time: int = 5, size: int = 1, arrived: int = 7) -> FileRead:
    return FileRead(url, time * 10**9, size, arrived * 10**9)


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    return lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]))


def test_files_that_were_read_are_told_from_others_in_any_spelling(table: lakebed.Table) -> None:
    assert not commit(table, read_by(table).plus([file("file:///in/a"), file("s3a://bucket/b")])).outdated
    files = ["file:/in/a", "file:///in/a", "file:/in/b", "s3a://bucket/b", "s3a://bucket/a"]
    assert read_by(table).without(files) == ["file:/in/b", "s3a://bucket/a"] and read_by(table).without([]) == []
    assert same_path("file:///in/a") == same_path("file:/in/a") == "file:/in/a"


def test_of_two_commits_planned_on_the_same_files_one_is_made(table: lakebed.Table) -> None:
    one, other = (read_by(table).plus([file(name) for name in names]) for names in ("ab", "bc"))
    assert not commit(table, one).outdated
    assert commit(table, other).outdated
    assert table.version == 1


def test_entries_stay_small_and_the_oldest_files_are_forgotten(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_read, "_ENTRY_FILES", 4)
    monkeypatch.setattr(files_read, "FILES_MAX", 10)
    names = [f"file {number}" for number in range(30)]
    for number, name in enumerate(names):
        commit(table, read_by(table).plus([file(name, arrived=number)]))
    found = read_by(table)
    kept = sum(map(len, found.entries.values()))
    assert max(map(len, found.entries.values())) == 4 and len(found.entries) <= 3 and kept <= 10
    assert found.without(names) == names[:-kept]
    assert found.forgotten_ns == (29 - kept) * 10**9


def test_a_file_in_another_state_was_written_again_and_its_new_state_is_noted(table: lakebed.Table) -> None:
    commit(table, read_by(table).plus([file("a"), file("b"), file("c")]))
    now = [file("a"), file("b", size=2), file("c", time=6), file("d", size=9)]
    assert read_by(table).rewritten(now) == now[1:3]
    commit(table, read_by(table).plus([file("e")], read_by(table).rewritten(now)))
    assert read_by(table).rewritten(now) == [] and read_by(table).without(list("abcde")) == ["d"]


def test_the_newest_time_is_none_of_the_future(table: lakebed.Table) -> None:
    commit(
        table, read_by(table).plus([file("a", time=-3, arrived=7), file("b", time=99, arrived=7), file("c", time=6)])
    )
    assert read_by(table).newest_ns == 7 * 10**9


@pytest.mark.parametrize(
    "text", ['{"digests": "AAAA"}', '{"digests": "AAAAAAAAAAA=", "states": "AAAA"}', "[]", '{"digests": 1}']
)
def test_an_entry_that_can_not_be_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt, match=r"lakebed\.files\.1"):
        files_in("lakebed.files.1", text)


def test_half_a_million_files_cost_a_batch_little(table: lakebed.Table) -> None:
    """What is compared are arrays: no object is made for a file that a batch does not name."""
    entries = {
        number: files_read.Entry(digests=bytes([number % 256]) * 8 * 256, states=bytes(4 * 256))
        for number in range(1, 1954)
    }
    read = FilesRead(entries)
    assert read.without(["a", "b"]) == ["a", "b"]
    assert read.plus([file("a")]).entries.keys() == {1954}
