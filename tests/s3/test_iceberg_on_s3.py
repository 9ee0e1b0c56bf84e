"""A table in an object store, read by PyIceberg from there."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

import lakebed
from tests.infra.fault_proxy import Fault, FaultProxy
from tests.infra.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def test_pyiceberg_reads_every_publication_from_the_store(s3: S3Server) -> None:
    root = f"s3://{s3.create_bucket()}/lake/t"
    table = lakebed.create(root, SCHEMA, keys=["id"], properties={"lakebed.iceberg": "on"})
    known = {
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
        "s3.region": REGION,
    }
    for first in range(3):
        table.apply([{"id": key, "name": f"{key} at {first}"} for key in range(first, 40, first + 1)])
        table.settle()
        found = lakebed.open(root).maintenance.publish_iceberg()
        assert found.version == table.version and found.metadata.startswith(f"{root}/_lakebed/iceberg/metadata/v")
        rows = StaticTable.from_metadata(found.metadata, properties=known).scan().to_arrow()
        assert sorted(map(str, rows.to_pylist())) == sorted(map(str, table.to_arrow().to_pylist()))
    assert table.doctor().findings == ()


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["/dv-", "/manifest-", "/snap-", ".metadata.json", "/version-hint"])
def test_a_publication_goes_on_if_the_answer_to_a_file_is_lost(
    name: str, flaky_s3: FaultProxy, s3_server: S3Server
) -> None:
    root = f"s3://{s3_server.create_bucket()}/lake/t"
    table = lakebed.create(root, SCHEMA, keys=["id"], properties={"lakebed.iceberg": "on"})
    for first in range(3):
        table.apply([{"id": key, "name": f"{key} at {first}"} for key in range(first, 40, first + 1)])
        table.settle()
        flaky_s3.traffic(reset=True)
        if first:  # the first version has no deletion vectors
            flaky_s3.fail_next(Fault.AFTER, method="PUT", path_contains=name)
        found = lakebed.open(root).maintenance.publish_iceberg()
        assert found.version == table.version
        assert flaky_s3.traffic().faults[Fault.AFTER] == bool(first)
    assert table.doctor().findings == ()
