"""Replicas and writers that are killed in turn share a table safely; ``make soak-replicas`` is the same for longer."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.manifest.claims import claims_of
from tests.end_to_end.replicas import Member, Volatile, ended, fight
from tests.infra.fault_proxy import FaultProxy
from tests.infra.s3 import S3Server
from tests.internals import log_of
from tests.waiting import wait_until


@pytest.mark.parametrize("volatile", ["off", "on"])
def test_replicas_and_writers_that_are_killed_in_turn_lose_nothing_and_leave_nothing(
    volatile: Volatile, flaky_s3: FaultProxy, s3_server: S3Server, tmp_path: Path
) -> None:
    outcome = fight(s3_server, flaky_s3, tmp_path, duration_seconds=20, kill_seconds=5, seed=3, volatile=volatile)
    print(outcome)
    assert outcome.operations["CLAIM"], "nobody merged anything"


def test_hosts_that_build_what_the_other_one_merges_read_the_same_rows_while_they_are_killed_in_turn(
    flaky_s3: FaultProxy, s3_server: S3Server, tmp_path: Path
) -> None:
    roles = ("replica", "reader", "reader")
    outcome = fight(
        s3_server, flaky_s3, tmp_path, duration_seconds=40, kill_seconds=8, seed=7, volatile="on", roles=roles
    )
    print(outcome)
    assert outcome.reads_of_replicated_parts, "nobody read what it had built from a claim"


def test_the_command_shares_a_table_with_others_as_well(
    flaky_s3: FaultProxy, s3_server: S3Server, tmp_path: Path
) -> None:
    roles = ("maintain", "maintain", "replica")
    outcome = fight(
        s3_server, flaky_s3, tmp_path, duration_seconds=40, kill_seconds=12, seed=5, volatile="changing", roles=roles
    )
    print(outcome)
    assert outcome.operations["CLAIM"], "nobody merged anything"


@pytest.mark.slow
@pytest.mark.parametrize("role", ["replica", "maintain"])
def test_a_replica_that_is_asked_to_stop_while_it_merges_gives_its_claim_back(role: str, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
    path = str(tmp_path / "table")
    table = lakebed.create(path, schema, keys=["id"], properties={"lakebed.read_budget": "1"})
    rows, chance = 500_000, random.Random(1)
    for number in range(3):
        ids = [3 * row + number for row in range(rows)]
        table.apply(pa.table({"id": ids, "note": [chance.randbytes(8).hex() for _ in ids]}, schema))
        table.settle()
    replica = Member("replica", role, path, tmp_path, "cache", lease=600)
    with ended(replica):
        replica.start()
        wait_until(lambda: bool(claims_of(log_of(table).refresh().domains)), "the replica merged nothing")
        replica.end()
    assert not claims_of(log_of(table).refresh().domains)
    assert table.inspect.timeline(1)["operation"][0].as_py() in ("ABANDON CLAIM", "MERGE")  # a short merge is completed
    assert table.to_arrow(["id"]).num_rows == 3 * rows
