"""What readers tell planners of a table on S3, and what that costs in requests."""

from __future__ import annotations

import pyarrow as pa
import pytest

import lakebed
from lakebed.coordination import read_counts
from lakebed.table import internals_of
from tests.infra.fault_proxy import FaultProxy, FaultRates
from tests.infra.s3 import S3Server, aws_environment
from tests.internals import log_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


pytestmark = pytest.mark.usefixtures("own_cache")


def requests(table: lakebed.Table) -> dict[str, int]:
    """Requests to the log's store so far, by kind."""
    return {name: count.requests for name, count in log_of(table).store.counters().operations.items()}


def new_table(s3: S3Server) -> lakebed.Table:
    """Of four parts that wait for a new sort key."""
    table = lakebed.create(
        f"s3://{s3.create_bucket()}/t", SCHEMA, keys=["id"], properties={"lakebed.count_reads": "on"}
    )
    for start in range(0, 40, 10):
        table.apply(pa.table({"id": range(start, start + 10), "v": [0] * 10}, SCHEMA))
        table.settle()
    table.set_sort_key(["v", "id"])
    return table


def test_reads_reach_another_process_by_one_object_and_one_list(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_counts, "_FIRST_SECONDS", 600.0)  # so that all is published at once, at the end
    with aws_environment(s3.endpoint):
        table = new_table(s3)
        before = requests(table)
        for _ in range(5):
            table.to_arrow(where="id = 25")
        internals_of(table).reads.close()
        assert requests(table)["put"] - before.get("put", 0) == 1
        planner = lakebed.open(table.path)
        snapshot = log_of(planner).refresh()
        before = requests(planner)
        for _ in range(3):
            [(path, count)] = internals_of(planner).reads.of(snapshot).items()
        after = requests(planner)
    assert count == 5 and '"id":20' in (snapshot.parts[path].stats or "")
    asked = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    assert asked == {"list_from": 1, "read": 1}


def test_a_store_that_refuses_files_of_reads_troubles_neither_reader_nor_planner(
    flaky_s3: FaultProxy, s3_server: S3Server
) -> None:
    table = new_table(s3_server)
    flaky_s3.set_rates(FaultRates(before=1.0, path_contains="reads"))
    assert len(table.to_arrow(where="id = 25")) == 1
    internals_of(table).reads.close()
    planner = lakebed.open(table.path)
    assert internals_of(planner).reads.of(log_of(planner).refresh()) == {}
    assert sum(flaky_s3.traffic().faults.values()) > 2  # it was asked, both to write and to list
    assert planner.maintenance.compact()
    assert planner.to_arrow().num_rows == 40
