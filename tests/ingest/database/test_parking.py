"""A table that is parked in this process alone, since its log could not be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lakebed
from lakebed.coordination.parked import Parked, park, parked_of
from lakebed.errors import StoreUnavailable
from lakebed.ingest.database.member import Member, OpenTable
from lakebed.ingest.database.parking import ParkedTables
from tests.ingest.database.databases import filled
from tests.internals import log_of
from tests.sources.memory_source import COLUMNS, Process
from tests.waiting import wait_until

OURS = Parked(error="no answer", kind="StoreUnavailable", since_ms=1)


@contextmanager
def parked_here(path: Path) -> Iterator[tuple[list[Member], list[int], Any]]:
    """The tables that were resumed; the looks at the log so far; what lets the log be written."""
    lakebed.create(path, COLUMNS)
    process, looks, resumed = Process(str(path), filled("a")), list[int](), list[Member]()
    log = log_of(process.table)
    whole = log.refresh

    def refresh() -> Any:
        looks.append(1)
        return whole()

    tables = ParkedTables(resumed.append, look_seconds=0.01)
    refusing = patch.object(log, "commit", side_effect=StoreUnavailable("no answer"))
    with patch.object(log, "refresh", refresh):
        refusing.start()
        tables.watch(Member("a", OpenTable("a", str(path), log, process.ingest), parked=OURS), in_log=False)
        wait_until(lambda: len(looks) > 3)
        try:
            yield resumed, looks, refusing.stop
        finally:
            tables.close()


def test_it_is_read_again_when_its_log_can_be_written(tmp_path: Path) -> None:
    with parked_here(tmp_path / "a") as (resumed, _, answers):
        answers()
        wait_until(lambda: len(resumed) == 1)
        assert parked_of(log_of(lakebed.open(tmp_path / "a")).refresh()) is None


def test_one_that_another_process_has_parked_meanwhile_stays_parked(tmp_path: Path) -> None:
    with parked_here(tmp_path / "a") as (resumed, looks, answers):
        theirs = Parked(error="gone", kind="DataLoss", since_ms=2)
        park(log_of(lakebed.open(tmp_path / "a")), theirs)
        answers()
        before = len(looks)
        wait_until(lambda: resumed or len(looks) > before + 10)
        assert not resumed and parked_of(log_of(lakebed.open(tmp_path / "a")).refresh()) == theirs
