"""Readers of Iceberg leave out the files that lakebed leaves out, by bounds of columns and by partitions."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.table import internals_of
from tests.iceberg.readers import opened, pyiceberg

DAY = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False), ("region", pa.string()), ("at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip


@pytest.fixture(params=[(), ("region",)], ids=["whole", "partitioned"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> lakebed.Table:
    """Ten batches, each of ten ids, one region and one day."""
    found = lakebed.create(
        tmp_path / "t", SCHEMA, keys=["id", "region"], partition_by=request.param, properties={"lakebed.iceberg": "on"}
    )
    for batch in range(10):
        found.apply(
            [
                {
                    "id": key,
                    "region": f"r{batch}",
                    "at": DAY + datetime.timedelta(days=batch, hours=key % 10),
                }
                for key in range(10 * batch, 10 * batch + 10)
            ]
        )
        found.settle()
    found.maintenance.publish_iceberg()
    return found


@pytest.mark.parametrize(
    ("theirs", "files", "ids"),
    [
        ("id < 10", 1, range(10)),
        ("id >= 95", 1, range(95, 100)),
        ("region = 'r3'", 1, range(30, 40)),
        ("region in ('r1', 'r2')", 2, range(10, 30)),
        ("at >= '2026-01-10T00:00:00+00:00'", 1, range(90, 100)),
        ("region is null", 0, range(0)),
        ("id > 1000", 0, range(0)),
    ],
)
def test_files_are_left_out(table: lakebed.Table, theirs: str, files: int, ids: range) -> None:
    assert len(internals_of(table).log.refresh().parts) == 10
    assert len(list(opened(table).scan(row_filter=theirs).plan_files())) == files
    assert sorted(pyiceberg(table, where=theirs)["id"].to_pylist()) == list(ids)


def test_a_list_of_manifests_says_which_partitions_are_in_each(tmp_path: Path) -> None:
    table = lakebed.create(
        tmp_path / "t", SCHEMA, keys=["id", "region"], partition_by=["region"], properties={"lakebed.iceberg": "on"}
    )
    table.apply([{"id": key, "region": region, "at": DAY} for key, region in enumerate(("west", "east"))])
    table.settle()
    table.maintenance.publish_iceberg()
    # Names of files decide whether both parts are in one manifest.
    said = [each for [each] in opened(table).inspect.manifests()["partition_summaries"].to_pylist()]
    assert min(each["lower_bound"] for each in said) == "east"
    assert max(each["upper_bound"] for each in said) == "west"
    assert not any(each["contains_null"] for each in said)
