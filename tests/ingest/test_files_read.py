"""The log of a table has the files that it has read, and tells them from others."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import Unexpected
from lakebed.ingest import files_read
from lakebed.ingest.batch_writer import BatchResult, Written, commit_written
from lakebed.ingest.files_read import FilesRead, ReadFiles, files_of_batch, of_files, same_path
from lakebed.manifest.entries import Operation
from tests.internals import log_of


def commit(table: lakebed.Table, files: ReadFiles) -> BatchResult:
    log = log_of(table)
    return commit_written(log, log.refresh(), Written(), None, Operation.STREAMING_UPDATE, marks=files)


def read_by(table: lakebed.Table) -> FilesRead:
    return FilesRead.of(log_of(table).refresh())


def test_files_that_were_read_are_told_from_others_in_any_spelling(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    assert not commit(table, read_by(table).plus(["file:///in/a", "s3a://bucket/b"])).outdated
    files = ["file:/in/a", "file:///in/a", "file:/in/b", "s3a://bucket/b", "s3a://bucket/a"]
    assert read_by(table).without(files) == ["file:/in/b", "s3a://bucket/a"]
    assert same_path("file:///in/a") == same_path("file:/in/a") == "file:/in/a"


def test_of_two_commits_planned_on_the_same_files_one_is_made(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    one, other = read_by(table).plus(["a", "b"]), read_by(table).plus(["b", "c"])
    assert not commit(table, one).outdated
    assert commit(table, other).outdated
    assert table.version == 1


def test_entries_stay_small_and_the_oldest_files_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_read, "_ENTRY_FILES", 4)
    monkeypatch.setattr(files_read, "FILES_MAX", 10)
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    names = [f"file {number}" for number in range(30)]
    for name in names:
        commit(table, read_by(table).plus([name]))
    found = read_by(table)
    assert max(map(len, found.entries.values())) == 4 * 8 and len(found.entries) <= 3
    assert found.without(names) == names[: -sum(map(len, found.entries.values())) // 8]
    assert not found.without(names[-8:])


def test_the_files_of_a_batch_are_read_from_the_log_of_sparks_source(tmp_path: Path) -> None:
    folder = tmp_path / "sources" / "0"
    folder.mkdir(parents=True)

    def write(name: str, *entries: tuple[str, int]) -> None:
        lines = [json.dumps({"path": path, "timestamp": 1, "batchId": batch}) for path, batch in entries]
        (folder / name).write_text("\n".join(["v1", *lines]))

    def read(name: str) -> str:
        return (tmp_path / name).read_text()

    write("0", ("file:///in/a%20b", 0))
    write("1.compact", ("file:///in/a%20b", 0), ("file:///in/c", 1), ("file:///in/d", 1))
    write("2", ("s3a://b/e", 2))
    assert files_of_batch({}, {"logOffset": 0}, read) == ["file:/in/a%20b"]
    assert files_of_batch({"logOffset": 0}, {"logOffset": 2}, read) == ["file:/in/c", "file:/in/d", "s3a://b/e"]
    assert files_of_batch({"logOffset": 2}, {"logOffset": 2}, read) == []
    with pytest.raises(Unexpected, match=r"does not say which files a batch reads: sources/0/3: .*No such file"):
        files_of_batch({"logOffset": 2}, {"logOffset": 3}, read)


def test_rows_are_told_by_their_file() -> None:
    paths = pa.array(["file:///in/a", "file:/in/b", None, "file:/in/a"])
    assert of_files(paths, {"file:/in/a"}).to_pylist() == [True, False, False, True]
