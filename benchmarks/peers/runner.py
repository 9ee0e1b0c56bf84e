"""Runs one system, in its own environment, started by the driver: ``python -m benchmarks.peers.runner TASK.json``.

1. A session with the system's settings and those that all have in common; the table with its first rows.
2. For each batch: apply it, timed; the maintenance that the writer must wait for, timed; the same batch appended as plain
   Parquet, timed.
3. After the warm-up, after every so many batches and at the end: the queries, in turn on the table and on the driver's file of
   the same rows as plain sorted Parquet. Each pair of answers must be equal.
4. The final rows as Parquet, which the driver compares with its oracle.

It speaks to the driver in JSON lines over two pipes: before each step it says what comes and waits until the driver has
looked at the clocks (CPU, bytes). The first steps of a run, and the first queries, warm up and are not counted.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from benchmarks.peers.peer import Peer, Place

_READ_WARMUP = 3
_CHANGES = StructType(
    [
        StructField("pk", LongType()), StructField("ts", TimestampType()), StructField("region", StringType()),
        StructField("status", StringType()), StructField("amount", DoubleType()), StructField("note", StringType()),
        StructField("seq", LongType()), StructField("op", StringType()),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """What the driver asks for; paths are absolute."""

    module: str
    name: str
    variant: str
    place: Place
    memory: str
    initial: list[str]
    batches: list[str]
    warmup: int
    checks: dict[int, str]
    """The number of batches after which to read, and the same rows as plain sorted Parquet."""
    queries: dict[str, list[str]]
    """Texts with ``{table}``, by name; those of one name are taken in turn."""
    reads: int
    plain: str
    final: str


@dataclass(slots=True)
class Driver:
    """The other end of the pipes."""

    events: Any
    answers: Any

    def tell(self, **event: object) -> None:
        self.events.write(json.dumps(event) + "\n")
        self.events.flush()

    @contextmanager
    def step(self, kind: str, number: int) -> Iterator[None]:
        """A step, between two looks of the driver; its seconds are told afterwards."""
        self._mark(kind, number)
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        self._mark("between", number)
        self.tell(event="step", kind=kind, number=number, seconds=seconds)

    def _mark(self, kind: str, number: int) -> None:
        self.tell(event="mark", kind=kind, number=number)
        self.await_answer()

    def await_answer(self) -> None:
        """Raises EOFError if the driver is gone."""
        if not self.answers.readline():
            raise EOFError("the driver is gone")


def run(task: Task, driver: Driver) -> None:
    kind = getattr(importlib.import_module(f"benchmarks.peers.{task.module}"), task.name)
    spark = session(task.memory, task.place.local, dict(kind.session(task.place)))
    peer: Peer = kind(spark, task.place, task.variant)
    initial = spark.read.schema(_CHANGES).parquet(*task.initial)
    with driver.step("create", 0):
        peer.create(initial)
    driver.tell(event="ready", settings=dict(peer.settings), spark=spark.version, resolves=peer.resolves)
    for number, path in enumerate(task.batches):
        batch = spark.read.schema(_CHANGES).parquet(path)
        with driver.step("apply", number):
            peer.apply(batch)
        with driver.step("maintain", number):
            peer.maintain(number + 1)
        with driver.step("plain", number):
            batch.write.mode("append").parquet(task.plain)
        if peer.resolves and number + 1 in task.checks:
            with driver.step("rest", number):
                peer.rest()
            with driver.step("read", number):
                _reads(spark, peer, task, number, driver)
    with driver.step("finish", len(task.batches)):
        peer.finish()
    driver.tell(event="size", number=len(task.batches))
    driver.await_answer()
    with driver.step("verify", len(task.batches)):
        peer.rows().write.mode("overwrite").parquet(task.final)
    spark.stop()


def session(memory: str, local: str, own: dict[str, str]) -> SparkSession:
    """Two cores, the same memory and the same two shuffle partitions for every system; ``own``: a system's own settings."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    common = {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": f"{local}/spark",
        "spark.sql.warehouse.dir": f"{local}/warehouse",
    }
    builder = SparkSession.builder.appName("bench-peers").master("local[2]")
    for name, value in (own | common).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _reads(spark: SparkSession, peer: Peer, task: Task, number: int, driver: Driver) -> None:
    """Both sides of each query in turn: the table as it is now, planned anew each time, and the plain file."""
    plain: DataFrame = spark.read.parquet(task.checks[number + 1])
    plain.createOrReplaceTempView("plain_rows")
    for name, texts in task.queries.items():
        for attempt in range(_READ_WARMUP + task.reads):
            text = texts[attempt % len(texts)]
            started = time.perf_counter()
            expected = spark.sql(text.format(table="plain_rows")).collect()
            between = time.perf_counter()
            peer.rows().createOrReplaceTempView("fresh_rows")
            answer = spark.sql(text.format(table="fresh_rows")).collect()
            ended = time.perf_counter()
            if not _same(expected, answer):
                raise AssertionError(
                    f"after {number + 1} batches {name!r} is wrong: {answer[:2]}, must be {expected[:2]}"
                )
            if attempt >= _READ_WARMUP:
                driver.tell(
                    event="query",
                    name=name,
                    number=number,
                    plain_seconds=between - started,
                    fresh_seconds=ended - between,
                )


def _same(expected: list[Any], answer: list[Any]) -> bool:
    """Equal as sets of rows; sums of floating point numbers up to their rounding."""
    if len(expected) != len(answer):
        return False
    rows = zip(sorted(map(tuple, expected), key=repr), sorted(map(tuple, answer), key=repr), strict=True)
    return all(_same_value(left, right) for one, other in rows for left, right in zip(one, other, strict=True))


def _same_value(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-9)
    return bool(left == right)


def main() -> int:
    """Exits with 1 after telling the driver what went wrong."""
    task = json.loads(Path(sys.argv[1]).read_text())
    task["place"] = Place(**task["place"])
    task["checks"] = {int(batches): path for batches, path in task["checks"].items()}
    with os.fdopen(int(sys.argv[2]), "w") as events, os.fdopen(int(sys.argv[3])) as answers:
        driver = Driver(events, answers)
        try:
            run(Task(**task), driver)
        except Exception as error:
            traceback.print_exc()
            driver.tell(
                event="failed", error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
            return 1
        driver.tell(event="done")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a failed system must not keep the process
