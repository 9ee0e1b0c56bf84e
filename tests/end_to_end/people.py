"""A topic of changes of accounts that people own, a pipeline of it into S3, and what the table must hold by now.

Keys are texts. The accounts of the crowd change all the time. Those of one person are few: the owner's name is in keys, in
values, in values that were replaced since, in deletes, and in a record that is no JSON. A key always goes to one partition.

What the table must hold follows from the topic and the table's *history*: ranges of offsets that were read, which a restore or a
rewind makes other than one, and owners whose rows were purged in between.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

import lakebed
from lakebed.errors import TableNotFound
from lakebed.log.snapshot import Snapshot
from lakebed.positions.positions import positions_of
from tests.end_to_end.run_process import RunProcess
from tests.infra.kafka import KafkaServer, end_offsets, messages_before
from tests.internals import log_of
from tests.waiting import length_of, wait_until

PARTITIONS, KEYS = 2, 400
DELETES, BURST, PAUSE_SECONDS = 0.15, 5, 0.02
SCHEMA = {"id": "string not null", "owner": "string", "note": "string"}

Offsets = Mapping[int, int]


@dataclass(frozen=True)
class Read:
    """The table read the records of these ranges."""

    begin: Offsets
    end: Offsets


@dataclass(frozen=True)
class Purged:
    """All rows of an owner were purged."""

    owner: str


class People:
    """The topic. Any thread may produce; changes of one key come from one thread only."""

    def __init__(self, kafka: KafkaServer, topic: str) -> None:
        self.kafka, self.topic = kafka, kafka.create_topic(topic, PARTITIONS)
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5, "enable.idempotence": True})
        self._notes = count()
        self._draw = random.Random(topic)

    def change(self, number: int, id: str, owner: str, op: str = "u") -> None:
        change = {"id": id, "owner": owner, "note": f"note {next(self._notes)}", "op": op}
        self._producer.produce(self.topic, json.dumps(change), id, partition=number % PARTITIONS)

    def unreadable(self, id: str, owner: str) -> None:
        self._producer.produce(self.topic, f'{{"id": "{id}", "owner": "{owner}", "note": ', id, partition=0)

    def ends(self) -> dict[int, int]:
        """The end of the topic, with all that was produced before."""
        assert self._producer.flush(30) == 0, "the broker did not take all records"
        return end_offsets(self.kafka.bootstrap, self.topic, PARTITIONS)

    @contextmanager
    def crowd(self) -> Iterator[None]:
        """Accounts change until the end of the block."""
        stopped = threading.Event()

        def produce() -> None:
            while not stopped.wait(PAUSE_SECONDS):
                for _ in range(BURST):
                    number = int(KEYS * self._draw.random() ** 3)  # a batch has a key more than once
                    op = "d" if self._draw.random() < DELETES else "u"
                    self.change(number, f"account {number}", "crowd", op)
                self._producer.poll(0)

        thread = threading.Thread(target=produce, name=f"producer of {self.topic}")
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def rows_after(self, history: list[Read | Purged]) -> dict[str, dict[str, Any]]:
        """The rows by key."""
        records: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        for message in messages_before(self.kafka.bootstrap, self.topic, self.ends()):
            assert message.offset() == len(records[message.partition()])
            records[message.partition()].append(message.value())
        live: dict[str, dict[str, Any]] = {}
        for step in history:
            if isinstance(step, Purged):
                live = {id: row for id, row in live.items() if row["owner"] != step.owner}
                continue
            for number, end in step.end.items():
                for value in records[number][step.begin.get(number, 0) : end]:
                    _apply(value, live)
        return live


def _apply(value: bytes, live: dict[str, dict[str, Any]]) -> None:
    try:
        change = json.loads(value)
    except ValueError:
        return
    live.pop(change["id"], None)
    if change.pop("op") != "d":
        live[change["id"]] = change


class Pipeline(RunProcess):
    """``lakebed run`` of the topic into S3. All local files of it are below its folder."""

    def __init__(self, people: People, root: str, folder: Path) -> None:
        self.root = root
        self.people = people
        pipeline = {
            "table": {"path": root, "schema": SCHEMA, "keys": ["id"], "properties": {"lakebed.read_budget": "2"}},
            "source": {
                "kind": "kafka",
                "config": {"bootstrap.servers": people.kafka.bootstrap},
                "topics": [people.topic],
            },
            "format": {"kind": "json", "operation_field": "op"},
            "checkpoint": str(folder / "checkpoint"),
            "metrics": {"port": None},
            "page": {"port": None},
            "spark": {"master": "local[2]"},
        }
        super().__init__("people", folder, pipeline)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "TMPDIR": str(self.temporary), "SPARK_LOCAL_DIRS": str(self.temporary)}

    def prepare(self) -> None:
        self.temporary.mkdir(exist_ok=True)
        super().prepare()

    def version(self) -> int:
        try:
            return lakebed.open(self.root).version
        except TableNotFound:
            return -1

    @property
    def temporary(self) -> Path:
        return self.run_folder / "temporary"

    def command_of(self, *arguments: str) -> tuple[list[str], dict[str, str]]:
        """A command of lakebed's beside it on its host, with its environment. A purge waits for a second, not for a minute,
        so that others see it."""
        code = (
            "import sys; from lakebed.operations.purge import files; files.FOLLOW_SECONDS = 1.0; "
            "from lakebed.cli import main; sys.exit(main())"
        )
        return [sys.executable, "-c", code, *arguments], {**os.environ, **self.environment()}

    def position(self, snapshot: Snapshot | None = None) -> dict[int, int]:
        """How far the table has read, at a version or by now."""
        found = positions_of(snapshot or log_of(lakebed.open(self.root)).refresh())
        position = found.get(self.people.topic)
        return dict(position.offsets) if position else {}

    def wait_until_read(self, ends: Offsets) -> None:
        """Returns when the table has read up to these offsets. Raises AssertionError if the pipeline ends before."""

        def behind() -> int:
            position = self.position()
            return sum(max(0, end - position.get(number, 0)) for number, end in ends.items())

        wait_until(
            lambda: not behind() or not self.is_running,
            lambda: f"{behind()} records were not read:\n{self.log_tail()}",
            moving=lambda: (behind(), length_of(self.log_path)()),
        )
        assert self.is_running, f"the pipeline ended by itself:\n{self.log_tail()}"


@dataclass
class Stage:
    """A pipeline that runs, and the history of its table so far."""

    people: People
    pipeline: Pipeline
    history: list[Read | Purged] = field(default_factory=list)
    read: dict[int, int] = field(default_factory=dict)

    def catch_up(self) -> dict[int, int]:
        """Wait until all that was produced is in the table; returns the offsets."""
        ends = self.people.ends()
        self.pipeline.wait_until_read(ends)
        return ends

    def has_read(self, end: Offsets) -> None:
        """Of the history: the next records, up to an offset."""
        self.history.append(Read(dict(self.read), dict(end)))
        self.read = dict(end)

    def goes_on_from(self, begin: Offsets) -> None:
        """Of the history: the next records are those from an offset on."""
        self.read = dict(begin)

    def assert_rows(self, version: int | None = None) -> None:
        """The table has the rows that follow from its history. Raises AssertionError."""
        rows = lakebed.open(self.pipeline.root).to_arrow(version=version).to_pylist()
        found, expected = {row["id"]: row for row in rows}, self.people.rows_after(self.history)
        assert len(found) == len(rows), "a key is live twice"
        differing = sorted(id for id in found.keys() | expected.keys() if found.get(id) != expected.get(id))
        assert not differing, (
            f"{len(differing)} keys differ, e.g. {differing[0]}: the table has {found.get(differing[0])}, the topic says "
            f"{expected.get(differing[0])}"
        )
