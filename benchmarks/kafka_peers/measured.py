"""One system's run, driven and measured from outside its process.

1. A topic of its own gets the backlog, which is the same for all. A small one warms the system up, into another table.
2. The stream starts, and goes on to the end of the run. Drain: from its start until a commit has all of the backlog.
3. At each rate a producer sends for some seconds; then the rest may be caught up with, for as many seconds again. A
   system that does not come to the end of one rate is not asked for the next.
4. The topic is read back. The table must have the rows that the events up to the last commit come to, or there are no figures.
   An event is as fresh as the first commit beyond its offset.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import Consumer, TopicPartition

from benchmarks.kafka import produce
from benchmarks.kafka_peers.events import events, produce_steadily
from benchmarks.kafka_peers.oracle import difference, keep_topic, times
from benchmarks.kafka_peers.stream import Commit, Ends, Feed
from benchmarks.peers.measured import Drain, Runner, started
from benchmarks.peers.systems import System
from benchmarks.peers.watch import EventsLost, FolderWatch, cpu_seconds
from tests.infra.kafka import KafkaServer

PARTITIONS = 2
_POLL_SECONDS = 0.25
_ANSWER_SECONDS_MAX = 300.0
_ROWS_TRIES = 5
_WARM_ROUNDS, _WARM_EVENTS = 5, 5_000
_BEHIND_FACTOR, _BEHIND_SECONDS = 1.5, 1.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How much: events of the backlog (``snapshot`` of them a snapshot), rates in events a second for ``seconds`` each.
    ``patience``: seconds until a system must have the backlog.
    """

    events: int
    snapshot: int
    rates: tuple[int, ...]
    seconds: float
    batch_records: int
    patience: float
    memory: str


@dataclass(slots=True)
class Phase:
    """Something that was sent, and what it cost until it was visible. ``rate`` None: the backlog.

    ``lag``: events that were not visible when the last one was sent, by reader.
    """

    rate: int | None
    began: float
    starts: Ends
    ends: Ends
    lag: dict[str, int] = field(default_factory=dict)
    finished: bool = False
    cpu_seconds: float = 0.0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Freshness:
    """Seconds from an event's time in Kafka until a reader sees it; infinite if it never did."""

    events: int
    rate: float
    p50: float
    p95: float
    p99: float
    max: float
    kept_up: bool


@dataclass(slots=True)
class Run:
    """What was seen of one run; ``error`` tells why there are no figures."""

    system: str
    error: str | None = None
    spark: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    resolves: bool = True
    drained: dict[str, float] = field(default_factory=dict)
    """Seconds until the backlog was visible, by reader."""
    phases: list[Phase] = field(default_factory=list)
    freshness: list[dict[str, Freshness]] = field(default_factory=list)
    """Of each rate that was tried, by reader."""


class SystemFailed(Exception):
    """A system could not do what it was asked; the message is its own."""


class Asked:
    """A runner, and the commits that it has told of its stream."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.pid = runner.process.pid
        self.commits: dict[str, list[Commit]] = {}
        self._answer()

    def create(self, name: str) -> dict[str, Any]:
        self.commits = {}
        return self._ask("create", name=name)

    def start(self, topic: str) -> float:
        """Returns when the stream was asked to begin."""
        began: float = self._ask("start", topic=topic)["time"]
        return began

    def stop(self) -> None:
        self.poll()
        self._ask("stop")
        self.poll()

    def rows(self, folder: Path) -> None:
        self._ask("rows", folder=str(folder))

    def poll(self) -> None:
        """Ask for new commits."""
        for reader, told in self._ask("commits").items():
            self.commits.setdefault(reader, []).extend(Commit(**commit) for commit in told)

    def await_events(self, ends: Ends, seconds_max: float) -> bool:
        """Wait until every reader sees what is before some offsets; returns whether that came to be."""
        deadline = time.monotonic() + seconds_max
        while True:
            self.poll()
            if self.commits and all(visible_at(commits, ends) is not None for commits in self.commits.values()):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)

    def seen(self, reader: str) -> Ends:
        """The offsets that a reader has come to."""
        commits = self.commits.get(reader)
        return commits[-1].ends if commits else {}

    def _ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self._runner.answers.write(json.dumps({"do": do} | arguments) + "\n")
        self._runner.answers.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        limit = threading.Timer(_ANSWER_SECONDS_MAX, os.killpg, (self.pid, signal.SIGKILL))
        limit.start()
        try:
            line = self._runner.events.readline()
        finally:
            limit.cancel()
        answer: dict[str, Any] = (
            json.loads(line)
            if line
            else {"error": "the runner ended without a word, or was killed since it gave no answer"}
        )
        if "error" in answer:
            raise SystemFailed(f"{answer['error']} (see {self._runner.log})")
        return answer


def run_system(name: str, system: System, python: str, scale: Scale, kafka: KafkaServer, folder: Path) -> Run:
    """Run one system in a folder of its own, which is removed but for its log."""
    run = Run(name)
    table, local = folder / "table", folder / "local"
    for each in (table, local):
        each.mkdir(parents=True)
    feed = Feed(kafka.bootstrap, str(table), str(local), scale.batch_records)
    task = folder / "task.json"
    task.write_text(
        json.dumps({"module": system.module, "name": system.name, "memory": scale.memory, "feed": asdict(feed)})
    )
    drain = Drain(FolderWatch(table), FolderWatch(local))
    try:
        with started([python, "-m", "benchmarks.kafka_peers.runner", str(task)], folder) as runner:
            _measure(run, Asked(runner), scale, kafka, drain, folder)
    except (SystemFailed, EventsLost, BrokenPipeError) as error:
        run.error = str(error)
    finally:
        drain.close()
        for each in (table, local, folder / "rows"):
            shutil.rmtree(each, ignore_errors=True)
    return run


def _measure(run: Run, asked: Asked, scale: Scale, kafka: KafkaServer, drain: Drain, folder: Path) -> None:
    _warm_up(run.system, asked, scale, kafka)
    topic = kafka.create_topic(f"orders-{run.system}", PARTITIONS)
    produce(kafka.bootstrap, topic, events(0, scale.events, scale.snapshot))
    told = asked.create("orders")
    run.spark, run.settings, run.resolves = told["spark"], told["settings"], told["resolves"]

    with _phase(run, asked, drain, None, dict.fromkeys(_ends(kafka, topic), 0)) as phase:
        phase.ends = _ends(kafka, topic)
        phase.began = asked.start(topic)
        phase.finished = asked.await_events(phase.ends, scale.patience)
    if not phase.finished:
        raise SystemFailed(f"the backlog was not visible after {scale.patience:.0f} s")
    run.drained = {
        reader: at - phase.began
        for reader, commits in asked.commits.items()
        if (at := visible_at(commits, phase.ends)) is not None
    }
    sent = scale.events
    for rate in scale.rates:
        if not run.phases[-1].finished:
            break
        with _phase(run, asked, drain, rate, run.phases[-1].ends) as phase:
            producer = multiprocessing.get_context("spawn").Process(
                target=produce_steadily, args=(kafka.bootstrap, topic, sent, scale.snapshot, rate, scale.seconds)
            )
            producer.start()
            while producer.is_alive():
                asked.poll()
                producer.join(_POLL_SECONDS)
            if producer.exitcode:
                raise RuntimeError(f"the producer of {topic} ended with code {producer.exitcode}")
            phase.ends = _ends(kafka, topic)
            asked.poll()
            phase.lag = {reader: _missing(asked.seen(reader), phase.ends) for reader in asked.commits}
            phase.finished = asked.await_events(phase.ends, scale.seconds)
        sent += int(rate * scale.seconds)
    asked.stop()
    _judge(run, asked, scale, kafka, topic, folder)


def _warm_up(system: str, asked: Asked, scale: Scale, kafka: KafkaServer) -> None:
    topic = kafka.create_topic(f"warm-{system}", PARTITIONS)
    asked.create("warm")
    for number in range(_WARM_ROUNDS):
        first = number * _WARM_EVENTS
        produce(kafka.bootstrap, topic, events(first, first + _WARM_EVENTS, _WARM_EVENTS))
        if number == 0:
            asked.start(topic)
        if not asked.await_events(_ends(kafka, topic), scale.patience):
            raise SystemFailed(f"{_WARM_EVENTS} events to warm up were not visible after {scale.patience:.0f} s")
    asked.stop()


@contextmanager
def _phase(run: Run, asked: Asked, drain: Drain, rate: int | None, starts: Ends) -> Iterator[Phase]:
    phase = Phase(rate, time.time(), starts, starts)
    cpu, written = cpu_seconds(asked.pid), drain.look()[0].bytes
    yield phase
    phase.cpu_seconds = cpu_seconds(asked.pid) - cpu
    phase.written_bytes = drain.look()[0].bytes - written
    run.phases.append(phase)


def _judge(run: Run, asked: Asked, scale: Scale, kafka: KafkaServer, topic: str, folder: Path) -> None:
    """Compare the rows with the oracle, and compute how fresh events were."""
    records, rows = folder / "records.parquet", folder / "rows"
    keep_topic(kafka.bootstrap, topic, run.phases[-1].ends, records)
    run.error = difference(records, _rows_at(asked, rows), rows, run.resolves)
    came = times(records)
    for phase in run.phases[1:]:
        run.freshness.append(
            {reader: freshness(came, commits, phase, scale.seconds) for reader, commits in asked.commits.items()}
        )
    records.unlink()


def _rows_at(asked: Asked, folder: Path) -> Ends:
    """Have the rows written; returns the offsets that they have come to. A batch that was under way may still be committed."""
    reader = list(asked.commits)[-1]
    for _ in range(_ROWS_TRIES):
        ends = asked.seen(reader)
        asked.rows(folder)
        asked.poll()
        if asked.seen(reader) == ends:
            return ends
        shutil.rmtree(folder)
    raise SystemFailed("it goes on committing after it was stopped")


def _ends(kafka: KafkaServer, topic: str) -> Ends:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "ends"})
    try:
        return {
            str(number): consumer.get_watermark_offsets(TopicPartition(topic, number), 10)[1]
            for number in range(PARTITIONS)
        }
    finally:
        consumer.close()


def _missing(seen: Ends, ends: Ends) -> int:
    return sum(max(0, end - seen.get(partition, 0)) for partition, end in ends.items())


def visible_at(commits: Sequence[Commit], ends: Ends) -> float | None:
    """When everything before some offsets was visible; None if it is not yet."""
    return next((commit.time for commit in commits if not _missing(commit.ends, ends)), None)


def freshness(
    came: Mapping[str, npt.NDArray[np.float64]], commits: Sequence[Commit], phase: Phase, seconds: float
) -> Freshness:
    """How fresh the events of a phase were, without its first quarter, when everything adapts to the new rate.

    ``came``: when each event came into Kafka, by partition, in the order of offsets. Kept up: all became visible, and events of
    the second half waited at most 1.5 times as long as those of the first, in the median, or less than a second longer.
    """
    at = np.array([commit.time for commit in commits] + [np.inf])
    arrived, waited = [], []
    for partition, end in phase.ends.items():
        start = phase.starts[partition]
        ends = np.array([commit.ends.get(partition, 0) for commit in commits])
        arrived.append(came[partition][start:end])
        waited.append(at[np.searchsorted(ends, np.arange(start, end), side="right")] - arrived[-1])
    times, waits = np.concatenate(arrived), np.concatenate(waited)
    first, last = times.min(), times.max()
    counted = times >= first + seconds / 4
    half = times >= first + seconds * 5 / 8
    earlier, later = (float(np.median(waits[chosen])) for chosen in (counted & ~half, half))
    p50, p95, p99, most = (_percentile(waits[counted], q) for q in (50, 95, 99, 100))
    return Freshness(
        events=int(counted.sum()),
        rate=len(times) / (last - first),
        p50=p50,
        p95=p95,
        p99=p99,
        max=most,
        kept_up=phase.finished and later <= max(_BEHIND_FACTOR * earlier, earlier + _BEHIND_SECONDS),
    )


def _percentile(waits: npt.NDArray[np.float64], q: float) -> float:
    return float(np.percentile(waits, q, method="higher"))
