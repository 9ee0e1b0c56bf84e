"""On an object store a settle costs what its batch costs: the keys of the base are read once a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakebed
from benchmarks.s3_settle import Cost, Meter, fill
from benchmarks.workload import DELETES, Workload
from tests.infra.s3 import S3Server

ROWS, PART_ROWS, CHANGES = 400_000, 50_000, 2_000


def apply_and_settle(orders: lakebed.Table, work: Workload) -> tuple[Cost, Cost]:
    with Meter(orders) as applying:
        orders.apply(work.batch(), apply_as_deletes=DELETES)
    with Meter(orders) as settling:
        orders.settle()
    return applying.cost, settling.cost


def test_a_settle_reads_what_its_batch_needs(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "here"))
    work = Workload(ROWS, CHANGES)
    path = f"s3://{s3.create_bucket()}/orders"
    fill(path, work, cache=str(tmp_path / "another machine"), part_rows=PART_ROWS)
    orders = lakebed.open(path)
    base_bytes = sum(orders.inspect.parts()["bytes"].to_pylist())
    _, first = apply_and_settle(orders, work)
    assert base_bytes / 20 < first.data.total.bytes_read <= base_bytes, "the keys of the base, once"
    for _ in range(4):
        applied, settled = apply_and_settle(orders, work)
        # The change part is in this process's memory; what is left are deletion vectors, a few bits a change.
        assert settled.data.total.bytes_read <= applied.data.total.bytes_written
        assert settled.data.total.requests <= 3
        # The commit, a look before and after it; a checkpoint now and then.
        assert settled.log.total.requests <= 6


def test_a_process_finds_the_index_that_the_one_before_it_kept(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path))
    work = Workload(ROWS, CHANGES)
    path = f"s3://{s3.create_bucket()}/orders"
    fill(path, work, cache=str(tmp_path), part_rows=PART_ROWS)
    orders = lakebed.open(path)
    applied, settled = apply_and_settle(orders, work)
    assert settled.data.total.bytes_read <= applied.data.total.bytes_written
