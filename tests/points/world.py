"""A source of transactions, its topics, tables that read them, and processes that take points: one seed draws everything.

No Kafka, no files: topics are lists of which a prefix can be seen, and a table is a list of its versions. The cut, the keeper
and the log of points are the real ones. Processes are generators; the scheduler may stop one between any two steps, or end it.

Transactions also count what never comes: events that a transformation leaves out, those of tables that are excluded or whose
topic is not there, and of a topic that becomes no table. Some tables have events of several tables of the source.

The auditor knows what the source committed. At each point it compares each table, at the version that the point names, with the
transactions up to the point.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, field, replace

import orjson
import pyarrow as pa

from lakebed.decode.transaction_ids import TransactionIds
from lakebed.log.stores import MemoryLogStore
from lakebed.log.table_log import TableLog
from lakebed.points.keeper import PointKeeper, PointSettings
from lakebed.points.state import TableDone
from lakebed.points.window import JsonTransactions
from lakebed.positions.point_log import Point, PointLog
from lakebed.positions.positions import Progress
from lakebed.sources.cut import Cut, Cutting
from lakebed.sources.source import Range

PREFIX = "shop"
TRANSACTIONS = "shop.transaction"
EXCLUDED, UNKNOWN = "public.excluded", "public.unknown"


@dataclass(frozen=True, slots=True)
class Event:
    """``order``: in its transaction; ``row``: of a snapshot, without a transaction; ``table``: of the source."""

    transaction: str | None
    order: int
    row: int
    time_ms: int
    table: str = ""


@dataclass(slots=True)
class Partition:
    events: list[Event] = field(default_factory=list)
    seen: int = 0
    """How many of them can be read yet."""


@dataclass(frozen=True, slots=True)
class Version:
    offsets: tuple[int, ...]
    progress: Progress | None
    has: frozenset[tuple[str | None, int]]
    parked: bool = False


@dataclass(slots=True)
class Transactions:
    """The topic of transactions, read as by a range reader."""

    values: list[tuple[bytes, int]] = field(default_factory=list)
    seen: int = 0
    records_lost: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    """The partitions of other topics that are there."""

    def partitions(self, topics: Collection[str]) -> dict[str, int]:
        return {topic: self.topics[topic] for topic in topics if topic in self.topics}

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        rows = list(enumerate(self.values))[chosen.start : chosen.end]
        yield pa.table(
            {
                "value": pa.array([value for _, (value, _) in rows], pa.binary()),
                "offset": pa.array([offset for offset, _ in rows], pa.int64()),
                "timestamp": pa.array([time for _, (_, time) in rows], pa.timestamp("ms", "UTC")),
            }
        )


class World:
    """``cuts``: False reads everything as it comes, to see what points are good for."""

    def __init__(self, seed: int, *, cuts: bool = True, processes: int = 2) -> None:
        self.draw = random.Random(seed)
        self.cuts = cuts
        self.now = 1_000.0
        names = [f"public.t{number}" for number in range(self.draw.randint(1, 4))]
        self.topics = {f"{PREFIX}.{name}": [Partition() for _ in range(self.draw.randint(1, 3))] for name in names}
        shards = {topic: self.draw.choice([1, 1, 3]) for topic in self.topics}
        self.tables = {topic: [topic.removeprefix("shop.")] for topic in self.topics} | {
            topic: [f"public.shard{number}_of_{topic[-1]}" for number in range(count)]
            for topic, count in shards.items()
            if count > 1
        }
        self.filtered = {topic for topic in self.topics if self.draw.random() < 0.3 and shards[topic] == 1}
        self.never = self.draw.sample(
            [EXCLUDED, UNKNOWN, "public.nowhere", "LOGICAL_DECODING_MESSAGE"], self.draw.randint(0, 2)
        )
        there = {topic: len(partitions) for topic, partitions in self.topics.items()}
        self.transactions = Transactions(topics=there | {f"{PREFIX}.{name}": 1 for name in (EXCLUDED, UNKNOWN)})
        self.versions: dict[str, list[Version]] = {
            topic: [Version((0,) * len(partitions), None, frozenset())] for topic, partitions in self.topics.items()
        }
        self.lagging = {topic: self.draw.random() < 0.3 for topic in self.topics}
        self.sent: list[tuple[str, int, Event] | bytes] = []
        self.open: tuple[str, Iterator[None]] | None = None
        self.counter = self.rows = 0
        self.order: list[str] = []  # transactions in the order of their ends
        self.truth: dict[str, dict[str, set[int]]] = {}  # by transaction and topic, the orders of its events
        self.store = MemoryLogStore("points")
        self.points: list[Point] = []
        self.counts: Counter[str] = Counter()
        self.first = 0  # the offset where the topic of transactions begins
        if self.draw.random() < 0.3:
            for _ in range(self.draw.randint(1, 8)):
                for _ in self._commit():
                    pass
            self.now += 100.0
            self.first = len(self.transactions.values)
            for partitions in self.topics.values():
                for partition in partitions:
                    partition.seen = len(partition.events)
        self.processes = [self._process() for _ in range(processes)]
        self.parked: dict[str, str] = {}

    # The source -------------------------------------------------------------------------------------------------------

    def _commit(self, *, is_last: bool = False) -> Iterator[None]:
        """Sends one transaction, a record a step."""
        self.counter += 1
        id = str(self.counter)
        collections: Counter[str] = Counter()
        self._send_transaction({"status": "BEGIN", "id": f"{id}:{self.counter * 10}"})
        yield
        truth: dict[str, set[int]] = {}
        chosen = [self.draw.choice(list(self.topics)) for _ in range(self.draw.choice([0, 1, 2, 3, 8]))]
        if is_last:  # each partition has a later event than any that may be missing
            chosen = [topic for topic, partitions in self.topics.items() for _ in partitions]
        for order, topic in enumerate(chosen, start=1):
            name = self.draw.choice(self.tables[topic])
            collections[name] += 1
            if topic in self.filtered and self.draw.random() < 0.2 and not is_last:
                continue
            truth.setdefault(topic, set()).add(order)
            count = len(self.topics[topic])
            partition = chosen[:order].count(topic) - 1 if is_last else self.draw.randrange(count)
            self._send(topic, partition, Event(id, order, 0, 0, name))
            yield
        for name in self.never:
            if self.draw.random() < 0.5:
                collections[name] += 1
        self.order.append(id)
        self.truth[id] = truth
        counted = [{"data_collection": name, "event_count": n} for name, n in collections.items()]
        self._send_transaction({"status": "END", "id": f"{id}:{self.counter * 10 + 5}", "data_collections": counted})

    def _send_transaction(self, document: dict[str, object]) -> None:
        value = orjson.dumps({**document, "ts_ms": self.wall_ms()})
        self.sent.append(value)
        self.transactions.values.append((value, self.wall_ms()))

    def _send(self, topic: str, partition: int, event: Event) -> None:
        event = replace(event, time_ms=self.wall_ms())
        self.sent.append((topic, partition, event))
        self.topics[topic][partition].events.append(event)

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def source_step(self) -> None:
        """The connector sends something, or sends again what it sent before it was restarted."""
        self.now += self.draw.choice([0.0, 0.001, 0.01, 0.3])
        if self.draw.random() < 0.004:
            self.now += 100.0
        if self.open is not None:
            if next(self.open[1], self) is self:
                self.open = None
            return
        chance = self.draw.random()
        if chance < 0.02 and self.sent:
            self.counts["restarts"] += 1
            for one in self.sent[-self.draw.randint(1, 12) :]:
                if isinstance(one, bytes):
                    self._send_transaction({k: v for k, v in orjson.loads(one).items() if k != "ts_ms"})
                else:
                    self._send(*one)
        elif chance < 0.1:
            topic = self.draw.choice(list(self.topics))
            self.rows += 1
            self._send(topic, self.draw.randrange(len(self.topics[topic])), Event(None, 0, self.rows, 0))
        else:
            self.open = ("", self._commit())

    def show(self) -> None:
        """Some of what was sent can be read now."""
        self.transactions.seen = self.draw.choice([self.transactions.seen, len(self.transactions.values)])
        for topic, partitions in self.topics.items():
            if self.lagging[topic] and self.draw.random() < 0.8:
                continue
            for partition in partitions:
                partition.seen = self.draw.choice([partition.seen, len(partition.events)])

    # A process --------------------------------------------------------------------------------------------------------

    def _process(self) -> Generator[None, None, None]:
        keeper = PointKeeper(
            PointSettings(topic=TRANSACTIONS, prefix=PREFIX, wait_seconds=5.0),
            PointLog(TableLog(self.store, clock=lambda: self.now, sleep=lambda _: None)),
            self.transactions,  # type: ignore[arg-type]
            JsonTransactions(),
            clock=lambda: self.now,
            now_ms=self.wall_ms,
        )
        keeper.ignore(f"{PREFIX}.{EXCLUDED}")
        for topic in self.topics:
            self._add(keeper, topic)
        yield
        while True:
            start = min(self.first, self.transactions.seen)
            ranges = [Range(TRANSACTIONS, 0, start, self.transactions.seen, is_first=True)]
            ends = {
                topic: [one.seen if self._knows(keeper, topic) else len(one.events) for one in partitions]
                for topic, partitions in self.topics.items()
            }
            yield
            cut = keeper.cut_for(ranges)
            for topic in self.draw.sample(list(self.topics), len(self.topics)):
                yield
                self._bring(keeper, cut, topic, ends[topic])
            yield
            point = keeper.batch_done()
            if point is not None:
                self.points.append(point)
                self.counts["points"] += 1
                self.counts["left out"] += len(point.left_out)
                if self.cuts:
                    self.audit(point)

    def _knows(self, keeper: PointKeeper, topic: str) -> bool:
        """Whether a process knows all tables that the topic has events of."""
        wanted = {f"{PREFIX}.{name}" for name in self.tables[topic]} - {topic}
        return wanted.issubset(keeper.state.window.routes)

    def _add(self, keeper: PointKeeper, topic: str) -> None:
        now = self.versions[topic][-1]
        name = topic.removeprefix(f"{PREFIX}.")
        keeper.name(topic, name, table_id=name)
        has_read, version = any(now.offsets), len(self.versions[topic]) - 1
        keeper.state.add(topic, version, now.progress, has_read=has_read, wall_ms=self.wall_ms())

    def _bring(self, keeper: PointKeeper, cut: Cut, topic: str, ends: list[int]) -> None:
        """Bring a table further, compare and commit."""
        if topic in self.parked:
            keeper.park(topic, self.parked[topic])
            return
        if self.draw.random() < 0.1:
            self.counts["failed"] += 1
            keeper.failed(topic)
            return
        now = self.versions[topic][-1]
        task = cut.for_topic(topic, now.progress)
        offsets, reports, left, stopped = list(now.offsets), {}, [], {}
        has = set(now.has)
        for partition, end in enumerate(ends):
            limit = min(end, offsets[partition] + self.draw.choice([1, 3, 50]))
            cutting = task.begin(partition)
            events = self.topics[topic][partition].events[offsets[partition] : limit]
            read = self._take(cutting, events, offsets[partition])
            has |= {(e.transaction, e.order or e.row) for e in events[:read]}
            offsets[partition] += read
            reports[partition] = cutting.report()
            if offsets[partition] < end:
                left.append(partition)
            if cutting.stopped:
                stopped[partition] = cutting.stopped
        if tuple(offsets) != now.offsets:
            progress = cut.advanced(topic, now.progress, reports, is_new=not any(now.offsets))
            self.versions[topic].append(Version(tuple(offsets), progress, frozenset(has)))
        newest = self.versions[topic][-1]
        keeper.state.done(
            topic,
            TableDone(
                version=len(self.versions[topic]) - 1,
                progress=newest.progress,
                is_behind=bool(set(left) - stopped.keys()),
                stopped=stopped,
            ),
        )

    def _take(self, cutting: Cutting, events: list[Event], first: int) -> int:
        if not self.cuts:
            everything = frozenset(e.transaction for e in events if e.transaction)
            cutting.cut = replace(cutting.cut, passing=cutting.cut.passing | everything)
        records = pa.table(
            {
                "offset": pa.array(range(first, first + len(events)), pa.int64()),
                "timestamp": pa.array([e.time_ms for e in events], pa.timestamp("ms", "UTC")),
            }
        )
        ids = TransactionIds(
            pa.array([e.transaction for e in events], pa.string()),
            pa.array([e.order or None for e in events], pa.int64()),
            lambda row: ("db", *events[row].table.split(".")),
        )
        return len(cutting.take(records, ids)[0])

    # Steps ------------------------------------------------------------------------------------------------------------

    def step(self, *, calm: bool = False) -> None:
        chance = self.draw.random()
        if chance < 0.45 and not calm:
            self.source_step()
        elif chance < 0.6:
            self.show()
        elif chance < 0.605 and not calm:
            self.processes[self.draw.randrange(len(self.processes))] = self._process()
            self.counts["crashes"] += 1
        elif chance < 0.61 and not calm:
            topic = self.draw.choice(list(self.topics))
            if self.parked.pop(topic, None) is None:
                self.parked[topic] = "its type is impossible"
                self.counts["parked"] += 1
        else:
            self.now += 0.005
            next(self.draw.choice(self.processes))

    def quiesce(self) -> None:
        """The source ends; everything can be read, and nothing fails any more."""
        while self.open is not None:
            self.source_step()
        self.parked.clear()
        self.now += 60.0
        for _ in self._commit(is_last=True):
            pass
        for number in range(3_000):
            self.now += 10.0 if number % 300 == 299 else 0.0
            self.step(calm=True)
            if self.points and self.points[-1].transaction.split(":")[0] == self.order[-1] and not self.left_out():
                return

    def left_out(self) -> dict[str, str]:
        """The tables that the newest point lacks, and why."""
        return {name: why for name, why in self.points[-1].left_out.items() if name != f"{PREFIX}.{UNKNOWN}"}

    # The auditor ------------------------------------------------------------------------------------------------------

    def wrong_in(self, point: Point) -> list[str]:
        """What a point has that it must not have, or lacks."""
        last = point.transaction.split(":")[0]
        until = set(self.order[: self.order.index(last) + 1])
        found = []
        for name, at in point.tables.items():
            topic = f"{PREFIX}.{name}"
            version = self.versions[topic][at.version]
            has: dict[str, set[int]] = {}
            for id, order in version.has:
                if id is not None:
                    has.setdefault(id, set()).add(order)
            wanted = {id: self.truth[id][topic] for id in until if topic in self.truth[id]}
            for id in sorted(wanted.keys() | has.keys(), key=int):
                if has.get(id, set()) != wanted.get(id, set()):
                    found.append(f"{name}: of {id} it has {has.get(id)} and not {wanted.get(id)} at the end of {last}")
        return found

    def audit(self, point: Point) -> None:
        wrong = self.wrong_in(point)
        assert not wrong, wrong
