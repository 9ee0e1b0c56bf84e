"""What a small batch of one of many tables costs: CPU of ingest (read, decode, write, commit) and of what follows it.

    python -m benchmarks.table_batch [--tables 20] [--rounds 30] [--records 20 200 1000] [--profile LEAST] [--beside FOLDER]

One process, without Spark and brokers. In each round each table gets a batch of Debezium events, which are updates of its rows,
as a pipeline of a database reads it: through the table's positions, into a change part, into a commit. Then its maintenance runs
one cycle, which settles the batch. Checkpoints and merges run when they are due. Tables are on a local disk.

CPU is user and system time of the whole process, in milliseconds for each batch of a table, the median of the rounds.
``--profile`` also says in which functions it is spent, as a tree: those with ``LEAST`` milliseconds a batch or more, by samples
of the stack each millisecond of CPU.

``--beside``: the sources of another version, say a worktree of it. Both versions run, each in a process of its own, round by
round in turn. Other work on the machine then meets both alike, so their ratio holds where the milliseconds do not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa

import lakebed
from benchmarks.kafka import SCHEMA, event
from benchmarks.workload import table as print_table
from lakebed.decode.decoder import RECORD_SCHEMA, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.ingest.table_batch import TableIngest, run_alone, run_here
from lakebed.sources.source import Bounds, Place, Range
from lakebed.table import internals_of

KEYS = 2_000
SAMPLE_SECONDS = 0.001
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
        return Range("t", 0, start, start + count, None, "id of t", start == 0)

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
    parser.add_argument("--profile", type=float, metavar="LEAST", help="print also where the CPU goes")
    parser.add_argument("--beside", metavar="FOLDER", help="the sources of another version to compare with")
    parser.add_argument("--in-turn", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_turn:
        run_in_turn(Path(args.in_turn), args.tables, args.records[0])
        return
    if args.beside:
        compare(args)
        return
    rows = []
    profiles: dict[int, Profile] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        for records in args.records:
            if args.profile is not None:
                profiles[records] = Profile()
            profile = profiles.get(records)
            ingest, settle, chores = measured(Path(folder, str(records)), args.tables, args.rounds, records, profile)
            rows.append([records, ingest, settle, chores, ingest + settle + chores])
    columns = ["records", "ingest", "settle", "checkpoints and merges", "all"]
    print_table(f"CPU milliseconds of a batch of one of {args.tables} tables", columns, rows)
    for records, profile in profiles.items():
        print(f"\nCPU milliseconds of a batch of {records} records, by function")
        profile.print_tree(args.tables * args.rounds, args.profile)


class Profile:
    """Where this process spends its CPU, from ``enable`` to ``disable``: samples of the stack of the main thread.

    Each sample stands for the CPU since the one before, so a long call of native code counts in full.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._since = 0.0
        signal.signal(signal.SIGPROF, self._sample)

    def enable(self) -> None:
        self._since = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)

    def disable(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            file = frame.f_code.co_filename
            if f"{os.sep}lakebed{os.sep}" in file and not frame.f_code.co_name.startswith("<"):
                stack.append(f"{Path(file).stem}.{frame.f_code.co_qualname}")
            frame = frame.f_back
        now = time.process_time()
        self._seconds[tuple(reversed(stack))] += now - self._since
        self._since = now

    def print_tree(self, batches: int, least: float) -> None:
        """Print the functions with so many milliseconds a batch or more, each below its caller."""
        sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for stack, seconds in self._seconds.items():
            for depth in range(1, len(stack) + 1):
                sums[stack[:depth]] += 1000 * seconds / batches
        self._print_below((), sums, least)

    def _print_below(self, stack: tuple[str, ...], sums: Mapping[tuple[str, ...], float], least: float) -> None:
        below = [one for one in sums if one[:-1] == stack and sums[one] >= least]
        for one in sorted(below, key=lambda each: -sums[each]):
            print(f"{sums[one]:8.2f} {'  ' * len(stack)}{one[-1]}")
            self._print_below(one, sums, least)


def measured(
    folder: Path, tables: int, rounds: int, records: int, profile: Profile | None
) -> tuple[float, float, float]:
    """Milliseconds for a batch: of ingest, of settling it, of what is done now and then."""
    members = [opened(folder / f"t{number}") for number in range(tables)]
    used: list[list[float]] = [[], [], []]
    for number in range(FIRST_ROUNDS + rounds):
        found = one_round(members, number, records, profile if number >= FIRST_ROUNDS else None)
        if number >= FIRST_ROUNDS:
            for at, each in enumerate(found):
                used[at].append(each)
    ingest, settle, chores = used
    return statistics.median(ingest), statistics.median(settle), statistics.mean(chores)


def one_round(members: Sequence[Member], number: int, records: int, profile: Profile | None = None) -> list[float]:
    """Milliseconds for a batch: of ingest, of settling it, of what is done now and then."""
    ranges = [member.topic.add(number * records, records) for member in members]
    if profile is not None:
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
    return [1000 * each / len(members) for each in np.diff(times).tolist()]


def compare(args: argparse.Namespace) -> None:
    """Two versions round by round in turn, first one and then the other."""
    here = Path(__file__).parent.parent
    for records in args.records:
        used: list[list[list[float]]] = [[], []]
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            runs = []
            for number, sources in enumerate((args.beside, here)):
                command = [sys.executable, __file__, "--tables", str(args.tables), "--records", str(records)]
                run = subprocess.Popen(
                    [*command, "--in-turn", f"{folder}/{number}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | {"PYTHONPATH": str(Path(sources).resolve())},
                )
                runs.append(stack.enter_context(run))
            for at in range(FIRST_ROUNDS + args.rounds):
                for number in (0, 1) if at % 2 else (1, 0):
                    run = runs[number]
                    assert run.stdin and run.stdout
                    print(at, file=run.stdin, flush=True)
                    answer = run.stdout.readline()
                    if at >= FIRST_ROUNDS:
                        used[number].append(list(map(float, answer.split())))
            for run in runs:
                run.communicate("")
        means = [np.mean(each, axis=0).tolist() for each in used]
        rows = [[name, *each, sum(each)] for name, each in zip(("other", "this"), means, strict=True)]
        ratios = [sum(this) / sum(other) for other, this in zip(*used, strict=True)]
        print_table(
            f"{records} records; a round of this version takes {statistics.median(ratios):.3f} of the other's (median)",
            ["version", "ingest", "settle", "checkpoints and merges", "all"],
            rows,
        )


def run_in_turn(folder: Path, tables: int, records: int) -> None:
    """A round for each number that is read from standard input."""
    os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
    members = [opened(folder / f"t{number}") for number in range(tables)]
    for line in sys.stdin:
        print(*one_round(members, int(line), records), flush=True)


def opened(path: Path) -> Member:
    lake = lakebed.create(path, SCHEMA, keys=["id"])
    internals = internals_of(lake)
    topic = Topic()
    ingest = TableIngest(
        lake.path,
        internals.log,
        topic,
        decoder("debezium-json", DecoderSchema.of_table(SCHEMA, ("id",), None)),
        evolution=internals.evolution("its records need it"),
        quarantine_log=internals.quarantine_log,
    )
    duties = internals.duties()

    def chores() -> None:
        internals.checkpoint()
        while (job := duties.merge_runner.next_plan(looks=False)) is not None:
            duties.merge_runner.run(*job)

    return Member(topic, ingest, duties.step, chores)


if __name__ == "__main__":
    main()
