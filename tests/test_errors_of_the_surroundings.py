"""Errors whose cause is outside: they name what is to be done, heal when it is, and one cause is not taken for another."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.compaction.maintenance import Maintenance
from lakebed.errors import Corrupt, InvalidInput, StoreUnavailable, Unexpected
from lakebed.failures import failure_in
from lakebed.health.status import Observer
from lakebed.monitoring.progress import Progress
from lakebed.parts.arrow_source import unreadable
from lakebed.pipeline.driver import why_no_jars
from lakebed.storage.data_files import LocalPartStorage
from lakebed.storage.engine import naming_unreadable, naming_unwritable
from lakebed.storage.local_folders import SpillBuckets, make_folders, raise_for, trouble
from tests.internals import internals_of

PERMISSION, FULL, TOO_MANY = errno.EACCES, errno.ENOSPC, errno.EMFILE
CASES = {
    PERMISSION: (InvalidInput, "check the path and its permissions"),
    errno.EROFS: (InvalidInput, "check the path and its permissions"),
    FULL: (StoreUnavailable, "check the disk and its free space"),
    TOO_MANY: (StoreUnavailable, "allow more open files"),
}


def refused(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def refusing(code: int) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise refused(code)

    return refuse


@pytest.mark.parametrize("code", CASES)
def test_a_file_that_can_not_be_written_says_why(code: int, tmp_path: Path) -> None:
    kind, remedy = CASES[code]
    storage = LocalPartStorage(str(tmp_path))
    attempts: list[Callable[[], object]] = [
        lambda: raise_for(refused(code), "x"),
        lambda: storage.write_file("a/part.parquet", refusing(code)),
    ]
    for attempt in attempts:
        with pytest.raises(kind, match=re.escape(remedy)):
            attempt()
    for name, attempt in {
        "os.mkdir": lambda: make_folders(str(tmp_path / "new")),
        "os.unlink": lambda: storage.delete("gone"),
        "os.stat": lambda: storage.size("part"),
        "builtins.open": storage.now,
        "pyarrow.ipc.new_stream": lambda: SpillBuckets(pa.schema([("a", pa.int64())]), 1).__enter__(),
    }.items():
        with patch(name, refusing(code)), pytest.raises(kind, match=re.escape(remedy)):
            attempt()


@pytest.mark.parametrize("code", CASES)
def test_what_duckdb_says_of_a_file_is_understood(code: int) -> None:
    kind, remedy = CASES[code]
    with pytest.raises(kind, match=re.escape(remedy)), naming_unwritable("the part", "/t/.tmp"):
        raise duckdb.IOException(f'IO Error: Cannot open file "/t/.tmp": {os.strerror(code)}')
    if code != FULL:
        with pytest.raises(kind, match=re.escape(remedy)), naming_unreadable(["/t/part"]):
            raise duckdb.IOException(f'IO Error: Cannot open file "/t/part": {os.strerror(code)}')


def test_a_file_that_is_refused_is_not_damaged() -> None:
    assert isinstance(unreadable("p", refused(PERMISSION)), InvalidInput)
    assert isinstance(unreadable("p", OSError("Detail: [errno 24] Too many open files")), StoreUnavailable)
    for damage in (
        refused(errno.EIO),
        FileNotFoundError("p"),
        pa.ArrowInvalid("no magic bytes"),
        OSError("unexpected end"),
    ):
        assert isinstance(unreadable("p", damage), Corrupt)
    with pytest.raises(Corrupt), naming_unreadable(["/t/part"]):
        raise duckdb.IOException('IO Error: Cannot open file "/t/part": No such file or directory')
    assert isinstance(trouble(None, "x", "x"), StoreUnavailable)


def test_what_spark_says_of_a_file_is_understood() -> None:
    trace = "[STREAM_FAILED] Query failed\n: {}\n\tat java.base/java.io.FileOutputStream.open0(Native Method)"
    denied = failure_in(trace.format("java.io.FileNotFoundException: /c/offsets/.0.tmp (Permission denied)"), "ingest")
    assert isinstance(denied, InvalidInput)
    assert "the ingest query failed: java.io.FileNotFoundException: /c/offsets/.0.tmp (Permission denied)" in str(
        denied
    )
    full = failure_in(trace.format("java.io.IOException: No space left on device"), "ingest")
    assert isinstance(full, StoreUnavailable) and "for the checkpoint of a query" in str(full)
    assert isinstance(failure_in(trace.format("java.io.IOException: something else"), "ingest"), Unexpected)
    said = "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a.csv."
    assert "a.csv.; is it whole, and do its columns have" in str(failure_in(trace.format(said), "ingest"))


# -- what a run shows ---------------------------------------------------------------------------------------------------


def committed(table: str = "t") -> events.BatchCommitted:
    return events.BatchCommitted(
        table=table, version=1, rows=1, bytes=1, parts=1, quarantined=0, seconds=0.1, commit_seconds=0.1, attempts=1
    )


def settled() -> events.Settled:
    return events.Settled(table="t", version=2, change_parts=1, rows=1, rows_marked_dead=0, conflicts=0, seconds=0.1)


def test_the_last_error_goes_away_when_what_failed_succeeds() -> None:
    progress = Progress("t")
    progress.failed("ingest", "no broker")
    progress.failed("maintain", "no store")
    assert progress.figures().last_error == "no store"
    progress(settled())
    assert progress.figures().last_error == "no broker", "a settle says nothing of ingest"
    progress(committed("another"))
    assert progress.figures().last_error == "no broker"
    progress(committed())
    assert progress.figures().last_error is None
    progress.failed("ingest", "no broker")
    progress(events.QueryChanged(table="t", role="ingest", state="waiting", error="Retry", reason="no broker"))
    assert progress.figures().last_error == "no broker"
    progress(events.QueryChanged(table="t", role="ingest", state="running"))
    assert progress.figures().last_error is None


def test_a_stop_merges_what_is_due_so_that_nobody_calls_the_table_ill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    table = lakebed.create(
        tmp_path / "t", pa.schema([("id", pa.int64())]), ["id"], properties={"lakebed.read_budget": "2"}
    )
    for batch in range(8):
        table.apply(pa.table({"id": range(batch, 10_000, 1000)}))
        table.settle()

    def checks() -> list[str]:
        return [each.check for each in Observer(table.path, clock=lambda: time.time() + 600).look().findings]

    assert "backlog" in checks()
    compaction = internals_of(table).compaction
    duties = internals_of(table).duties()
    assert not compaction.finish(0), "there is something to merge, and no time for it"
    maintenance = Maintenance(duties)
    assert compaction.finish(60)
    maintenance.stop()
    assert checks() == []


# -- Spark's jars -------------------------------------------------------------------------------------------------------

HALF_FILLED = """Ivy Default Cache set to: {home}/ivy/cache
The jars for the packages stored in: {home}/ivy/jars
org.example#half added as a dependency
\tfound org.example#half;1.0 in local-m2-cache
:: problems summary ::
:::: WARNINGS
\t\t[NOT FOUND  ] org.example#half;1.0!half.jar (1ms)

\t==== local-m2-cache: tried

\t  file:{home}/.m2/repository/org/example/half/1.0/half-1.0.jar

\t\t::              FAILED DOWNLOADS            ::
\t\t:: org.example#half;1.0!half.jar

Exception in thread "main" java.lang.RuntimeException: [download failed: org.example#half;1.0!half.jar]
\tat org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:539)
"""
"""What spark-submit printed for a local repository with a pom and no jar."""


def test_a_half_filled_repository_of_jars_names_the_folders_to_delete(tmp_path: Path) -> None:
    log = HALF_FILLED.format(home=tmp_path)
    repository, cache = tmp_path / ".m2/repository/org/example/half/1.0", tmp_path / "ivy/cache/org.example/half"
    assert "the repository broke off; start again" in str(why_no_jars(log)), "there is nothing to delete"
    repository.mkdir(parents=True)
    cache.mkdir(parents=True)
    told = str(why_no_jars(log))
    assert "it has the description of org.example:half:1.0 and not the jar" in told
    assert f"Delete {repository} and {cache}, and start again" in told


def test_jars_that_no_repository_has_and_other_troubles_are_distinguished() -> None:
    unresolved = "x\n\t\t:: unresolved dependency: a.b#c;1: not found\n"
    assert "can't be downloaded (a.b#c;1: not found): allow access to a Maven" in str(why_no_jars(unresolved))
    assert why_no_jars("Exception: no memory") is None
