"""What tasks take of memory and disk is measured where they run, and told where the metrics are."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.decode.decoder import Decoded
from lakebed.events import Event, TaskMeasured
from lakebed.ingest.batch_writer import WriteTask
from lakebed.monitoring.metrics import Metrics
from lakebed.parts.changes import WriteSpec
from lakebed.parts.quarantine import QUARANTINE_SCHEMA
from lakebed.storage.engine import connect
from lakebed.storage.local_folders import SpillBuckets, process_folder
from lakebed.telemetry import LOOK_SECONDS, measured, report_requests, spilled_bytes
from tests.monitoring.test_truth import SCHEMA, Read, batch


@pytest.fixture
def heard() -> object:
    found: list[TaskMeasured] = []

    def keep(event: Event) -> None:
        if isinstance(event, TaskMeasured):
            found.append(event)

    end = events.listen(keep)
    yield found
    end()


def test_rows_that_are_set_aside_while_a_task_runs_are_seen(heard: list[TaskMeasured]) -> None:
    rows = pa.table({"id": pa.array(range(200_000))})
    with measured("t", "merge"), SpillBuckets(rows.schema, 2) as stretches:
        stretches.add(0, rows)
        stretches.close()
        lying = spilled_bytes(process_folder())
        time.sleep(3 * LOOK_SECONDS)
    assert lying > 100_000
    [one] = heard
    assert (one.table, one.kind, one.spilled_bytes) == ("t", "merge", lying)
    assert one.memory_bytes > 50 << 20
    assert spilled_bytes(process_folder()) == 0


@pytest.mark.long
@pytest.mark.slow
def test_what_duckdb_spills_is_seen(heard: list[TaskMeasured], tmp_path: Path) -> None:
    connection = connect(64 << 20, threads=1)
    with measured("t", "merge"):
        connection.execute(
            "create or replace temp table sorted as select hash(i) h, i from range(12000000) r(i) order by h"
        )
    connection.execute("drop table sorted")
    assert heard[0].spilled_bytes > 1 << 20


def test_a_task_that_fails_is_measured_and_leaves_no_thread(heard: list[TaskMeasured]) -> None:
    before = threading.active_count()
    with pytest.raises(ValueError), measured("t", "write"):
        raise ValueError
    assert len(heard) == 1
    assert threading.active_count() == before


def test_what_a_task_of_another_process_took_comes_with_its_result(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    decoded = [Decoded(changes=batch(1), quarantined=QUARANTINE_SCHEMA.empty_table())]
    task = WriteTask(WriteSpec(schema=SCHEMA, keys=("id",)), table.path, lambda _: iter(decoded))
    [told] = [pickle.loads(answer["answer"][0].as_py()).requests for answer in task(iter([]))]
    metrics = Metrics()
    end = events.listen(metrics)
    report_requests(told)
    report_requests(told.replace('"process": "', '"process": "another '))
    end()
    read = Read(metrics, table.path)
    assert read("lakebed_task_memory_bytes_count", kind="write") == 1, "that of this process was heard when it happened"
    assert (read("lakebed_task_memory_bytes_sum", kind="write") or 0) > 50 << 20
    assert read("lakebed_task_spilled_bytes_count", kind="write") == 1


def test_a_merge_in_this_process_is_a_task_too(tmp_path: Path, heard: list[TaskMeasured]) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties={"lakebed.read_budget": "2"})
    for number in range(4):
        table.apply(batch(number))
        table.settle()
    merges = table.maintenance.compact().merges
    assert [one.kind for one in heard] == ["merge"] * merges
    assert {one.table for one in heard} == {table.path}
