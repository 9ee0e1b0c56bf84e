"""The probe lets good stores pass, quickly, and refuses those where two writers can both win."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakebed.errors import StoreUnavailable, UnsafeStore
from lakebed.log.stores import PROBE_FOLDER, MemoryLogStore, open_store, probe
from tests.infra.fault_proxy import FaultProxy, FaultRates
from tests.infra.s3 import S3Server, aws_environment
from tests.log.unsafe_s3 import Behaviour, UnsafeS3


def test_memory_and_local_disk_pass_and_are_left_clean(tmp_path: Path) -> None:
    for store in (MemoryLogStore(), open_store(tmp_path)):
        probe(store)
        asked = sum(count.requests for count in store.counters().operations.values())
        assert asked <= 50, "it is meant to cost a moment"
        assert store.list_from(PROBE_FOLDER, "") == []


def test_a_real_s3_server_passes_and_is_left_clean(s3: S3Server) -> None:
    store = open_store(f"s3://{s3.create_bucket()}/t")
    for _ in range(5):
        probe(store)
    assert store.list_from(PROBE_FOLDER, "") == []


def test_a_server_that_loses_answers_is_not_called_unsafe(s3: S3Server, flaky_s3: FaultProxy) -> None:
    store = open_store(f"s3://{s3.create_bucket()}/t")
    flaky_s3.set_rates(FaultRates(before=0.05, reset=0.05, after=0.1), seed=3)
    passed = 0
    for _ in range(10):
        try:
            probe(store)
            passed += 1
        except StoreUnavailable:
            pass
    assert passed > 0


def test_a_server_that_ignores_the_condition_is_refused_by_name() -> None:
    with UnsafeS3(Behaviour.IGNORES) as server, aws_environment(server.endpoint):
        with pytest.raises(UnsafeStore, match=r"s3://bucket/t .*ignores If-None-Match"):
            probe(open_store("s3://bucket/t"))
        assert server.objects == {}


@pytest.mark.parametrize("gap_seconds", [0.001, 0.02])
def test_a_server_that_checks_and_then_writes_is_refused_by_name(gap_seconds: float) -> None:
    with UnsafeS3(Behaviour.CHECKS_THEN_WRITES, gap_seconds) as server, aws_environment(server.endpoint):
        with pytest.raises(UnsafeStore, match=r"s3://bucket/t.*writers that put one name at once"):
            probe(open_store("s3://bucket/t"))
        assert server.objects == {}


def test_a_server_that_refuses_every_put_is_refused() -> None:
    with (
        UnsafeS3(Behaviour.REFUSES_ALL) as server,
        aws_environment(server.endpoint),
        pytest.raises(UnsafeStore, match="refused as taken"),
    ):
        probe(open_store("s3://bucket/t"))


def test_a_server_that_conflicts_now_and_then_passes() -> None:
    with UnsafeS3(Behaviour.CONFLICTS_ONCE) as server, aws_environment(server.endpoint):
        probe(open_store("s3://bucket/t"))
