"""How often a table commits, and what the requests of a day cost."""

from __future__ import annotations

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.pipeline.database.check import (
    GETS_PER_BATCH,
    PUTS_PER_BATCH,
    PUTS_PER_PUBLICATION,
    batches_a_day,
    bill,
    publications_a_day,
)
from tests.infra.s3 import S3Server

DAY = 86_400


@pytest.mark.parametrize(
    ("records", "batches"),
    [
        (0, 0),
        (1, 1),
        (24, 24),  # each is a batch, since the next one comes later than it may wait
        (DAY, DAY / 11),  # one a second: the oldest waits for ten seconds
        (100 * DAY, DAY / 10),  # a thousand are there when the first is ten seconds old
        (1_000 * DAY, DAY),  # a thousand a second, so many as a batch is worth its cost for
        (1_000_000 * DAY, DAY / 0.75),  # never faster than the pace of batches
    ],
)
def test_a_table_commits_as_often_as_its_pace_and_its_records_say(records: int, batches: float) -> None:
    assert batches_a_day(records, 10, 0.75) == pytest.approx(batches, rel=0.003)


def test_a_shorter_age_costs_more_and_never_less() -> None:
    for records in (1, 1_000, DAY, 50 * DAY, 10**9):
        paces = [batches_a_day(records, pace, 0.75) for pace in (0, 1, 10, 60, 3_600)]
        assert paces == sorted(paces, reverse=True)
        assert all(pace <= records for pace in paces)


def test_the_bill_adds_up() -> None:
    cost = bill([100, 0], puts_price=0.005, gets_price=0.0004)
    assert (cost.commits, cost.puts, cost.gets) == (200, 300, 400 + 2 * 1_440 - 100)
    assert cost.dollars == pytest.approx(0.3 * 0.005 + 3.18 * 0.0004)
    assert bill([], 1, 1).dollars == 0


def test_icebergs_metadata_is_published_at_its_own_pace_and_only_where_it_is_on() -> None:
    on = {"lakebed.iceberg": "on"}
    assert publications_a_day(1e9, {}) == 0
    assert publications_a_day(1e9, on) == DAY / 10
    assert publications_a_day(1e9, on | {"lakebed.iceberg_seconds": "60"}) == DAY / 60
    assert publications_a_day(7, on) == 7
    plain, more = bill([100], 0.005, 0.0004), bill([100], 0.005, 0.0004, publications=100)
    assert more.puts - plain.puts == 100 * PUTS_PER_PUBLICATION
    assert more.dollars - plain.dollars == pytest.approx(more.iceberg_dollars) == pytest.approx(0.005)


@pytest.mark.slow
def test_a_batch_and_its_settle_take_the_requests_that_the_bill_counts(s3: S3Server) -> None:
    table = lakebed.create(
        f"s3://{s3.create_bucket()}/t", pa.schema([("id", pa.int64()), ("n", pa.int64())]), keys=["id"]
    )
    seen: list[str] = []

    def count(event: object) -> None:
        if isinstance(event, events.StoreRequested):
            seen.append(event.operation)

    for number in range(3):  # the first one warms caches
        seen.clear()
        stop = events.listen(count)
        table.apply(pa.table({"id": [1, 2], "n": [number, number]}))
        table.settle()
        stop()
    puts = sum(1 for one in seen if one.startswith("put"))
    assert (puts, len(seen) - puts) == (PUTS_PER_BATCH, GETS_PER_BATCH), seen
