"""By default most merges of a table on S3 stay on the local disk of the process that merges. Readers elsewhere see the rows."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.planning.admission import budget_elsewhere
from tests.infra.s3 import S3Server
from tests.internals import internals_of

BUDGET = 2
BATCHES = 20


def maintain(table: lakebed.Table, batches: range) -> Counter[bool]:
    """Apply, settle and merge batch by batch; returns how many merges stayed on the local disk, and how many did not."""
    merge_runner = internals_of(table).duties().merge_runner
    stayed = Counter[bool]()
    for number in batches:
        table.apply(pa.table({"id": [number, 1000], "v": [f"v{number}"] * 2}))
        table.settle()
        stayed.update(result.local for result in merge_runner.run_until_idle() if result.parts_in)
    merge_runner.close()
    return stayed


def rows(table: lakebed.Table) -> dict[int, str]:
    return {row["id"]: row["v"] for row in table.to_arrow().to_pylist()}


@pytest.mark.long
def test_readers_here_and_elsewhere_see_the_same_rows_and_a_lost_disk_loses_none(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "here"))
    root = f"s3://{s3.create_bucket()}/orders"
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    table = lakebed.create(root, schema, keys=["id"], properties={"lakebed.read_budget": str(BUDGET)})
    assert table.status().volatile.startswith("on: lakebed.volatile is auto, the table is in an object store")
    stayed = maintain(table, range(BATCHES))
    assert stayed[True] > stayed[False] > 0
    expected = {number: f"v{number}" for number in range(BATCHES)} | {1000: f"v{BATCHES - 1}"}
    assert table.status().depth <= budget_elsewhere(BUDGET)
    assert rows(lakebed.open(root)) == expected
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert rows(lakebed.open(root)) == expected

    shutil.rmtree(tmp_path / "here")
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "here"))
    again = lakebed.open(root)
    maintain(again, range(BATCHES, 2 * BATCHES))
    expected |= {number: f"v{number}" for number in range(BATCHES, 2 * BATCHES)} | {1000: f"v{2 * BATCHES - 1}"}
    assert rows(again) == expected
    assert not again.doctor(deep=True).findings
