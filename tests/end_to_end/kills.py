"""kill -9, again and again, of a process that ingests and settles, while a producer keeps writing.

1.  Start the process. Now and then it is killed at any moment, also while it starts; mostly some moments after its first
    commit, since what can go wrong goes wrong between commits.
2.  Kill it with everything it started: the JVM, Python's workers.
3.  After the last kill stop the producer, let a last process catch up with the topic, and end that one by a kill, too.
4.  Compare with what the topic holds: the table with keys, the one without, and their quarantines.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lakebed
from tests.end_to_end.progress import ingested_ends, wait_until
from tests.end_to_end.topic_of_changes import PARTITIONS, Expected, Producing, expected_of
from tests.infra.downloads import REPOSITORY
from tests.infra.kafka import KafkaServer
from tests.infra.server import Server

TABLES = ("keyed", "keyless")
STARTUP_SHARE = 0.2
STARTUP_SECONDS_MAX, RUNNING_SECONDS_MAX = 12.0, 4.0


class IngestProcess(Server):
    """``ingest_process`` on a topic; ready when each table has a commit that it did not have before."""

    name = "ingest"

    def __init__(self, kafka: KafkaServer, topic: str, folder: Path) -> None:
        super().__init__(folder)
        self._arguments = [kafka.bootstrap, topic, str(folder)]
        self._started = 0.0
        self._versions: dict[str, int] = {}
        self.ready_after_seconds: float | None = None

    def prepare(self) -> None:
        self._started = time.monotonic()
        self._versions = self.versions()

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.end_to_end.ingest_process", *self._arguments]

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        return {"LAKEBED_CACHE_DIR": str(self.run_folder / "cache"), "PYTHONPATH": path}

    def is_ready(self) -> bool:
        if self.ready_after_seconds is not None:
            return time.monotonic() - self._started >= self.ready_after_seconds
        return all(newest > self._versions[name] for name, newest in self.versions().items())

    def versions(self) -> dict[str, int]:
        """The newest version of each table; -1 where there is none yet."""
        return {name: newest_version(self.run_folder / name) for name in TABLES}


def newest_version(table: Path) -> int:
    commits = (path.stem for path in (table / "_delta_log").glob("*.json"))
    return max((int(name) for name in commits if name.isdigit()), default=-1)


@dataclass(frozen=True)
class Outcome:
    """What happened, for whoever reads the output of a long run."""

    kills: int
    kills_while_starting: int
    kills_with_a_tail: int
    records: int
    unreadable: int
    live_rows: int
    versions: dict[str, int]
    seconds: float


def kill_and_compare(
    kafka: KafkaServer, folder: Path, kills: int, seed: int, records_per_second: int, say: Callable[[str], None] = print
) -> Outcome:
    """Runs the whole; raises AssertionError naming what was lost or came twice."""
    chance = random.Random(seed)
    topic = kafka.create_topic(f"kills-{seed}-{time.time_ns()}", PARTITIONS)
    process = IngestProcess(kafka, topic, folder)
    started = time.monotonic()
    while_starting = with_tail = 0
    with Producing(kafka, topic, seed, records_per_second):
        for kill in range(kills):
            process.ready_after_seconds = chance.uniform(0, STARTUP_SECONDS_MAX) if chance.random() < STARTUP_SHARE else None
            while_starting += process.ready_after_seconds is not None
            process.start()
            if process.ready_after_seconds is None:
                time.sleep(chance.uniform(0, RUNNING_SECONDS_MAX))
            process.kill()
            tail = unsettled(folder / "keyed")
            with_tail += tail > 0
            say(f"kill {kill + 1} of {kills}: versions {process.versions()}, {tail} parts in the tail")
    expected = expected_of(kafka, topic)
    process.ready_after_seconds = None
    process.ready_after_seconds = 0.0
    process.start()
    ends = {(topic, partition): end for partition, end in expected.ends.items()}
    for name in TABLES:
        wait_until(lambda name=name: ingested_ends(folder / name) == ends or not process.is_running, f"{name} did not catch up")  # type: ignore[misc]
    assert process.is_running, f"the last process ended by itself:\n{process.log_tail()}"
    process.kill()
    assert_same(folder, expected)
    return Outcome(
        kills, while_starting, with_tail, sum(expected.ends.values()), len(expected.unreadable), len(expected.live),
        process.versions(), time.monotonic() - started,
    )  # fmt: skip


def unsettled(table: Path) -> int:
    """How many parts are in the tail."""
    if newest_version(table) < 0:
        return 0
    return int(lakebed.open(table).detail()["tail_parts"][0].as_py())


def assert_same(folder: Path, expected: Expected) -> None:
    """Nothing lost and nothing twice, before the last settle and after it."""
    keyed, keyless = lakebed.open(folder / "keyed"), lakebed.open(folder / "keyless")
    for _ in range(2):
        rows = keyed.to_arrow().to_pylist()
        found = {row["id"]: row for row in rows}
        assert len(found) == len(rows), f"keys live twice: {repeated(row['id'] for row in rows)}"
        differing = {key for key in found.keys() | expected.live.keys() if found.get(key) != expected.live.get(key)}
        assert not differing, f"{len(differing)} keys differ, e.g. {example(differing, found, expected)}"
        keyed.settle()
    numbers = keyless.to_arrow(["number"])["number"].to_pylist()
    assert not repeated(numbers), f"came twice: {repeated(numbers)}"
    assert sorted(numbers) == sorted(expected.numbers), f"lost: {sorted(set(expected.numbers) - set(numbers))[:10]}"
    for name in TABLES:
        quarantine = Path(f"{folder / name}_quarantine")
        places: list[tuple[int, int]] = []
        if quarantine.exists():
            aside = lakebed.open(quarantine).to_arrow(["partition", "offset"])
            places = list(zip(aside["partition"].to_pylist(), aside["offset"].to_pylist(), strict=True))
        assert sorted(places) == sorted(expected.unreadable), f"the quarantine of {name} holds other records"


def repeated(values: object) -> list[object]:
    return [value for value, count in Counter(values).items() if count > 1][:10]  # type: ignore[call-overload]


def example(differing: set[int], found: dict[int, object], expected: Expected) -> str:
    key = min(differing)
    return f"key {key}: the table has {found.get(key)}, the topic {expected.live.get(key)}"
