"""A fleet's worker and a standalone cluster: large merges are tasks of it, whatever happens to executors, driver and master."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lakebed
from lakebed.coordination.failing import failing_of
from lakebed.log.claims import claims_of
from lakebed.log.commit_kind import CommitKind, kind_of
from tests.infra.spark_cluster import SparkCluster
from tests.infra.spark_start import spark_options
from tests.internals import log_of, storage_of
from tests.waiting import wait_until, whole_lines, work_of

pytestmark = pytest.mark.slow
DRIVER = Path(__file__).with_name("fleet_on_cluster.py")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string()), ("noise", pa.binary(100))])
LARGE, SMALL = 1_000, 10


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster() as cluster:
        yield cluster


def table_with_a_merge_due(root: Path, rows: int, days: int = 1) -> lakebed.Table:
    """Four batches that overlap in each partition, where two may."""
    table = lakebed.create(
        root, SCHEMA, keys=["id", "day"], partition_by=["day"], properties={"lakebed.read_budget": "2"}
    )
    add_batches(table, rows, days)
    return table


def add_batches(table: lakebed.Table, rows: int, days: int = 1) -> None:
    random = np.random.default_rng(1)
    for batch in range(4):
        each = [(row * 4 + batch, str(day), random.bytes(100)) for day in range(days) for row in range(rows)]
        table.apply(pa.table(dict(zip(SCHEMA.names, map(list, zip(*each, strict=True)), strict=True)), SCHEMA))
        table.settle()


def spark_settings(folder: Path, **more: str) -> str:
    """A folder with Spark's own settings, as a user has one."""
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.executor.extraJavaOptions": spark_options(),
        **more,
    }  # fmt: skip
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return str(folder)


class Worker:
    """A running ``lakebed maintain``."""

    def __init__(self, process: subprocess.Popen[bytes], gate: Path, said: Path) -> None:
        self.process, self.gate, self._said = process, gate, said

    def let_go(self) -> None:
        (self.gate / "go").touch()

    def end(self) -> None:
        """Asks it to end, and waits until it has, in order."""
        self.process.send_signal(signal.SIGTERM)
        wait_until(lambda: self.process.poll() is not None, "it did not end", moving=work_of(self.process.pid))
        assert self.process.returncode == 0

    def tasks(self) -> list[tuple[int, int, int]]:
        """Of each task that has merged: its process, its executor's, and which attempt it is."""
        notes = [list(map(int, note.read_text().split())) for note in self.gate.glob("*.merged")]
        return [(process, executor, attempt) for process, executor, attempt in notes]

    def events(self, kind: str, table: lakebed.Table) -> list[dict[str, object]]:
        said = [json.loads(line) for line in whole_lines(self._said.read_text())]
        return [each for each in said if each["event"] == kind and each["table"] == table.path]

    def java(self) -> int:
        """The process of its Spark driver."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        ids = [int(child) for each in children for child in each.read_text().split()]
        [found] = [child for child in ids if b"java" in Path(f"/proc/{child}/cmdline").read_bytes()]
        return found


@contextmanager
def fleet(cluster: SparkCluster, tmp_path: Path) -> Iterator[Worker]:
    gate, said = tmp_path / "gate", tmp_path / "said"
    gate.mkdir()
    environment = {
        **os.environ, **cluster.environment(), "LAKEBED_CACHE_DIR": str(tmp_path / "cache"),
        "SPARK_CONF_DIR": spark_settings(tmp_path / "conf", **{"spark.submit.pyFiles": str(cluster.lakebed_zip())}),
    }  # fmt: skip
    command = [environment["PYSPARK_DRIVER_PYTHON"], str(DRIVER), str(tmp_path / "lake"), str(gate)]
    with said.open("w") as out, (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=errors)
    try:
        yield Worker(process, gate, said)
    finally:
        printed = (tmp_path / "errors").read_text().splitlines()
        print("\n".join([line for line in printed if "commit_ended" not in line][-50:]))
        (gate / "go").touch()
        process.kill()
        process.wait()


def engines(table: lakebed.Table) -> list[str]:
    """Which engine made each merge, by the table's log."""
    log = log_of(table)
    commits = [log.read_commit(version) for version in range(1, log.refresh().version + 1)]
    return [
        str(commit.info.parameters["engine"])
        for commit in commits
        if commit is not None and commit.info is not None and kind_of(commit) is CommitKind.MERGE
    ]


def is_whole(table: lakebed.Table, rows: int, days: int = 1) -> bool:
    ids = table.to_arrow(["id", "day"])
    return len(ids) == len(ids.group_by(["id", "day"]).aggregate([])) == 4 * rows * days


def files_left(table: lakebed.Table) -> set[str]:
    """Parts on disk that no commit mentions."""
    log = "".join(commit.read_text() for commit in Path(table.path, "_delta_log").glob("*.json"))
    return {path for path, _, _ in storage_of(table).list("_lakebed/") if path.endswith(".parquet") and path not in log}


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def merged(table: lakebed.Table, times: int = 1) -> Callable[[], bool]:
    return lambda: len(engines(table)) >= times


@pytest.mark.long
def test_large_merges_are_tasks_of_the_cluster_side_by_side_and_a_small_one_is_not(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    large = table_with_a_merge_due(tmp_path / "lake" / "large", LARGE, days=3)
    small = table_with_a_merge_due(tmp_path / "lake" / "small", SMALL)
    with fleet(cluster, tmp_path) as worker:
        wait_until(merged(small))
        wait_until(lambda: len(worker.tasks()) == 2, "as many as the cluster has cores, while a small one is made")
        at_once = claims_of(log_of(large).refresh().domains).values()
        assert {claim.kind for claim in at_once} == {"merge"}
        assert len(at_once) == 2 and len({source for claim in at_once for source in claim.sources}) == 8
        worker.let_go()
        wait_until(merged(large, 3))
        wait_until(lambda: not claims_of(log_of(large).refresh().domains))
        worker.end()
        assert {each["engine"] for each in worker.events("MergeEnded", large)} == {"spark"}
        assert {each["engine"] for each in worker.events("MergeEnded", small)} == {"process"}
        assert len(worker.tasks()) == 3
        assert worker.process.pid not in {executor for _, executor, _ in worker.tasks()}, "where they worked"
    assert engines(large) == ["spark"] * 3 and set(engines(small)) == {"process"}
    assert is_whole(large, LARGE, days=3) and is_whole(small, SMALL)
    assert not files_left(large)


@pytest.mark.long
def test_a_killed_executor_costs_a_retry_and_a_worker_that_ends_cancels_its_tasks_and_releases_their_claims(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    table = table_with_a_merge_due(tmp_path / "lake" / "t", LARGE)
    with fleet(cluster, tmp_path) as worker:
        wait_until(lambda: len(worker.tasks()) == 1)
        [(_, executor, _)] = worker.tasks()
        [left] = files_left(table)
        os.kill(executor, signal.SIGKILL)
        wait_until(merged(table))
        tried = worker.tasks()
        assert sorted(attempt for *_, attempt in tried) == [0, 1]
        assert not worker.events("MergeFailed", table)
        assert engines(table) == ["spark"] and is_whole(table, LARGE)
        assert not storage_of(table).exists(left) and not files_left(table)

        add_batches(table, LARGE)
        wait_until(lambda: len(worker.tasks()) > len(tried))
        waiting = {process for process, *_ in set(worker.tasks()) - set(tried)}
        worker.end()
        outcomes = [each["outcome"] for each in worker.events("MergeEnded", table)]
        assert set(outcomes[1:]) == {"cancelled"}
        wait_until(lambda: not any(map(is_alive, waiting)), "nobody let them go")
    assert engines(table) == ["spark"] and not claims_of(log_of(table).refresh().domains)
    assert not files_left(table) and is_whole(table, LARGE)


def test_merges_stay_in_the_process_while_no_master_answers(tmp_path: Path) -> None:
    table = table_with_a_merge_due(tmp_path / "lake" / "t", LARGE)
    away = SparkCluster()
    away.master.ports = [1, 1]  # it is not started, and nobody listens there
    with fleet(away, tmp_path) as worker:
        wait_until(merged(table))
        [failed, *_] = worker.events("MergeFailed", table)
        assert f"no Spark master answers at {away.url}" in str(failed["error"]) and not failed["parked"]
        assert "Connection refused" in (tmp_path / "errors").read_text()
    assert set(engines(table)) == {"process"} and is_whole(table, LARGE)
    assert not failing_of(log_of(table).refresh())


@pytest.mark.long
def test_a_session_that_died_is_begun_again_and_no_part_is_parked(cluster: SparkCluster, tmp_path: Path) -> None:
    table = table_with_a_merge_due(tmp_path / "lake" / "t", LARGE)
    with fleet(cluster, tmp_path) as worker:
        wait_until(lambda: len(worker.tasks()) == 1)
        os.kill(worker.java(), signal.SIGKILL)
        wait_until(merged(table))
        assert engines(table) == ["process"]
        assert [each["parked"] for each in worker.events("MergeFailed", table)] == [False]
        worker.let_go()
        add_batches(table, LARGE)
        wait_until(lambda: "spark" in engines(table))
    assert not failing_of(log_of(table).refresh()) and is_whole(table, LARGE)
