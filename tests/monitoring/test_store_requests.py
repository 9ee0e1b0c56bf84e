"""Requests to an object store: what is counted is what went over the wire."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.decode.decoder import Decoded
from lakebed.ingest.batch_writer import WriteTask
from lakebed.monitoring.metrics import Metrics
from lakebed.parts.changes import WriteSpec
from lakebed.parts.quarantine import QUARANTINE_SCHEMA
from lakebed.telemetry import report_requests
from tests.infra.fault_proxy import Fault, FaultProxy
from tests.infra.s3 import S3Server
from tests.monitoring.requests_of_tasks import BATCHES
from tests.monitoring.test_truth import SCHEMA, Read, batch
from tests.waiting import ran

pytestmark = pytest.mark.usefixtures("own_cache")


def test_every_request_is_counted_with_its_bytes_and_its_answer(flaky_s3: FaultProxy, s3_server: S3Server) -> None:
    bucket = s3_server.create_bucket()
    table = lakebed.create(f"s3://{bucket}/t", SCHEMA, keys=["id"], properties={"lakebed.read_budget": "2"})
    metrics = Metrics()
    end = events.listen(metrics)
    flaky_s3.traffic(reset=True)
    for number in range(6):
        table.apply(batch(number))
        table.settle()
    table.maintenance.compact()
    flaky_s3.fail_next(Fault.AFTER, 2, method="GET")
    flaky_s3.fail_next(Fault.RESET, 1, method="PUT")
    table.apply(batch(6))
    end()
    wire, read = flaky_s3.traffic(), Read(metrics, table.path)
    requests = {
        (sample.labels["operation"], sample.labels["result"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "lakebed_store_requests_total"
    }
    assert sum(requests.values()) == wire.requests.total(), wire.recent
    assert sum(count for (_, result), count in requests.items() if result in ("no_answer", "failed")) == 3
    assert requests["read", "missing"] > 0, "a log is asked for the version after the newest"
    sent = read.by("lakebed_store_written_bytes_total", "operation")
    assert sum(sent.values()) == pytest.approx(wire.bytes_sent["PUT"], rel=0.1)
    parts = sum(read.by("lakebed_written_bytes_total", "writer").values())
    assert parts <= sent["put"] <= parts * 1.05, "parts, vectors with their frames, and no log but for checkpoints"


def test_what_a_task_asks_of_the_store_is_counted_where_the_metrics_are(s3: S3Server) -> None:
    table = lakebed.create(f"s3://{s3.create_bucket()}/t", SCHEMA, keys=["id"])
    decoded = [Decoded(changes=batch(1), quarantined=QUARANTINE_SCHEMA.empty_table())]
    task = WriteTask(WriteSpec(schema=SCHEMA, keys=("id",)), table.path, lambda _: iter(decoded))
    here, elsewhere = Metrics(), Metrics()
    end = events.listen(here)
    [told] = [pickle.loads(answer["answer"][0].as_py()).requests for answer in task(iter([]))]
    report_requests(told)
    end()
    end = events.listen(elsewhere)
    report_requests(told.replace('"process": "', '"process": "another '))
    end()
    for metrics in (here, elsewhere):
        assert Read(metrics, table.path)("lakebed_store_requests_total", operation="put", result="ok") == 1


@pytest.mark.long
def test_requests_of_spark_workers_are_not_lost(flaky_s3: FaultProxy, s3_server: S3Server) -> None:
    path = f"s3://{s3_server.create_bucket()}/t"
    flaky_s3.traffic(reset=True)
    command = [sys.executable, "-m", "tests.monitoring.requests_of_tasks", path]
    done = ran(command)
    assert done.returncode == 0, done.stderr
    counted, puts = map(int, done.stdout.split()[-2:])
    assert puts >= BATCHES + 1, "of each task that wrote a part, and of the one that merged"
    assert counted == flaky_s3.traffic().requests.total()


def test_nothing_is_listened_to_once_a_task_has_ended(tmp_path: Path) -> None:
    before = events.listeners()
    task = WriteTask(WriteSpec(schema=pa.schema([("id", pa.int64())])), str(tmp_path), lambda _: iter([]))
    list(task(iter([])))
    assert events.listeners() == before
