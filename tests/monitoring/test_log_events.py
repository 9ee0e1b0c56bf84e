"""What is told of commits and of claims."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

import lakebed
from lakebed import events
from lakebed.compaction.merge import Merger
from lakebed.log.actions import CommitInfo
from lakebed.log.conflicts import ReadWriteSet
from tests.internals import deletion_vectors_of, log_of, storage_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@contextmanager
def heard() -> Iterator[list[events.Event]]:
    told: list[events.Event] = []
    end = events.listen(told.append)
    yield told
    end()


def new_table(tmp_path: Path) -> lakebed.Table:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    for number in range(2):
        table.apply(pa.table({"id": [number]}, SCHEMA))
    table.settle()
    return table


def merger(table: lakebed.Table, replica: str, late_seconds: float = 0) -> Merger:
    return Merger(
        log_of(table),
        storage_of(table),
        deletion_vectors_of(table),
        replica,
        lambda: time.time() - late_seconds,
        lease_seconds=60,
    )


def claim_changes(told: list[events.Event]) -> list[str]:
    return [event.result for event in told if isinstance(event, events.ClaimChanged)]


def test_a_commit_that_gives_up_says_to_what(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    stale = log_of(table).refresh()
    table.apply(pa.table({"id": [7]}, SCHEMA))
    with heard() as told:
        log_of(table).commit(stale, [], CommitInfo(operation="TRUNCATE", commit_id=""), ReadWriteSet(whole_table=True))
        log_of(table).commit(stale, [], CommitInfo(operation="SETTLE", commit_id=""), ReadWriteSet())
    lost, landed = told
    assert isinstance(lost, events.CommitEnded) and isinstance(landed, events.CommitEnded)
    assert (lost.table, lost.operation, lost.result, lost.conflict) == (table.path, "TRUNCATE", "conflicted", "table")
    assert (landed.result, landed.conflict, landed.version, landed.attempts) == ("committed", "", table.version, 2)


def test_claims_tell_how_they_came_and_went(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    paths = list(log_of(table).refresh().parts)
    gone, here = merger(table, "gone", late_seconds=1000), merger(table, "here")
    with heard() as told:
        gone.claim(paths, 1)
        taken = here.claim(paths, 1)
        assert isinstance(taken, tuple)
        here.abandon(taken[0])
        gone.claim(paths, 1)
        here.tidy()
    assert claim_changes(told) == ["taken", "taken_over", "abandoned", "taken", "expired"]
    assert {event.table for event in told} == {table.path}
