"""What failed starts again as long as the cause may pass, and everybody is told meanwhile."""

from __future__ import annotations

import logging
import threading
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

import lakebed
from lakebed import errors, events
from lakebed.compaction.scheduler import ScheduledJob
from lakebed.compaction.table_maintainer import Chore, Pools, TableDuties, TableMaintainer
from lakebed.errors import (
    Contention,
    Corrupt,
    DataLoss,
    InvalidInput,
    LakebedError,
    MissingPrerequisite,
    Retry,
    Unexpected,
)
from lakebed.events import QueryChanged
from lakebed.failures import (
    AGAIN_SECONDS,
    PAUSE_SECONDS_MAX,
    UNKNOWN_FAILURES_MAX,
    Health,
    Restarts,
    encode,
    failure_in,
    spark_job,
    unwell_here,
)
from lakebed.log.stores import LocalLogStore
from lakebed.log.table_log import TableLog
from lakebed.monitoring.metrics import Metrics
from lakebed.pipeline.run import has_worked
from lakebed.table import internals_of
from tests.internals import log_of, table_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


@pytest.mark.parametrize("error", [Retry("x"), errors.StoreUnavailable("x"), Contention("x")])
def test_what_passes_is_tried_again_without_end_later_each_time(error: LakebedError) -> None:
    restarts = Restarts()
    pauses = [restarts.pause_seconds(error, made_progress=False) for _ in range(3000)]
    assert pauses[:6] == [1, 2, 4, 8, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX]
    assert PAUSE_SECONDS_MAX <= 10, "after an outage nobody waits longer"
    assert set(pauses[4:]) == {PAUSE_SECONDS_MAX}
    assert restarts.pause_seconds(error, made_progress=True) == 1


def test_what_nobody_knows_is_tried_again_a_bounded_number_of_times_in_a_row() -> None:
    restarts = Restarts()
    assert restarts.pause_seconds(Unexpected("x"), made_progress=False) is None, "it could not even be started"
    restarts.has_started = True
    for _ in range(3):
        tries = [
            restarts.pause_seconds(Unexpected("x"), made_progress=number == 0) for number in range(UNKNOWN_FAILURES_MAX)
        ]
        assert None not in tries
    assert restarts.pause_seconds(Unexpected("x"), made_progress=False) is None


@pytest.mark.parametrize("kind", [Corrupt, InvalidInput, DataLoss, MissingPrerequisite, errors.QuarantineRefused])
def test_what_never_passes_is_not_tried_again(kind: type[LakebedError]) -> None:
    assert Restarts().pause_seconds(kind("x"), made_progress=True) is None


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache",
        "java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back after 60000 ms",
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [CANNOT_OPEN_SOCKET] Can not open socket: [timed out].",
        "Caused by: java.net.SocketTimeoutException: Accept timed out\n\tat x",
        "java.util.concurrent.TimeoutException: Futures timed out after [120 seconds]",
        "ScheduledJob aborted due to stage failure: ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
    ],
)
def test_what_spark_says_when_something_was_slow_or_lost_passes(text: str) -> None:
    error = failure_in(text, "maintain")
    assert isinstance(error, Retry) and "the maintain query failed: " in str(error)
    assert Restarts().pause_seconds(error, made_progress=False) == 1


S3_FULL = (
    "Writing Object on lake/checkpoint/offsets/.118.61581e16.tmp: software.amazon.awssdk.services.s3.model.S3Exception: no room "
    "(Service: S3, Status Code: 507, Request ID: null) (SDK Attempt Count: 1):XMinioStorageFull: no room"
)
S3_AWAY = (
    "org.apache.hadoop.fs.s3a.AWSClientIOException: getFileStatus on s3a://lake/checkpoint/offsets/7: "
    "software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request: Connect to 127.0.0.1:9000 failed"
)


@pytest.mark.parametrize(
    "text, kind",
    [
        (S3_FULL, errors.StoreUnavailable),
        (S3_FULL.replace("507", "503"), errors.StoreUnavailable),
        (S3_AWAY, errors.StoreUnavailable),
        ("s3a://lake: ConnectTimeoutException: connect timed out", errors.StoreUnavailable),
        (S3_FULL.replace("507", "403"), Unexpected),
        ("jdbc:postgresql: ConnectTimeoutException: connect timed out", Unexpected),
    ],
)
def test_a_checkpoint_in_a_store_that_does_not_answer_is_tried_again_without_end(
    text: str, kind: type[LakebedError]
) -> None:
    assert type(failure_in(f"{text}\n\tat org.apache.hadoop.fs.s3a.Invoker.retry", "ingest")) is kind


ABORTED = "An error occurred while calling o395.getResult.\n: org.apache.spark.SparkException: Job aborted"


@pytest.mark.parametrize(
    "cause, kind, said",
    [
        (
            "Caused by: java.io.IOException: Server error accessing s3://b/t/_lakebed/1.parquet, request failed with: SlowDown "
            "(Service: S3, Status Code: 503, Request ID: null)",
            errors.StoreUnavailable,
            "a job of Spark failed: the object store did not answer: java.io.IOException: Server error accessing s3://b/t",
        ),
        (
            "org.apache.spark.memory.SparkOutOfMemoryError: [SPILL_OUT_OF_MEMORY] Error: No space left on device",
            errors.StoreUnavailable,
            "No space left on device; free space for Spark's local folders",
        ),
        ("ExecutorLostFailure (executor 1 exited)", Retry, "a job of Spark failed: Spark lost an executor"),
        (encode(Corrupt("the file x is missing")), Corrupt, "the file x is missing"),
    ],
)
def test_a_job_of_spark_fails_with_an_error_of_lakebed_if_the_cause_may_pass(
    cause: str, kind: type[LakebedError], said: str
) -> None:
    with pytest.raises(kind) as caught, spark_job():
        raise RuntimeError(f"{ABORTED}\n{cause}\n\tat org.apache.spark")
    assert type(caught.value) is kind and said in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("cause", ["ZeroDivisionError: division by zero", "java.io.IOException: x (Permission denied)"])
def test_a_job_that_failed_for_another_cause_fails_as_spark_says(cause: str) -> None:
    """It may be the user's own code, whose trace says where."""
    with pytest.raises(RuntimeError, match="Job aborted"), spark_job():
        raise RuntimeError(f"{ABORTED}\n{cause}\n\tat org.apache.spark")


def test_an_error_of_lakebed_goes_before_what_spark_says() -> None:
    text = f"Python worker failed to connect back.\nCorrupt: x\n{encode(Corrupt('the file x is missing'))}"
    assert isinstance(failure_in(text, "maintain"), Corrupt)


class Woken:
    """A scheduler that remembers the job that it was to run last."""

    job: ScheduledJob

    def wake(self, job: ScheduledJob, delay: float = 0.0) -> None:
        self.job = job


def test_planning_and_chores_that_fail_are_warned_of_once_for_each_cause_and_said_to_work_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pools = SimpleNamespace(cycles=Woken(), merges=Woken(), chores=Woken(), leases=Woken())
    answers: list[LakebedError | None] = []

    def ask(**options: object) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    merge_runner = SimpleNamespace(next_plan=ask, depth_over_budget=0, on_wake=None, pause_seconds=lambda: 0.0)
    chores = (Chore(run=ask, seconds=1.0),)
    duties = SimpleNamespace(
        path="lake/orders", log=SimpleNamespace(newest=None), merge_runner=merge_runner, chores=chores
    )
    TableMaintainer(cast("TableDuties", duties), cast("Pools", pools), (1.0, 1.0)).start()
    merge_runner.on_wake()
    caplog.set_level(logging.INFO, "lakebed")
    for what, job in (("planning merges", pools.merges.job), ("a chore", pools.chores.job)):
        caplog.clear()
        answers += [
            Retry("no answer after 1 s"),
            Retry("no answer after 20 s"),
            Retry("refused"),
            None,
            None,
            Retry("refused"),
        ]
        while answers:
            job.run()
        assert [record.getMessage() for record in caplog.records] == [
            f"{what} of lake/orders fails, and is tried again: no answer after 1 s",
            f"{what} of lake/orders fails, and is tried again: refused",
            f"{what} of lake/orders works again",
            f"{what} of lake/orders fails, and is tried again: refused",
        ]


def test_a_query_that_fails_is_seen_in_log_metrics_and_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    metrics = Metrics()
    end = events.listen(metrics)
    labels = {"table": table.path, "role": "maintain"}

    def seen() -> tuple[float | None, list[str]]:
        up = metrics.registry.get_sample_value("lakebed_query_up", labels)
        return up, [f"{finding.severity.value}: {finding.what}" for finding in table.status().findings]

    try:
        health = Health(table.path, "maintain")
        health.runs()
        assert seen() == (1, [])
        health.waits(Retry("no worker"), 4)
        told = "the maintain query of this process failed, and starts again within 4 s: no worker"
        assert seen() == (0, [f"warning: {told}"])
        health.runs()
        assert seen() == (1, [])
        health.failed(Corrupt("it is broken"))
        assert seen() == (0, ["critical: the maintain query of this process has ended: it is broken"])
        count = metrics.registry.get_sample_value
        assert count("lakebed_errors_total", {"table": table.path, "error": "Retry"}) == 1
        assert count("lakebed_errors_total", {"table": table.path, "error": "Corrupt"}) == 1
        health.stopped()
        assert seen() == (None, []) and unwell_here(table.path) == []
    finally:
        end()
    assert [(record.levelno, record.getMessage().split(": ")[-1]) for record in caplog.records] == [
        (logging.WARNING, "no worker"),
        (logging.ERROR, "it is broken"),
    ]


class SilentStore(LocalLogStore):
    """A store that does not answer its next ``left`` requests."""

    left = 0

    def _answer(self) -> None:
        if self.left:
            self.left -= 1
            raise errors.StoreUnavailable("no answer")

    def read(self, name: str) -> bytes:
        self._answer()
        return super().read(name)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._answer()
        return super().put_if_absent(name, data)


def test_maintenance_without_spark_outlives_any_time_in_which_the_store_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("lakebed.failures.PAUSE_SECONDS_MAX", 0.01)
    writer = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    store = SilentStore(writer.path)
    table = table_of(writer.path, TableLog(store, sleep=lambda seconds: None))
    stop = threading.Event()
    waited: list[events.Event] = []
    end = events.listen(lambda event: waited.append(event) if isinstance(event, events.QueryChanged) else None)

    def states() -> list[str]:
        return [event.state for event in waited if isinstance(event, events.QueryChanged)]

    thread = threading.Thread(target=internals_of(table).follow, args=(stop,))
    thread.start()
    try:
        wait_until(lambda: bool(waited))
        store.left = 100
        writer.apply(pa.table({"id": [1], "v": [1]}, SCHEMA))
        wait_until(lambda: not store.left and not log_of(writer).refresh().tail and states()[-1] == "running")
        assert states().count("waiting") > 20 and states()[0] == "running"
    finally:
        stop.set()
        thread.join()
        end()
    assert unwell_here(table.path) == []


def test_a_cause_is_warned_of_once_and_not_at_each_try(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[QueryChanged] = []
    end = events.listen(lambda event: seen.append(event) if isinstance(event, QueryChanged) else None)
    now = [0.0]
    health = Health(str(tmp_path), "ingest", clock=lambda: now[0])
    try:
        for number in range(100):
            health.waits(Retry(f"no answer after {number} s of {uuid.uuid4().hex}, {uuid.uuid4()}"), number)
        for _ in range(100):  # it works now and then
            health.waits(Retry("another cause"), 1)
            health.runs()
        now[0] += AGAIN_SECONDS
        health.waits(Retry("another cause"), 1)
    finally:
        health.stopped()
        end()
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    causes = [text.rsplit(": ", 1)[1][:13] for text in warned]
    assert causes == ["no answer aft", "another cause", "another cause"]
    assert [event.routine for event in seen if event.state == "waiting"].count(False) == 3
    assert [event.routine for event in seen if event.state == "running"].count(False) == 1


def test_a_query_that_is_only_up_has_not_worked() -> None:
    def worked(up_seconds: float, progress: object, is_data_available: bool) -> bool:
        query = SimpleNamespace(lastProgress=progress, status={"isDataAvailable": is_data_available})
        return has_worked(cast("StreamingQuery", query), up_seconds)

    assert not worked(600, None, True), "its batch waits for the store"
    assert not worked(9, None, False) and worked(10, None, False), "it found nothing to read"
    assert worked(0, {"numInputRows": 0}, True)
