"""Replicas and writers that are killed in turn share a table safely; ``make soak-replicas`` is the same for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.replicas import Volatile, fight
from tests.infra.fault_proxy import FaultProxy
from tests.infra.s3 import S3Server


@pytest.mark.parametrize("volatile", ["off", "on"])
def test_replicas_and_writers_that_are_killed_in_turn_lose_nothing_and_leave_nothing(
    volatile: Volatile, flaky_s3: FaultProxy, s3_server: S3Server, tmp_path: Path
) -> None:
    outcome = fight(s3_server, flaky_s3, tmp_path, duration_seconds=20, kill_seconds=5, seed=3, volatile=volatile)
    print(outcome)
    assert outcome.operations["CLAIM"], "nobody merged anything"


def test_the_command_shares_a_table_with_others_as_well(
    flaky_s3: FaultProxy, s3_server: S3Server, tmp_path: Path
) -> None:
    roles = ("maintain", "maintain", "replica")
    outcome = fight(s3_server, flaky_s3, tmp_path, 40, 12, seed=5, volatile="changing", roles=roles)
    print(outcome)
    assert outcome.operations["CLAIM"], "nobody merged anything"
