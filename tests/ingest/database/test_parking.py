"""A table that is parked in this process alone, since its log could not be written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest.mock import patch

import lakebed
from lakebed.coordination.failing import Parked, park, parked_of
from lakebed.errors import StoreUnavailable
from lakebed.ingest.database_member import Member, OpenTable, ParkedTables
from tests.heard import SECONDS_MAX
from tests.ingest.database.databases import filled
from tests.internals import log_of
from tests.sources.memory_source import COLUMNS, Process

OURS = Parked(error="no answer", kind="StoreUnavailable", since_ms=1)


def has_looked(looks: threading.Semaphore, times: int) -> bool:
    """Waits until the log was looked at so many times more."""
    return all(looks.acquire(timeout=SECONDS_MAX) for _ in range(times))


@contextmanager
def parked_here(path: Path) -> Iterator[tuple[SimpleQueue[Member], threading.Semaphore, Any]]:
    """The tables that were resumed; the looks at the log, each of which releases once; what lets the log be written."""
    lakebed.create(path, COLUMNS)
    process, looks, resumed = Process(str(path), filled("a")), threading.Semaphore(0), SimpleQueue[Member]()
    log = log_of(process.table)
    whole = log.refresh

    def refresh() -> Any:
        looks.release()
        return whole()

    tables = ParkedTables(resumed.put, look_seconds=0.01)
    refusing = patch.object(log, "commit", side_effect=StoreUnavailable("no answer"))
    with patch.object(log, "refresh", refresh):
        refusing.start()
        tables.watch(Member("a", OpenTable("a", str(path), log, process.ingest), parked=OURS), in_log=False)
        try:
            assert has_looked(looks, 4)
            yield resumed, looks, refusing.stop
        finally:
            tables.close()


def test_it_is_read_again_when_its_log_can_be_written(tmp_path: Path) -> None:
    with parked_here(tmp_path / "a") as (resumed, _, answers):
        answers()
        assert resumed.get(timeout=SECONDS_MAX).topic == "a"
        assert parked_of(log_of(lakebed.open(tmp_path / "a")).refresh()) is None


def test_one_that_another_process_has_parked_meanwhile_stays_parked(tmp_path: Path) -> None:
    with parked_here(tmp_path / "a") as (resumed, looks, answers):
        theirs = Parked(error="gone", kind="DataLoss", since_ms=2)
        park(log_of(lakebed.open(tmp_path / "a")), theirs)
        answers()
        while looks.acquire(blocking=False):
            pass
        assert has_looked(looks, 11)
        assert resumed.empty() and parked_of(log_of(lakebed.open(tmp_path / "a")).refresh()) == theirs
