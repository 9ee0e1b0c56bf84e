"""What a small batch of one of many tables costs: CPU of ingest (read, decode, write, commit) and of what follows it.

    python -m benchmarks.table_batch [--tables 20] [--rounds 30] [--records 20 200 1000] [--profile]

One process, without Spark and brokers. In each round each table gets a batch of Debezium events, which are updates of its rows,
as a pipeline of a database reads it: through the table's positions, into a change part, into a commit. Then its maintenance runs
one cycle, which settles the batch. Checkpoints and merges run when they are due. Tables are on a local disk.

CPU is user and system time of the whole process, in milliseconds for each batch of a table, the median of the rounds.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lakebed
from benchmarks.kafka import SCHEMA, event
from benchmarks.workload import table as print_table
from lakebed.ingest.database.task import run_here
from lakebed.ingest.decoder import RECORD_SCHEMA, DecoderSchema
from lakebed.ingest.formats import decoder
from lakebed.ingest.source import Bounds, Place, Range
from lakebed.ingest.table_batch import TableIngest, run_alone
from lakebed.table import internals_of

KEYS = 2_000
FIRST_ROUNDS = 5
"""Rounds that are not counted: imports, first use of engines."""


@dataclass(slots=True)
class Topic:
    """One partition in memory, whose records are made before they are read."""

    tables: dict[int, pa.Table] = field(default_factory=dict)
    skips_losses: bool = False
    records_lost: int = 0

    def add(self, start: int, count: int) -> Range:
        events = [event(number, KEYS) for number in range(start, start + count)]
        columns = [
            pa.array([key for key, _ in events], pa.binary()), pa.array([value for _, value in events], pa.binary()),
            pa.repeat(pa.scalar("t", pa.string()), count), pa.repeat(pa.scalar(0, pa.int32()), count),
            pa.array(np.arange(start, start + count), pa.int64()), pa.nulls(count, pa.timestamp("ms", "UTC")),
        ]  # fmt: skip
        self.tables = {start: pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)}
        return Range("t", 0, start, start + count, None, None, start == 0)

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        raise NotImplementedError

    def bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        raise NotImplementedError

    def impatient(self) -> Topic:
        return self

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        yield self.tables[chosen.start]


@dataclass(slots=True)
class Member:
    """A table with its topic, its ingest and its maintenance."""

    topic: Topic
    ingest: TableIngest
    cycle: Callable[[], None]
    chores: Callable[[], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--records", type=int, nargs="+", default=[20, 200, 1000])
    parser.add_argument("--profile", action="store_true", help="print also where the time of all rounds goes")
    args = parser.parse_args()
    profile = cProfile.Profile(time.process_time) if args.profile else None
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        for records in args.records:
            ingest, settle, chores = measured(Path(folder, str(records)), args.tables, args.rounds, records, profile)
            rows.append([records, ingest, settle, chores, ingest + settle + chores])
    columns = ["records", "ingest", "settle", "checkpoints and merges", "all"]
    print_table(f"CPU milliseconds of a batch of one of {args.tables} tables", columns, rows)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(90)


def measured(
    folder: Path, tables: int, rounds: int, records: int, profile: cProfile.Profile | None
) -> tuple[float, float, float]:
    """Milliseconds for a batch: of ingest, of settling it, of what is done now and then."""
    members = [opened(folder / f"t{number}") for number in range(tables)]
    used: list[list[float]] = [[], [], []]
    for number in range(FIRST_ROUNDS + rounds):
        ranges = [member.topic.add(number * records, records) for member in members]
        if profile is not None and number >= FIRST_ROUNDS:
            profile.enable()
        times = [time.process_time()]
        for member, chosen in zip(members, ranges, strict=True):
            run_alone(member.ingest.batch([chosen]), run_here)
        times.append(time.process_time())
        for member in members:
            member.cycle()
        times.append(time.process_time())
        for member in members:
            member.chores()
        times.append(time.process_time())
        if profile is not None:
            profile.disable()
        if number >= FIRST_ROUNDS:
            for at, each in enumerate(used):
                each.append(1000 * (times[at + 1] - times[at]) / tables)
    ingest, settle, chores = used
    return statistics.median(ingest), statistics.median(settle), statistics.mean(chores)


def opened(path: Path) -> Member:
    lake = lakebed.create(path, SCHEMA, keys=["id"])
    internals = internals_of(lake)
    topic = Topic()
    ingest = TableIngest(
        lake.path, internals.log, topic, decoder("debezium-json", DecoderSchema.of_table(SCHEMA, ("id",), None)),
        evolution=internals.evolution("its records need it"), quarantine_log=internals.quarantine_log,
    )  # fmt: skip
    upkeep = internals.upkeep()

    def chores() -> None:
        internals.checkpoint()
        while (job := upkeep.compactor.next_plan(looks=False)) is not None:
            upkeep.compactor.run(*job)

    return Member(topic, ingest, upkeep.step, chores)


if __name__ == "__main__":
    main()
