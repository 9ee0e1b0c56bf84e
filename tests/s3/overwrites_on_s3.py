"""A driver: overwrite a table again and again, while its store fails in another way each time, and say what became of it.

    python overwrites_on_s3.py PORT BUCKET

PORT is that of the S3 server; the driver has a proxy of its own before it. A line of JSON for each overwrite says how it ended,
and what is in the table and beside it when the store answers again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import lakebed
from lakebed.ingest import sorted_rows
from lakebed.storage.s3_client import timeouts
from tests.infra.fault_proxy import Fault, FaultProxy, Request
from tests.infra.s3 import aws_environment
from tests.internals import log_of, storage_of

ROWS = 900
DAYS = 3
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.int32()), ("value", pa.string())])
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}
PART, COMMIT = "/_lakebed/", "/_delta_log/"
Breaks = Callable[[Request], Fault | None]


class Store(FaultProxy):
    """Fails the requests that it is told to, and counts them."""

    breaks: Breaks | None = None
    broken = 0

    def draw(self, request: Request) -> Fault | None:
        fault = self.breaks(request) if self.breaks else None
        self.broken += fault is not None
        return super().draw(request) if fault is None else fault


def after(count: int, method: str, path_contains: str, fault: Fault) -> Breaks:
    """So many of these requests are answered, and then none."""
    seen = [0]

    def breaks(request: Request) -> Fault | None:
        if request.method != method or path_contains not in request.path:
            return None
        seen[0] += 1
        return fault if seen[0] > count else None

    return breaks


def once(method: str, path_contains: str, fault: Fault) -> Breaks:
    """The first of these requests fails."""
    answered, done = after(0, method, path_contains, fault), [False]

    def breaks(request: Request) -> Fault | None:
        fault = None if done[0] else answered(request)
        done[0] = done[0] or fault is not None
        return fault

    return breaks


def down_after(count: int) -> Breaks:
    """So many parts are taken, and then nothing of anybody is answered."""
    answered, is_down = after(count, "PUT", PART, Fault.RESET), [False]

    def breaks(request: Request) -> Fault | None:
        is_down[0] = is_down[0] or answered(request) is not None
        return Fault.RESET if is_down[0] else None

    return breaks


def one_in(many: int) -> Breaks:
    """One in so many requests fails, each time in another way."""
    seen, faults = [0], list(Fault)

    def breaks(request: Request) -> Fault | None:
        seen[0] += 1
        return None if seen[0] % many else faults[seen[0] // many % len(faults)]

    return breaks


def hanging(store: Store) -> Breaks:
    """The first part is taken, and the answer comes when its client waits no longer."""
    first = once("PUT", PART, Fault.AFTER)

    def breaks(request: Request) -> Fault | None:
        fault = first(request)
        store.delay_seconds = timeouts[1] + 1 if fault else 0.0
        return fault

    return breaks


class Driver:
    """A table of three days whose keys lie among each other. The first day is replaced."""

    def __init__(self, spark: Any, store: Store, path: str) -> None:
        self.spark, self.store, self.path, self.number = spark, store, path, 0
        table = lakebed.create(path, SCHEMA, keys=["id"], partition_by=["day"])
        table.apply([{"id": id, "day": id % DAYS, "value": "first"} for id in range(ROWS)])
        table.settle()

    def overwrite(
        self, what: str, breaks: Breaks | None = None, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        self.number += 1
        value = f"new {self.number}"
        rows = self.spark.range(0, ROWS, DAYS, 4).selectExpr("id", "0 as day", f"'{value}' as value")
        lakebed.open(self.path).settle()
        table = lakebed.open(self.path)  # which has read nothing yet
        before, ended, text = table.version, "done", ""
        try:
            with self.failing(breaks), coming(meanwhile):
                table.overwrite(rows, "day = 0")
        except Exception as error:
            ended, text = type(error).__name__, str(error)
        print(json.dumps({"what": what, "ended": ended, "text": text, **self.found(value, before)}), flush=True)

    def commit(self, fault: Fault) -> Breaks:
        """The next commit fails."""
        return after(0, "PUT", f"{COMMIT}{lakebed.open(self.path).version + 1:020}.json", fault)

    def change(self) -> None:
        """A change of a row that is being replaced."""
        lakebed.open(self.path).apply([{"id": DAYS, "day": 0, "value": "later"}])

    @contextmanager
    def failing(self, breaks: Breaks | None) -> Iterator[None]:
        self.store.breaks, self.store.broken = breaks, 0
        try:
            yield
        finally:
            self.store.breaks, self.store.delay_seconds = None, 0.0

    def found(self, value: str, before: int) -> dict[str, Any]:
        table = lakebed.open(self.path)
        counted = table.query("select value, count(*) n from t group by 1", "t").to_pylist()
        counts = {row["value"]: row["n"] for row in counted}
        log = log_of(table)
        added = {
            action.part.path
            for one in log.commits(0, table.version)
            for action in one.actions
            if hasattr(action, "part")
        }
        left = [path for path, *_ in storage_of(table).list("_lakebed/") if path not in added]
        return {
            "rows": sum(counts.values()), "new": counts.get(value, 0), "later": counts.get("later", 0),
            "commits": table.version - before, "left": len(left), "broken": self.store.broken,
        }  # fmt: skip

    def clean(self) -> None:
        table = lakebed.open(self.path)
        left = self.found("", 0)["left"]
        deleted = table.maintenance.remove_orphan_files("0 seconds", dry_run=False, allow_short_retention=True)
        findings = [str(finding) for finding in table.doctor(deep=True).findings]
        print(
            json.dumps(
                {"left": left, "deleted": len(deleted), "still": self.found("", 0)["left"], "findings": findings}
            )
        )


@contextmanager
def coming(meanwhile: Callable[[], object]) -> Iterator[None]:
    """What happens when the rows are written."""
    whole = sorted_rows.in_tasks

    def then(*arguments: Any) -> Any:
        written = whole(*arguments)
        meanwhile()
        return written

    sorted_rows.in_tasks = then
    try:
        yield
    finally:
        sorted_rows.in_tasks = whole


def main(port: int, bucket: str) -> None:
    with Store(port) as store, aws_environment(store.endpoint):
        spark = lakebed.spark("overwrites", "local[2]", s3=True, conf=CONF)
        spark.sparkContext.setLogLevel("OFF")
        driver = Driver(spark, store, f"s3://{bucket}/t")
        driver.overwrite("one request in five fails", one_in(5))
        driver.overwrite("an answer comes too late", hanging(store))
        driver.overwrite("no answer to a commit", driver.commit(Fault.AFTER))
        driver.overwrite("changes come", None, driver.change)
        driver.overwrite("parts are refused", after(2, "PUT", PART, Fault.BEFORE))
        driver.overwrite("parts can't be compared", after(1, "GET", PART, Fault.RESET))
        driver.overwrite("changes can't be written again", after(5, "PUT", PART, Fault.BEFORE), driver.change)
        driver.overwrite("commits are refused", driver.commit(Fault.BEFORE))
        driver.overwrite("nothing is answered", down_after(2))
        driver.overwrite("all is well")
        driver.clean()
        spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
