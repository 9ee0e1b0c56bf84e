"""The same changes under any settings give the same rows: budgets, sizes, policies, partitions, sort keys, when it is settled,
compaction on or off, volatile or not, one replica or three that work on one table in turn.

A seed makes a stream of changes and mutations, and what a dictionary makes of it. Every life of the stream draws settings and
what is done between the changes; whenever a version is settled, and at the end, its base holds the dictionary's rows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.merge_runner import MergeRunner
from lakebed.compaction.merge_values import MergeResult
from lakebed.parts.changes import OP_COLUMN
from lakebed.planning.settling import UploadRules
from lakebed.table import internals_of
from tests.internals import compaction_of, log_of
from tests.oracle import Oracle, Row, in_order
from tests.worlds import seeds

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False), ("region", pa.string()), ("amount", pa.int64()), ("seq", pa.int64()),
    ]
)  # fmt: skip
REGIONS = ["eu", "us", "ap", None]
LIVES = 3
MERGES_MAX = 300


@dataclass(frozen=True)
class Change:
    """A batch of changes, or a mutation: rows of a region with less than an amount go, or get one more."""

    rows: tuple[Row, ...] = ()
    region: str = ""
    below: int = 0
    deletes: bool = False

    @property
    def where(self) -> str:
        return f"region = '{self.region}' and amount < {self.below}"


@dataclass
class Stream:
    """Changes in order, and the rows after each of them."""

    keys: tuple[str, ...]
    sequence_by: str | None
    changes: list[Change] = field(default_factory=list)
    rows_after: list[list[Row]] = field(default_factory=list)


def make_stream(seed: int, length: int) -> Stream:
    rng = random.Random(seed)
    keys = rng.choice([("id",), ("id",), ()])
    stream = Stream(keys, rng.choice([None, "seq"]) if keys else None)
    oracle = Oracle(keys, tuple(SCHEMA.names), stream.sequence_by)
    ids, clock = rng.choice([5, 40, 400]), 0
    for _ in range(length):
        if rng.random() < 0.15:
            change = Change(region=rng.choice(["eu", "us"]), below=rng.choice([10, 50]), deletes=rng.random() < 0.5)
            mutate(oracle, change)
        else:
            rows = []
            for _ in range(rng.choice([1, 8, 60])):
                clock += 1
                rows.append(
                    {
                        "id": rng.randrange(ids), "region": rng.choice(REGIONS), "amount": rng.randrange(100),
                        "seq": clock - (rng.randrange(40) if rng.random() < 0.3 else 0),
                        "op": "d" if keys and rng.random() < 0.2 else "u",
                    }
                )  # fmt: skip
            change = Change(tuple(rows))
            oracle.apply(rows)
        stream.changes.append(change)
        stream.rows_after.append(oracle.rows())
    return stream


def mutate(oracle: Oracle, change: Change) -> None:
    def new(row: Row) -> Row | None:
        if row["region"] != change.region or row["amount"] >= change.below:
            return row
        return None if change.deletes else {**row, "amount": row["amount"] + 1}

    oracle.appended = [changed for row in oracle.appended if (changed := new(row))]
    for key, (sequence, row) in oracle.newest.items():
        oracle.newest[key] = sequence, new(row) if row else None


@dataclass
class Replica:
    """One process that works on the table: its handle, its local disk, its merge_runner."""

    cache: Path
    table: lakebed.Table
    merge_runner: MergeRunner | None = None


class Life:
    """One table that goes through the stream."""

    def __init__(self, stream: Stream, seed: str, folder: Path) -> None:
        self.stream, self.random, self.path = stream, random.Random(seed), folder / "table"
        sort_key = self.random.choice([(), ("region", "amount"), ("amount",)])
        self.settings = random_settings(self.random)
        self.compacts = self.random.random() < 0.8
        self.rows_at: dict[int, list[Row]] = {}  # settled versions
        self.done: Counter[str] = Counter()
        lakebed.create(
            self.path,
            SCHEMA,
            keys=stream.keys,
            sequence_by=stream.sequence_by,
            sort_key=sort_key,
            partition_by=self.random.choice([(), (), ("region",)]),
            properties=self.settings,
        )
        self.replicas: list[Replica] = []
        for number in range(self.random.choice([1, 3])):
            cache = folder / f"replica-{number}"
            with on_disk(cache):
                self.replicas.append(Replica(cache, lakebed.open(self.path)))

    def run(self) -> None:
        """Go through the stream, doing this and that in between; then settle, and check."""
        rows: list[Row] = []
        for number, change in enumerate(self.stream.changes):
            with self.somebody() as replica:
                bring(replica.table, change, number, self.stream)
            rows = self.stream.rows_after[number]
            for _ in range(self.random.choice([0, 1, 1, 3])):
                with self.somebody() as replica:
                    self.maintain(replica)
                    self.look(replica, rows)
        with self.somebody() as replica:
            replica.table.settle()
            self.look(replica, rows)
            self.check(replica, rows)
        for replica in self.replicas:
            with on_disk(replica.cache):
                if replica.merge_runner:
                    replica.merge_runner.close()

    @contextmanager
    def somebody(self) -> Iterator[Replica]:
        replica = self.random.choice(self.replicas)
        with on_disk(replica.cache):
            yield replica

    def maintain(self, replica: Replica) -> None:
        action = self.random.choice(["settle", "settle if due", "merge", "merge", "upload", "extend", "restart"])
        if action == "settle":
            self.done[action] += replica.table.settle().commits
        elif action == "settle if due":
            self.done[action] += internals_of(replica.table).settler.settle_if_due()
        elif self.compacts:
            self.done[action] += self.compact(replica, action)

    def compact(self, replica: Replica, action: str) -> int:
        if replica.merge_runner is None:
            replica.merge_runner = internals_of(replica.table).duties().merge_runner
        volatile = compaction_of(replica.table).volatile_merger
        if action == "merge":
            return sum(result.parts_in > 0 for result in merge_all(replica.merge_runner))
        if action == "upload" and volatile:
            rules = UploadRules(
                age_seconds=self.random.choice([0, 3600]), local_bytes_max=self.random.choice([1, 10**9])
            )
            return sum(result.parts_in > 0 for result in volatile.upload_due(rules))
        if action == "extend" and volatile:
            volatile.extend()
            volatile.tidy()
        elif action == "restart":
            replica.merge_runner.close()
            replica.table, replica.merge_runner = lakebed.open(self.path), None
        return 0

    def look(self, replica: Replica, rows: list[Row]) -> None:
        """Remember a settled version; the view shows the rows at every version."""
        if self.random.random() < 0.2:
            assert in_order(replica.table.to_arrow().to_pylist()) == rows, f"the view of {replica.table.version}"
        if not log_of(replica.table).refresh().tail:
            self.rows_at[replica.table.version] = rows

    def check(self, replica: Replica, rows: list[Row]) -> None:
        assert self.rows_at[replica.table.version] == rows
        for version, settled in self.rows_at.items():
            assert in_order(replica.table.to_arrow(version=version).to_pylist()) == settled, f"version {version}"


def merge_all(merge_runner: MergeRunner) -> list[MergeResult]:
    """What ``run_until_idle`` does, which must come to an end."""
    results: list[MergeResult] = []
    for _ in range(MERGES_MAX):
        job = merge_runner.next_plan()
        if job is None:
            return results
        plan = job[1]
        results.append(merge_runner.run(*job))
    raise AssertionError(f"after {MERGES_MAX} merges there is always one more: {plan}")


def random_settings(rng: random.Random) -> dict[str, str]:
    target_bytes = rng.choice([3_000, 128 << 20])
    drawn = {
        "lakebed.read_budget": rng.choice([1, 2, 3, 8]),
        "lakebed.target_part_rows": rng.choice([7, 50, 1_000_000]),
        "lakebed.target_part_bytes": target_bytes,
        "lakebed.plan_bytes_max": target_bytes * rng.choice([2, 5]),
        "lakebed.merge": rng.choice(["auto", "bin-pack", "tiered", "leveled", "off"]),
        "lakebed.merge_first": rng.choice(["newest", "lightest"]),
        "lakebed.purge_dead_ratio": rng.choice([0.05, 0.3, 1.0]),
        "lakebed.conflict_scope": rng.choice(["table", "partition", "file"]),
        "lakebed.checkpoint_interval": rng.choice([2, 10, 100]),
        "lakebed.volatile": rng.choice(["on", "off"]),
        "lakebed.settle_after_changes": rng.choice([None, 1, 100]),
        "lakebed.settle_after_bytes": rng.choice([None, 2_000]),
        "lakebed.settle_after_age": rng.choice([None, "interval 1 seconds", "interval 1 hours"]),
    }
    return {name: str(value) for name, value in drawn.items() if value is not None}


def bring(table: lakebed.Table, change: Change, number: int, stream: Stream) -> None:
    if not change.rows:
        if change.deletes:
            table.delete(change.where)
        else:
            table.update({"amount": "amount + 1"}, change.where)
        return
    rows: list[Row] = [{**row, OP_COLUMN: row["op"]} for row in change.rows]
    schema = SCHEMA.append(pa.field(OP_COLUMN, pa.string())) if stream.keys else SCHEMA
    table.apply(
        pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema), batch_id=number
    )


@contextmanager
def on_disk(cache: Path) -> Iterator[None]:
    """What is kept on local disk lies in this folder."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LAKEBED_CACHE_DIR", str(cache))
        yield


@pytest.mark.few(2)
@seeds(4, quick=0)
def test_the_same_changes_give_the_same_rows_under_any_settings(seed: int, tmp_path: Path) -> None:
    stream = make_stream(seed, length=10 if seed < 4 else 25)
    for number in range(LIVES):
        life = Life(stream, f"{seed}, {number}", tmp_path / str(number))
        try:
            life.run()
        except Exception as error:
            told = f"life {number} of the stream {seed}, {len(life.replicas)} replicas, {life.settings}"
            raise AssertionError(f"{told}: {error}") from error
