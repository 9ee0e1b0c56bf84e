"""Purge and restore of a table in S3 while a pipeline ingests: no byte is left, and no other row is harmed."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

import lakebed
from lakebed.health.finding import Severity
from lakebed.log.actions import AddChangePart, AddPart
from lakebed.log.removals import purged_before, purges_of
from lakebed.log.snapshot import Snapshot
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.storage.local_folders import files_below
from tests.end_to_end.people import PARTITIONS, People, Pipeline, Purged, Stage
from tests.infra.kafka import KafkaServer
from tests.infra.s3 import S3Server, aws_environment
from tests.internals import log_of, storage_of
from tests.marker import holds
from tests.waiting import wait_until, work_of

pytestmark = pytest.mark.slow

ACCOUNTS, RECORDS_MORE = 24, 300


@pytest.fixture(scope="module")
def stage(kafka: KafkaServer, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with aws_environment(s3_server.endpoint):
        people = People(kafka, f"people-{time.time_ns()}")
        people.change(0, "the first", "crowd")
        people.ends()
        pipeline = Pipeline(people, f"s3://{s3_server.create_bucket()}/people", tmp_path_factory.mktemp("people"))
        with pipeline:
            yield Stage(people, pipeline)


class Search:
    """Finds the files that hold a text. What is in the store never changes under its name, so it is read once."""

    def __init__(self, stage: Stage, text: str) -> None:
        self._text, self._folder = text, stage.pipeline.run_folder
        self._root = stage.pipeline.root
        self._roots = [self._root, self._root + QUARANTINE_SUFFIX]
        self._known: dict[tuple[str, int, float], bool] = {}
        self.seen: set[str] = set()
        self._read_until = dict.fromkeys(self._roots, -1)
        self._committed: set[str] = set()

    def in_store(self) -> set[str]:
        """Of the table and its quarantine, as the report of a purge names them: by path, or by url."""
        self._read_on()
        found = {self._reported(root, path) for root in self._roots for path in self._in_table(root)}
        self.seen |= found
        return found

    def of_versions(self) -> set[str]:
        """Those that were found at any time; but of data files those alone that a version had. A writer itself deletes what it
        wrote for a commit that was refused."""
        return {path for path in self.seen if "_lakebed/" not in path or path in self._committed}

    def _reported(self, root: str, path: str) -> str:
        return path if root == self._root else f"{root}/{path}"

    def _read_on(self) -> None:
        for root in self._roots:
            log = log_of(lakebed.open(root))
            newest = log.refresh()
            for version in range(max(self._read_until[root] + 1, log.oldest_version()), newest.version + 1):
                commit = log.read_commit(version)
                for action in commit.actions if commit else ():
                    if isinstance(action, AddPart | AddChangePart):
                        self._committed.add(self._reported(root, action.part.path))
            self._read_until[root] = newest.version

    def _in_table(self, root: str) -> set[str]:
        storage = storage_of(lakebed.open(root))
        for path, size, modified in storage.list(""):
            if (found := (f"{root}/{path}", size, modified)) not in self._known:
                try:
                    self._known[found] = holds(storage.read_bytes(path), path, self._text)
                except FileNotFoundError:
                    continue
        there = {(f"{root}/{path}", size, modified) for path, size, modified in storage.list("")}
        return {each[0].removeprefix(f"{root}/") for each in there if self._known.get(each)}

    def on_disk(self) -> set[str]:
        """Of the pipeline's own files: caches, its checkpoint, and what is temporary."""
        found = set()
        for name, _ in files_below(self._folder):
            file = Path(name)
            try:
                if holds(file.read_bytes(), file.name, self._text):
                    found.add(str(file))
            except FileNotFoundError:
                continue
        return found


def write_of(stage: Stage, owner: str, first: int = 0) -> dict[int, int]:
    """Accounts of one owner, who is in keys and values; some of the crowd's were the owner's before, and one record is bad."""
    people = stage.people
    for number in range(first, first + ACCOUNTS):
        people.change(number, f"{owner}:{number}", owner)
        people.change(number, f"former {number}", owner)
    people.unreadable(f"{owner}:{first}", owner)
    stage.pipeline.wait_until_read(people.ends())
    for number in range(first, first + ACCOUNTS, 2):
        people.change(number, f"{owner}:{number}", owner, "d" if number % 4 else "u")
        people.change(number, f"former {number}", "crowd")
    return people.ends()


@contextmanager
def purging(stage: Stage, owner: str, report: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``lakebed purge`` as a process; what it prints goes to a file."""
    command, environment = stage.pipeline.command_of(
        "purge", stage.pipeline.root, "--where", f"owner = '{owner}'", "--yes", "--format", "json"
    )
    with report.open("wb") as out, report.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.mark.long
def test_a_purge_that_is_killed_and_taken_up_leaves_no_byte_while_ingest_goes_on(stage: Stage, tmp_path: Path) -> None:
    pipeline, owner = stage.pipeline, f"person{secrets.token_hex(5)}"
    search, before = Search(stage, owner), stage.catch_up()
    stage.has_read(before)
    with stage.people.crowd():
        pipeline.wait_until_read(write_of(stage, owner))
        log = log_of(lakebed.open(pipeline.root))
        held = search.in_store()
        assert any(QUARANTINE_SUFFIX in path for path in held) and any(path.startswith("_lakebed") for path in held)
        with purging(stage, owner, tmp_path / "killed") as killed:
            begun = wait_until(lambda: log.refresh() if purges_of(log.refresh().domains) else None)
            wait_until(lambda: log.refresh().version > begun.version + 1)
            killed.kill()
        assert purges_of(log.refresh().domains), "it had come to its end"
        pipeline.wait_until_read(write_of(stage, owner, ACCOUNTS))
        search.seen = search.in_store()  # what the killed purge had deleted by then is in nobody's report
        with purging(stage, owner, tmp_path / "report") as process:
            while process.poll() is None:
                search.in_store()
                time.sleep(0.5)
        assert process.returncode == 0, (tmp_path / "report.log").read_text()
        report = {row["path"]: row for row in map(orjson.loads, (tmp_path / "report").read_bytes().splitlines())}
        assert search.in_store() == set()
        wait_until(lambda: not search.on_disk(), lambda: f"on the disk: {search.on_disk()}", work_of(pipeline.pid))
        newest = log_of(lakebed.open(pipeline.root)).refresh()  # the commits after the one that `log` knows may be gone
        assert newest.version > purged_before(newest.domains), "nothing was ingested meanwhile"
        assert not purges_of(newest.domains)
    unnamed = {path for path in search.of_versions() if path not in report or report[path]["gone_at"] is None}
    assert not unnamed, "the report lacks files that held a row"
    after = stage.catch_up()
    stage.has_read(after)
    stage.history.append(Purged(owner))
    stage.assert_rows()
    assert search.in_store() == set()
    findings = lakebed.open(pipeline.root).doctor(deep=True).findings
    assert [each for each in findings if each.severity is Severity.CRITICAL] == []

    lakebed.open(pipeline.root).maintenance.rewind(stage.people.topic, before)
    stage.catch_up()
    stage.goes_on_from(before)
    stage.has_read(after)
    stage.assert_rows()
    assert search.in_store(), "what Kafka still has is new data when it is read again"


@pytest.mark.long
def test_after_a_restore_ingest_goes_on_and_rows_are_those_of_then_and_what_came_since(stage: Stage) -> None:
    pipeline, log = stage.pipeline, log_of(lakebed.open(stage.pipeline.root))
    stage.has_read(stage.catch_up())
    for positions in (False, True):
        with stage.people.crowd():
            wait_for_more(stage, log.refresh())
            then = log.refresh()
            wait_for_more(stage, then)
            restored = lakebed.open(pipeline.root).restore(then.version, positions=positions)
            at = log.at_version(restored)
            stage.has_read(pipeline.position(then))
            stage.assert_rows(restored)
            assert pipeline.position(at) == pipeline.position(then if positions else log.at_version(restored - 1))
            stage.goes_on_from(pipeline.position(at))
            wait_for_more(stage, at)
        stage.has_read(stage.catch_up())
        stage.assert_rows()


def wait_for_more(stage: Stage, since: Snapshot) -> None:
    """Until the table has read some hundred records since a version."""
    begin = stage.pipeline.position(since)
    stage.pipeline.wait_until_read({number: offset + RECORDS_MORE // PARTITIONS for number, offset in begin.items()})
