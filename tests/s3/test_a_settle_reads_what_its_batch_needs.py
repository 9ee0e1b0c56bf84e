"""On an object store, a settle's cost is the batch's: the base's key columns are not read again."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakebed
from benchmarks.s3_settle import Meter, fill
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload
from tests.infra.s3 import S3Server

ROWS = 400_000


def test_a_settle_reads_what_its_batch_needs(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path))
    work = Workload(ROWS, changes=2_000)
    path = f"s3://{s3.create_bucket()}/orders"
    fill(lakebed.create(path, SCHEMA, keys=KEYS, sort_key=SORT_KEY), work, part_rows=50_000)
    orders = lakebed.open(path)
    parts = orders.parts().num_rows
    base_bytes = sum(orders.parts()["bytes"].to_pylist())
    for _ in range(4):
        with Meter(orders) as applying:
            orders.apply(work.batch(), apply_as_deletes=DELETES)
        written = applying.cost.data.total.bytes_written
        with Meter(orders) as settling:
            orders.settle()
        read = settling.cost.data.total.bytes_read
        # The change part is in this process's cache; what is left are deletion vectors, a few bits a change.
        assert read <= written, f"{read} bytes read for a batch of {written} bytes"
        assert read < base_bytes / 50
        assert settling.cost.data.total.requests <= parts + 4
        # One look for what is new, one put of the commit, one look after it; a checkpoint now and then.
        assert settling.cost.log.total.requests <= 8


def test_another_process_reads_the_keys_once(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "one"))
    work = Workload(100_000, changes=2_000)
    path = f"s3://{s3.create_bucket()}/orders"
    fill(lakebed.create(path, SCHEMA, keys=KEYS, sort_key=SORT_KEY), work, part_rows=50_000)
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "two"))  # a machine that has no index of this table yet
    orders = lakebed.open(path)
    orders.apply(work.batch(), apply_as_deletes=DELETES)
    orders.settle()
    again = lakebed.open(path)  # and a process that comes after it on the same machine
    again.apply(work.batch(), apply_as_deletes=DELETES)
    with Meter(again) as settling:
        again.settle()
    assert settling.cost.data.total.bytes_read < 300_000
