"""What a Spark cluster does for merges: the price of a job, and groups of a recluster side by side.

    python -m benchmarks.cluster [--rounds 3] [--groups 4] [--rows 600000]

A standalone cluster of two workers with a core each, out of the pyspark wheel, on this machine; lakebed reaches it as a wheel.

1. *The price of a job*: the same merge of four sorted runs, in this process and as a task, in turn. The first task on each worker
   is left out, since it starts Python there.
2. *Side by side*: a table of ``--groups`` partitions of ``--rows`` rows each, in four runs that overlap, is copied and
   reclustered, with one merge at a time on the cluster, and with as many as it has cores, in turn. ``at once`` is how many
   claims were in the table's log at a time, at most. On a machine that does other work, two tasks get more of it than one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import lakebed
from benchmarks.workload import SCHEMA, SORT_KEY, Workload, median, table
from lakebed.compaction.compaction import SparkKernel
from lakebed.compaction.merge_values import MergeKernel
from lakebed.log.actions import Domain
from lakebed.log.entries import CLAIM
from lakebed.parts.changes import write_spec_of
from lakebed.sparks.cluster import Cluster
from lakebed.sparks.session import start_session
from lakebed.table import internals_of
from tests.infra.spark_cluster import SparkCluster

RUNS = 4
SIZES = (20_000, 200_000, 1_500_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--rows", type=int, default=600_000, help="of a group")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, SparkCluster() as spark_cluster:
        os.environ |= spark_cluster.environment() | {"LAKEBED_CACHE_DIR": f"{folder}/cache"}
        conf = {
            "spark.submit.pyFiles": str(spark_cluster.lakebed_zip()), "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m", "spark.log.level": "ERROR", "spark.ui.enabled": "false",
        }  # fmt: skip
        session = start_session("benchmark", spark_cluster.url, conf)
        load = os.getloadavg()[0]
        prices = [price(Path(folder, f"price-{rows}"), rows, Cluster.of(session), args.rounds) for rows in SIZES]
        sides = side_by_side(Path(folder, "groups"), session, args)
        session.stop()
    header = ["MB read", "here s", "as a job s", "a job's price s", "price / here"]
    table(f"The price of a job (load before: {load:.1f})", header, prices)
    header = ["merges at a time", "seconds", "ratio", "groups", "MB of a group", "at once"]
    table(f"Groups of a recluster (load after: {os.getloadavg()[0]:.1f})", header, sides)


def price(path: Path, rows: int, cluster: Cluster, rounds: int) -> list[object]:
    """Merge the same four runs here and there, in turn."""
    lake = lakebed.create(path, SCHEMA, sort_key=SORT_KEY, properties={"lakebed.merge": "off"})
    everything = Workload(rows).base()
    for piece in np.array_split(np.random.default_rng(1).permutation(rows), RUNS):
        lake.apply(everything.take(pa.array(piece)))
    inside = internals_of(lake)
    kernels: dict[str, MergeKernel] = {
        "here": inside.compaction.local_kernel(),
        "there": SparkKernel(cluster, lake.path, inside.log.refresh),
    }
    for _ in range(2):
        merge(lake, kernels["there"])
    seconds: dict[str, list[float]] = {"here": [], "there": []}
    for _ in range(rounds):
        for name, kernel in kernels.items():
            seconds[name].append(merge(lake, kernel))
    size = sum(part.bytes for part in inside.log.refresh().parts.values())
    here, there = median(seconds["here"]), median(seconds["there"])
    return [size / 1e6, here, there, there - here, (there - here) / here]


def merge(lake: lakebed.Table, kernel: MergeKernel) -> float:
    """Seconds that the kernel takes for all parts; what it wrote is deleted, and nothing is committed."""
    inside = internals_of(lake)
    merger, snapshot = inside.compaction.merger(), inside.log.refresh()
    claimed = merger.claim(sorted(snapshot.parts), 1)
    assert isinstance(claimed, tuple)
    claim, snapshot = claimed
    sources = merger.kernel_sources(merger.sources(claim, snapshot), snapshot)
    started = time.perf_counter()
    merged = kernel.merge(sources, write_spec_of(snapshot), inside.storage, lambda rows: None)
    seconds = time.perf_counter() - started
    for part in merged:
        inside.storage.delete(part.path)
    merger.abandon(claim)
    return seconds


def side_by_side(path: Path, session: SparkSession, args: argparse.Namespace) -> list[list[object]]:
    """Recluster copies of a table, with one merge at a time and with two."""
    schema = SCHEMA.append(pa.field("day", pa.string()))
    properties = {"lakebed.merge": "off", "lakebed.recluster_depth": "1"}
    lake = lakebed.create(path, schema, sort_key=SORT_KEY, partition_by=["day"], properties=properties)
    everything = Workload(args.rows).base()
    for piece in np.array_split(np.random.default_rng(1).permutation(args.rows), RUNS):
        rows = everything.take(pa.array(piece))
        days = [rows.append_column("day", pa.array([str(day)] * len(rows))) for day in range(args.groups)]
        lake.apply(pa.concat_tables(days))
    size = sum(part.bytes for part in internals_of(lake).log.refresh().parts.values()) / args.groups
    seconds: dict[int, list[float]] = {1: [], 2: []}
    most = {1: 0, 2: 0}
    for _ in range(args.rounds):
        for merges in seconds:
            shutil.copytree(path, copy := path.with_name("copy"))
            passed, at_once = recluster(lakebed.open(copy), session, merges)
            seconds[merges].append(passed)
            most[merges] = max(most[merges], at_once)
            shutil.rmtree(copy)
    took = {merges: median(found) for merges, found in seconds.items()}
    return [[merges, took[merges], took[1] / took[merges], args.groups, size / 1e6, most[merges]] for merges in took]


def recluster(lake: lakebed.Table, session: SparkSession, merges: int) -> tuple[float, int]:
    """Seconds, and how many claims were in the log at a time."""
    inside = internals_of(lake)
    first = inside.log.refresh().version
    inside.compaction.cluster = Cluster(lambda: session, bytes_min=0, merges_max=merges, is_ours=False)
    started = time.perf_counter()
    result = lake.maintenance.recluster()
    seconds = time.perf_counter() - started
    assert result.plans >= 4, result
    claims: set[str] = set()
    most = 0
    for version in range(first + 1, result.version + 1):
        commit = inside.log.read_commit(version)
        assert commit is not None
        for entry in commit.actions:
            if isinstance(entry, Domain) and entry.domain.startswith(CLAIM):
                (claims.discard if entry.removed else claims.add)(entry.domain)
        most = max(most, len(claims))
    return seconds, most


if __name__ == "__main__":
    main()
