"""kill -9, again and again, of ``lakebed run``, while a producer keeps writing to the topic that it ingests.

1.  Start a pipeline, the one with keys or the one without. Now and then it is killed at any moment, also while it
    starts; mostly some moments after its first commit, since what can go wrong goes wrong between commits.
2.  Kill it with everything it started (the JVM, Python's workers); or now and then its first process alone, and start
    the next while the others still end.
3.  After the last kill stop the producer, let the pipelines catch up with the topic, and end them by a kill, too.
4.  Compare with what the topic holds: the table with keys, the one without, and their quarantines.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import lakebed
from tests.end_to_end.run_process import RunProcess, catch_up, newest_version
from tests.end_to_end.topic_of_changes import PARTITIONS, Expected, Producing, expected_of
from tests.infra.kafka import KafkaServer

TABLES = ("keyed", "keyless")
COLUMNS = {
    "keyed": {"id": "long not null", "number": "long", "note": "string"},
    "keyless": {"number": "long", "id": "long", "note": "string"},
}
KEYED_SHARE, STARTING_SHARE, ALONE_SHARE = 0.65, 0.25, 0.3
STARTING_SECONDS_MAX, RUNNING_SECONDS_MAX = 12.0, 4.0


class PipelineProcess(RunProcess):
    """``lakebed run`` on a topic."""

    def __init__(self, kafka: KafkaServer, topic: str, name: str, folder: Path, as_query: bool) -> None:
        pipeline = {
            "table": {"path": str(folder / name), "schema": COLUMNS[name], "keys": ["id"] if name == "keyed" else []},
            "source": {
                "kind": "kafka",
                "config": {"bootstrap.servers": kafka.bootstrap},
                "topics": [topic],
                "max_records_per_batch": 20_000,
            },
            "format": {"kind": "json", **({"operation_field": "op"} if name == "keyed" else {})},
            "maintain": name == "keyed",
            **({"maintenance": {"as_query": as_query, "trigger_seconds": 0.2}} if name == "keyed" else {}),
            "metrics": {"port": None},
            "spark": {"master": "local[2]"},
        }
        super().__init__(name, folder, pipeline)


@dataclass(frozen=True)
class Outcome:
    """What happened, for whoever reads the output of a long run."""

    kills: int
    kills_while_starting: int
    kills_of_the_first_process_alone: int
    kills_that_left_a_tail: int
    records: int
    unreadable: int
    live_rows: int
    versions: dict[str, int]
    seconds: float


def kill_and_compare(
    kafka: KafkaServer,
    folder: Path,
    kills: int,
    seed: int,
    records_per_second: int,
    say: Callable[[str], None] = print,
    *,
    as_query: bool = False,
) -> Outcome:
    """Runs the whole; raises AssertionError naming what was lost or came twice. ``as_query``: a streaming query maintains."""
    chance = random.Random(seed)
    topic = kafka.create_topic(f"kills-{seed}-{time.time_ns()}", PARTITIONS)
    processes = {name: PipelineProcess(kafka, topic, name, folder, as_query) for name in TABLES}
    started = time.monotonic()
    counts: Counter[str] = Counter()
    try:
        with Producing(kafka, topic, seed, records_per_second):
            for kill in range(kills):
                process = processes["keyed" if chance.random() < KEYED_SHARE else "keyless"]
                starting, alone = chance.random() < STARTING_SHARE, chance.random() < ALONE_SHARE
                process.ready_after_seconds = chance.uniform(0, STARTING_SECONDS_MAX) if starting else None
                process.start()
                if not starting:
                    time.sleep(chance.uniform(0, RUNNING_SECONDS_MAX))
                if alone:
                    process.kill_alone()
                else:
                    process.kill()
                tail = unsettled(process.table)
                counts += Counter(starting=starting, alone=alone, tail=tail > 0)
                how = f"{process.name}{' while starting' * starting}{' alone' * alone}"
                say(
                    f"kill {kill + 1} of {kills}: {how} at version {newest_version(process.table)}, "
                    f"{tail} parts in the tail, {time.monotonic() - started:.0f} s"
                )
        expected = expected_of(kafka, topic)
        ends = {(topic, partition): end for partition, end in expected.ends.items()}
        catch_up(processes.values(), ends)
        for process in processes.values():
            process.wait_for_orphans()
    finally:
        for process in processes.values():
            process.kill()
    assert_same(folder, expected)
    return Outcome(
        kills=kills,
        kills_while_starting=counts["starting"],
        kills_of_the_first_process_alone=counts["alone"],
        kills_that_left_a_tail=counts["tail"],
        records=sum(expected.ends.values()),
        unreadable=len(expected.unreadable),
        live_rows=len(expected.live),
        versions={name: newest_version(folder / name) for name in TABLES},
        seconds=time.monotonic() - started,
    )


def unsettled(table: Path) -> int:
    """How many parts are in the tail."""
    if newest_version(table) < 0:
        return 0
    return int(lakebed.open(table).inspect.detail()["tail_parts"][0].as_py())


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


def repeated(values: Iterable[object]) -> list[object]:
    return [value for value, count in Counter(values).items() if count > 1][:10]


def example(differing: set[int], found: dict[int, object], expected: Expected) -> str:
    key = min(differing)
    return f"key {key}: the table has {found.get(key)}, the topic {expected.live.get(key)}"
