"""Replicas and writers that are killed in turn share a table safely; ``make soak-replicas`` is the same for longer."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lakebed
from lakebed.log.claims import claims_of
from tests.end_to_end.replicas import Member, ended, fight
from tests.infra.fault_proxy import FaultProxy
from tests.infra.s3 import S3Server
from tests.internals import log_of
from tests.waiting import wait_until

ROWS = 500_000
"""Of a batch: so many that a merge has not ended when it is asked to."""


@pytest.mark.long
def test_replicas_commands_readers_and_writers_that_are_killed_in_turn_lose_nothing_and_leave_nothing(
    flaky_s3: FaultProxy, s3_server: S3Server, tmp_path: Path
) -> None:
    roles = ("maintain", "replica", "reader")
    outcome = fight(s3_server, flaky_s3, tmp_path, kills=3, kill_seconds=3, seed=7, volatile="on", roles=roles)
    print(outcome)
    assert outcome.operations["CLAIM"], "nobody merged anything"
    assert outcome.reads_of_replicated_parts, "nobody read what it had built from a claim"


@pytest.fixture(scope="module")
def table_with_a_long_merge_due(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy it: three parts that overlap from end to end, of which none may."""
    path = tmp_path_factory.mktemp("long") / "table"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.binary(8))])
    table = lakebed.create(path, schema, keys=["id"], properties={"lakebed.read_budget": "1"})
    chance = np.random.default_rng(1)
    for number in range(3):
        ids = np.arange(number, 3 * ROWS, 3)
        notes = pa.Array.from_buffers(pa.binary(8), ROWS, [None, pa.py_buffer(chance.bytes(8 * ROWS))])
        table.apply(pa.table({"id": ids, "note": notes}, schema))
        table.settle()
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "role", ["replica", *(pytest.param(role, marks=pytest.mark.long) for role in ("maintain", "query"))]
)
def test_a_replica_that_is_asked_to_stop_while_it_merges_gives_its_claim_back(
    role: str, table_with_a_long_merge_due: Path, tmp_path: Path
) -> None:
    path = str(shutil.copytree(table_with_a_long_merge_due, tmp_path / "table"))
    table = lakebed.open(path)
    before = table.version
    replica = Member("replica", role, path, tmp_path, "cache", lease=600)
    with ended(replica):
        replica.start()
        wait_until(lambda: table.version > before, "the replica claimed nothing")
        replica.end()
    assert not claims_of(log_of(table).refresh().domains)
    assert table.inspect.timeline(1)["operation"][0].as_py() in ("ABANDON CLAIM", "MERGE")  # a short merge is completed
    assert table.to_arrow(["id"]).num_rows == 3 * ROWS
