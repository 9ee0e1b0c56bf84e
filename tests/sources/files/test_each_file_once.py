"""Each file is in the table once: across crashes, checkpoints that are lost or old, and several processes."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import DataLoss, InvalidChanges, InvalidInput, Retry, StoreUnavailable
from lakebed.ingest.batch_writer import Written, commit_written
from lakebed.ingest.stream import OffsetDocuments
from lakebed.log.actions import Action, Domain
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.positions import files_read
from lakebed.positions.files_read import FilesRead
from lakebed.sources.files import planner
from tests.ingest.crashes import POINTS, Crash, dying
from tests.internals import log_of
from tests.sources.files.folders import NOW, Process, remarks, write

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Without keys: what is read twice is there twice."""
    return lakebed.create(tmp_path / "t", SCHEMA).path


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def add(inbox: Path, number: int, name: str = "") -> None:
    write(inbox, name or f"{number}.json", [{"id": number, "v": "x"}], NOW + number)


def ids(table: str) -> list[int]:
    return sorted(lakebed.open(table).to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point[2]} {point[1]}")
def test_a_batch_that_crashed_is_read_again_with_the_same_files(table: str, inbox: Path, point: Any) -> None:
    add(inbox, 1)
    write(inbox, "bad.json", ["{not json"], NOW)
    process = Process(table, inbox)
    process.batch()
    add(inbox, 2)
    add(inbox, 3)
    document = process.plan()
    assert document is not None
    before = process.checkpoint
    with dying(*point), pytest.raises(Crash):
        process.bring(document)
    add(inbox, 4)  # it came after the batch was planned, so the batch does not have it
    again = Process(table, inbox, checkpoint=before)
    again.bring(document)
    assert ids(table) == [1, 2, 3]
    again.follow()
    assert ids(table) == [1, 2, 3, 4]


def test_whatever_becomes_of_the_checkpoint_each_file_is_read_once(table: str, inbox: Path) -> None:
    for number in range(3):
        add(inbox, number)
    process = Process(table, inbox, files_per_batch_max=2)
    first = process.batch()
    old = process.checkpoint
    process.follow()
    add(inbox, 3)
    assert first is not None and ids(table) == [0, 1, 2]
    Process(table, inbox, checkpoint=old).follow()  # an old checkpoint
    assert ids(table) == [0, 1, 2, 3]
    add(inbox, 4)
    Process(table, inbox).follow()  # a new one
    assert ids(table) == [0, 1, 2, 3, 4]


def test_two_processes_share_the_files(table: str, inbox: Path) -> None:
    one, other = Process(table, inbox), Process(table, inbox)
    for number in range(4):
        add(inbox, number)
    planned = one.plan(), other.plan()
    assert planned[0] == planned[1] is not None
    add(inbox, 4)
    one.bring(planned[0])
    done = other.bring(planned[1])
    assert done.version is None and ids(table) == [0, 1, 2, 3]
    other.follow()
    one.follow()
    assert ids(table) == [0, 1, 2, 3, 4]


def test_a_batch_reads_what_another_process_has_not_read_meanwhile(
    table: str, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Process(table, inbox, files_per_batch_max=2), Process(table, inbox)
    for number in range(4):
        add(inbox, number)
    some, every = one.plan(), other.plan()
    assert some is not None and every is not None
    run = other.run

    def overtaken(work: Any) -> Any:
        rows = run(work)
        other.run = run
        one.bring(some)
        return rows

    other.run = overtaken
    done = other.bring(every)
    assert done.written.rows == 2 and ids(table) == [0, 1, 2, 3]


class AsBefore:
    """The files of a table as they were noted when the stream was Spark's own: only the digests of their paths."""

    domains = frozenset(["lakebed.files.1"])

    def __init__(self, digests: bytes) -> None:
        self._text = json.dumps({"digests": base64.b64encode(digests).decode()})

    def is_current(self, snapshot: Snapshot) -> bool:
        return True

    def actions(self) -> list[Action]:
        return [Domain("lakebed.files.1", self._text)]


def test_a_checkpoint_of_sparks_own_source_is_taken_over(table: str, inbox: Path) -> None:
    add(inbox, 1)
    add(inbox, 2, "the file ü%20 (2).json")
    process = Process(table, inbox)
    process.follow()
    log = log_of(process.table)
    [entry] = FilesRead.of(log.refresh()).entries.values()
    commit_written(log, log.refresh(), Written(), None, Operation.STREAMING_UPDATE, marks=AsBefore(entry.digests))
    add(inbox, 3)
    spark: dict[str, Any] = {"logOffset": 7}
    after = Process(table, inbox, checkpoint=spark)
    assert after.reader.ranges({"logOffset": 6}, spark) == []
    after.bring({"logOffset": 8})  # a batch that was planned and not run: what it had is planned again
    after.follow()
    assert ids(table) == [1, 2, 3]
    add(inbox, 1)  # another time: nothing is known of what it was
    after.follow()
    assert ids(table) == [1, 2, 3] and remarks(after.table) == {}


# -- files that change -------------------------------------------------------------------------------------------------


def test_a_file_that_is_written_again_is_not_read_again_and_told_once(table: str, inbox: Path) -> None:
    add(inbox, 1)
    add(inbox, 2)
    process = Process(table, inbox)
    process.follow()
    write(inbox, "1.json", [{"id": 77, "v": "other"}], NOW + 50)
    process.follow()
    assert ids(table) == [1, 2] and remarks(process.table) == {"file_rewritten": ["1.json"]}
    version = process.table.version
    process.follow()
    Process(table, inbox).follow()
    assert lakebed.open(table).version == version, "it is told once, whoever looks"
    write(inbox, "1.json", [{"id": 78, "v": "yet another"}], NOW + 60)
    add(inbox, 3)
    Process(table, inbox).follow()
    assert ids(table) == [1, 2, 3] and process.table.version == version + 1
    (inbox / "1.json").unlink()
    process.follow()
    add(inbox, 1)  # as it was in the beginning
    process.follow()
    assert ids(table) == [1, 2, 3]


def test_a_file_that_is_gone_is_an_error_that_names_it_unless_the_settings_allow_it(table: str, inbox: Path) -> None:
    for number in range(3):
        add(inbox, number)
    process = Process(table, inbox)
    document = process.plan()
    assert document is not None
    (inbox / "1.json").unlink()
    with pytest.raises(DataLoss, match=f"the file {inbox}/1.json is gone, and was not read yet; .*ignoreMissingFiles"):
        process.bring(document)
    assert ids(table) == []
    allowed = Process(table, inbox, options={"ignoreMissingFiles": "true"})
    allowed.bring(document)
    assert ids(table) == [0, 2] and remarks(process.table) == {"file_skipped": ["1.json"]}


def test_a_damaged_file_is_an_error_that_names_it_unless_the_settings_allow_it(table: str, inbox: Path) -> None:
    add(inbox, 1)
    (inbox / "2.json.gz").write_bytes(b"\x1f\x8b\x08 no")
    process = Process(table, inbox)
    document = process.plan()
    assert document is not None
    for _ in range(2):
        with pytest.raises(InvalidChanges, match=f"the file {inbox}/2.json.gz can't be read: .*ignoreCorruptFiles"):
            process.bring(document)
    assert ids(table) == []
    Process(table, inbox, options={"ignoreCorruptFiles": "true"}).bring(document)
    assert ids(table) == [1] and remarks(process.table) == {"file_skipped": ["2.json.gz"]}


def test_a_file_that_is_written_while_it_is_read_is_tried_again(table: str, inbox: Path) -> None:
    add(inbox, 1)
    process = Process(table, inbox)
    document = process.plan()
    assert document is not None
    ranges = process.reader.ranges({}, document)
    with (inbox / "1.json").open("a") as file:
        file.write('{"id": 2}\n')
    with pytest.raises(Retry, match=r"1.json was written while it was read: files must appear complete"):
        list(process.reader.read(ranges[0]))
    process.bring(document)  # the batch looks again
    process.follow()
    assert ids(table) == [1, 2] and remarks(process.table) == {}


def test_an_empty_file_is_read_when_it_has_something(table: str, inbox: Path) -> None:
    (inbox / "1.json").touch()
    process = Process(table, inbox)
    assert process.follow() == []
    add(inbox, 1)
    process.follow()
    assert ids(table) == [1]


def test_a_folder_that_is_not_there_is_waited_for_and_one_that_is_refused_ends_the_run(
    table: str, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(table, inbox)
    inbox.rmdir()
    with pytest.raises(StoreUnavailable, match="is not there; is it mounted"):
        process.plan()
    inbox.mkdir()
    add(inbox, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda path: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
        with pytest.raises(InvalidInput, match=r"can't be read .*Permission denied"):
            process.plan()
    process.follow()
    assert ids(table) == [1]


# -- what is remembered ------------------------------------------------------------------------------------------------


def test_files_beyond_what_is_remembered_are_not_read_a_second_time(
    table: str, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_read, "_ENTRY_FILES", 2)
    monkeypatch.setattr(files_read, "FILES_MAX", 6)
    process = Process(table, inbox)
    for number in range(12):
        write(inbox, f"{number:02}.json", [{"id": number, "v": "x"}], NOW + 10**9 * (number == 1))  # one of the future
        process.follow()
    known = FilesRead.of(log_of(process.table).refresh())
    assert sum(map(len, known.entries.values())) <= 6
    new = Process(table, inbox)
    new.follow()
    assert ids(table) == list(range(12))
    assert set(remarks(process.table)) == {"file_forgotten"} and "01.json" in remarks(process.table)["file_forgotten"]
    version = process.table.version
    new.follow()
    assert process.table.version == version
    write(inbox, "old time.json", [{"id": 99, "v": "x"}], NOW - 10**8)  # it comes now, so it can't have been read
    new.follow()
    assert ids(table) == [*range(12), 99]


def test_a_look_at_a_large_folder_asks_only_new_files_for_their_states(
    table: str, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "WHOLE_LOOK_SECONDS", 10**9)
    for number in range(50):
        add(inbox, number)
    process = Process(table, inbox)
    process.follow()
    asked: list[str] = []
    whole = planner.Looker.files

    def files(self: Any, is_wanted: Any = lambda path: True) -> Any:
        def counted(path: str) -> bool:
            if is_wanted(path):
                asked.append(path)
            return bool(is_wanted(path))

        return whole(self, counted)

    monkeypatch.setattr(planner.Looker, "files", files)
    add(inbox, 50)
    process.follow()
    assert set(asked) == {"50.json"} and ids(table) == list(range(51))


def test_documents_are_found_again_in_the_checkpoint(tmp_path: Path, table: str, inbox: Path) -> None:
    """A name that is no text survives the way through JSON and the checkpoint."""
    odd = os.fsdecode(b"\xff\n{name}.json")
    add(inbox, 1, odd)
    process = Process(table, inbox)
    document = process.plan()
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n" + json.dumps(document))
    texts = OffsetDocuments(str(tmp_path), lambda name: (tmp_path / name).read_text())
    assert texts.of_batch(0) == ({}, document)
    process.bring(texts.of_batch(0)[1])
    assert ids(table) == [1]
