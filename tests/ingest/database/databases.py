"""A database in memory: topics of a ``MemorySource``, a planner, and processes that keep tables of them; without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lakebed
from lakebed.coordination.failing import parked_of
from lakebed.decode.decoder import Decoder
from lakebed.ingest.database_batch import DatabaseIngest, PlanRequest
from lakebed.ingest.database_member import Ignored, Member, OpenTable
from lakebed.ingest.database_runner import Runner, Together
from lakebed.points.keeper import Points
from lakebed.positions.positions import positions_of
from lakebed.sources.source import Place, Range
from tests.internals import log_of
from tests.sources.memory_source import COLUMNS, MemorySource, Process, ids, row
from tests.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Batch:
    """What the planner planned."""

    tick: int
    ranges: tuple[Range, ...]
    left: tuple[str, ...] = ()
    more: bool = False


@dataclass(slots=True)
class Planner:
    """Plans each record once, from the positions on: as the source of a database does."""

    source: MemorySource
    positions: dict[Place, int] = field(default_factory=dict)
    request: PlanRequest = field(default_factory=PlanRequest)
    more: bool = False
    """Whether each batch says that another follows at once."""

    def next(self) -> Batch:
        ranges = [one for one in self.source.planned(self.positions) if one.topic not in self.request.left_out]
        self.positions |= {one.place: one.end for one in ranges}
        return Batch(self.request.tick, tuple(one for one in ranges if one.size), more=self.more)


class Database:
    """One process that keeps the tables below a folder. ``patience_seconds``: of its batches."""

    def __init__(
        self,
        folder: Path,
        source: MemorySource,
        *,
        patience_seconds: float = 30.0,
        points: Points | None = None,
        reading: Decoder | None = None,
        together: Together = nullcontext,
    ) -> None:
        self.folder, self.source = folder, source
        self.opening: Callable[[str], None] = lambda topic: None
        self.now = 0.0
        self.reading = reading
        runner = Runner(self.open, patience_seconds=patience_seconds, together=together)
        self.ingest = DatabaseIngest(
            str(folder), self.open, runner=runner, clock=lambda: self.now, look_seconds=0.01, points=points
        )
        self.ingest.know([self._member(topic) for topic in sorted(source.topics) if Path(folder, topic).exists()])
        self.planner = Planner(source)
        self.begin()

    def begin(self) -> None:
        """A query begins."""
        self.planner = Planner(self.source)

        def ask(request: PlanRequest) -> None:
            self.planner.request = request

        found = self.ingest.begin(lambda batch_id: self.planner.next(), ask)
        self.planner.positions = {
            (topic, number): offset for topic, one in found.items() for number, offset in one.offsets.items()
        }

    def batch(self) -> None:
        self.ingest.batch(self.planner.next())

    def batches(self, count: int, seconds: float = 100.0) -> None:
        """So many batches, each after a while."""
        for _ in range(count):
            self.now += seconds
            self.batch()

    def open(self, topic: str, ranges: Sequence[Range]) -> OpenTable | Ignored:
        self.opening(topic)
        if topic.startswith("_"):
            return Ignored("it is no table")
        path = str(self.folder / topic)
        if not Path(path, "_delta_log").exists():
            lakebed.create(path, COLUMNS)
        process = Process(path, self.source, reading=self.reading)
        return OpenTable(topic, path, log_of(process.table), process.ingest)

    def _member(self, topic: str) -> Member:
        table = self.open(topic, ())
        assert isinstance(table, OpenTable)
        return Member(topic, table, parked=parked_of(table.log.refresh()))

    def states(self) -> dict[str, str]:
        """How each topic stands."""
        return {one.topic: one.state for one in self.ingest.standings()}

    def rows(self, topic: str) -> list[int]:
        """The ids in a table, sorted."""
        return ids(self.table(topic))

    def table(self, topic: str) -> lakebed.Table:
        return lakebed.open(self.folder / topic)

    def wait_for(self, topic: str, state: str) -> None:
        wait_until(lambda: self.states()[topic] == state, lambda: str(self.states()))

    def position(self, topic: str) -> dict[int, int]:
        """The position in a table's log."""
        found = positions_of(log_of(self.table(topic)).refresh())
        return dict(found[topic].offsets) if topic in found else {}


@contextmanager
def database(folder: Path, source: MemorySource, **more: Any) -> Iterator[Database]:
    """A process, until the block ends."""
    one = Database(folder, source, **more)
    try:
        yield one
    finally:
        one.ingest.close()


def filled(*topics: str, count: int = 5) -> MemorySource:
    """Topics with so many records each; ids are counted from 0 in each."""
    source = MemorySource()
    for topic in topics:
        more(source, topic, count)
    return source


def more(source: MemorySource, topic: str, count: int) -> None:
    """Append records with the next ids."""
    first = source.topics[topic][0].end if topic in source.topics else 0
    source.add(topic, 0, *(row(first + n) for n in range(count)))


class Gate:
    """Holds threads until it is opened."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.waiting = 0

    def __call__(self, *_: object) -> None:
        self.waiting += 1
        self.is_open.wait()
