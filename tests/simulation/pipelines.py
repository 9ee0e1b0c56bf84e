"""Pipelines that bring topics into many tables, several processes at once, on the real code of a table's batch.

The world (``world``) draws who goes on and what fails. Logs are on a real disk behind the failing store; parts are real files,
which their writer reads at once. What a process has beside the logs, its checkpoint, is made worse between its lives: it may be
old, lost, or of somebody else.

At the end every version of every table is compared with the topics: it has the records below its positions, each once, and no
others; and the quarantine has each record that can't be read, once. In some worlds tables are restored with their positions.
"""

from __future__ import annotations

import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import lakebed
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.errors import Contention, Retry
from lakebed.ingest.batch_writer import QUARANTINE_SUFFIX, Written, in_this_process
from lakebed.ingest.evolving import Evolution
from lakebed.ingest.table_batch import Batch, TableIngest, WriteWork
from lakebed.log.stores import LocalLogStore
from lakebed.log.table_log import TableLog
from lakebed.operations.alter import alter
from lakebed.operations.create import NewTable, create
from lakebed.parts.quarantine import QUARANTINE_SCHEMA
from lakebed.positions.positions import positions_of
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import EvolvePolicy
from lakebed.sources.source import Place, Range, RangeChanges
from tests.simulation.topics import COLUMNS, MORE, Broker, Row, SimulatedReader, Topic
from tests.simulation.world import TRACE_LINES, Actor, FailingStore, Faults, World

STEPS = 400
POLICY = EvolvePolicy(allowed=frozenset({"add"}), by_schema=True)
FAULTS = Faults(crash=0.02, outage=0.002, stop=0.008, stop_steps=150)


@dataclass(frozen=True, slots=True)
class Kept:
    """A table and the topics that it keeps."""

    path: str
    keyed: bool
    topics: tuple[str, ...]


@dataclass
class Checkpoint:
    """What is on the disk of one process, or of several: up to where each batch that was planned reads."""

    batches: list[dict[Place, int]] = field(default_factory=list)


@dataclass
class Shop:
    """The world, the broker, the tables."""

    world: World
    broker: Broker
    tables: list[Kept]
    restores: bool = False
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)

    def log(self, path: str, actor: Actor) -> TableLog:
        """A table's log, as a process opens it."""
        world = self.world
        store = FailingStore(LocalLogStore(path), world, actor, lambda name, data: None, lambda name: None)
        return TableLog(store, clock=lambda: world.clock(actor), sleep=lambda seconds: world.sleep(actor, seconds))


@dataclass(frozen=True)
class Report:
    """What a run did."""

    seed: int
    counts: Counter[str]
    trace: tuple[str, ...]


def simulate(seed: int, steps: int = STEPS) -> Report:
    """Run one world. Raises AssertionError naming the seed, with the end of the trace, if a table differs from its topics."""
    world = World(seed, Faults(0, 0, 0, 0, 0) if seed % 4 == 0 else FAULTS)
    with tempfile.TemporaryDirectory(prefix="lakebed-simulation-") as folder:
        try:
            shop = _new_shop(world, Path(folder))
            shop.restores = seed % 5 == 3
            processes = world.random.randint(1, 3)
            shared = world.random.random() < 0.4  # one checkpoint for all: the same pipeline started twice
            for number in range(processes):
                world.add(f"pipeline-{number}", pipeline(shop, "shared" if shared else f"disk-{number}"), 2.0)
            world.add("producer", producer(shop), 0.6)
            world.add("keeper", keeper(shop), 0.15)
            world.run(steps)
            for kept in shop.tables:
                _compare(shop, kept)
        except Exception as error:
            trace = "\n".join(world.trace[-TRACE_LINES:])
            raise AssertionError(f"seed {seed}: {error}\n{trace}\n{traceback.format_exc(limit=-8)}") from error
    return Report(seed, world.counts, tuple(world.trace))


def _new_shop(world: World, folder: Path) -> Shop:
    chance = world.random
    shop = Shop(world, Broker({}), [])
    for number in range(chance.randint(2, 4)):
        keyed, names = chance.random() < 0.6, [f"shop.t{number}"]
        truncated = chance.random() < 0.3
        partitions = 1 if truncated else chance.randint(1, 3)
        if not keyed and not truncated and chance.random() < 0.7:
            names.append(f"shop.more{number}")
        topics = [Topic(name, keyed, truncated, [[] for _ in range(partitions)]) for name in names]
        add_table(shop, folder / f"t{number}", topics)
    for _ in range(chance.randint(0, 40)):
        chance.choice(list(shop.broker.topics.values())).produce(chance)
    return shop


def add_table(shop: Shop, path: Path, topics: Sequence[Topic]) -> Kept:
    """A new table that keeps these topics, and its quarantine."""
    keyed = topics[0].keyed
    table = lakebed.create(path, COLUMNS, keys=["id"] if keyed else [])
    aside = table.path + QUARANTINE_SUFFIX
    create(aside, TableLog(LocalLogStore(aside)), NewTable(schema=QUARANTINE_SCHEMA))
    kept = Kept(table.path, keyed, tuple(topic.name for topic in topics))
    shop.broker.topics.update((topic.name, topic) for topic in topics)
    shop.tables.append(kept)
    return kept


# -- who takes part ----------------------------------------------------------------------------------------------------


def producer(shop: Shop) -> Callable[[Actor], None]:
    """Adds records to the topics."""

    def live(actor: Actor) -> None:
        while not shop.world.closing:
            chance = shop.world.random
            for _ in range(chance.randint(1, 12)):
                chance.choice(list(shop.broker.topics.values())).produce(chance)
            shop.world.pause(actor)

    return live


def keeper(shop: Shop) -> Callable[[Actor], None]:
    """Settles a table, adds the column that records will need, or restores an earlier version with its positions, as another
    process that nothing happens to.
    """

    def live(actor: Actor) -> None:
        while not shop.world.closing:
            table = lakebed.open(shop.world.random.choice(shop.tables).path)
            if shop.restores and shop.world.random.random() < 0.5:
                table.restore(shop.world.random.randint(min(1, table.version), table.version), positions=True)
                shop.world.counts["restored"] += 1
            elif shop.world.random.random() < 0.8:
                table.settle()
                shop.world.counts["settled"] += 1
            else:
                table.alter(add={MORE: "long"})
            for _ in range(10):
                shop.world.pause(actor)

    return live


def pipeline(shop: Shop, disk: str) -> Callable[[Actor], None]:
    """One process of the pipeline, life after life: what it knows beside the tables' logs is its checkpoint."""

    def live(actor: Actor) -> None:
        world = shop.world
        checkpoint = shop.checkpoints.setdefault(disk, Checkpoint())
        batches = checkpoint.batches if world.closing else _damaged(shop, checkpoint.batches)
        reader = SimulatedReader(shop.broker, 0.0 if world.closing else 0.02)
        ingests = {kept.path: ingest_of(shop, kept, actor, reader) for kept in shop.tables}
        number = max(0, len(batches) - 1)  # the one that may not have ended
        while True:
            reader.fails = 0.0 if world.closing else reader.fails
            if number == len(batches):
                batches = [*batches, _planned(shop, batches[-1] if batches else {})]
                checkpoint.batches = batches
            batch, before = batches[number], batches[number - 1] if number else {}
            works = {kept.path: _begun(shop, ingests[kept.path], kept, batch, before) for kept in shop.tables}
            whole = _run_batch(shop, actor, works)
            if whole:
                if world.closing and batch == shop.broker.ends():
                    return
                number += 1

    return live


def _damaged(shop: Shop, batches: list[dict[Place, int]]) -> list[dict[Place, int]]:
    """What may have become of a checkpoint since the life before."""
    chance, counts = shop.world.random, shop.world.counts
    draw = chance.random()
    if draw < 0.15:
        counts["checkpoint lost"] += 1
        return []
    if draw < 0.35 and batches:
        counts["checkpoint old"] += 1
        return batches[: chance.randrange(len(batches))]
    if draw < 0.5:
        counts["checkpoint foreign"] += 1
        return [{place: chance.randint(0, end) for place, end in shop.broker.ends().items()}]
    return batches


def _planned(shop: Shop, before: dict[Place, int]) -> dict[Place, int]:
    """Up to where the next batch reads: some partitions are read on, some are not."""
    chance, planned = shop.world.random, {}
    for place, end in shop.broker.ends().items():
        begin = min(before.get(place, 0), end)
        all_of_it = shop.world.closing or chance.random() < 0.5
        planned[place] = end if all_of_it else chance.randint(begin, end)
    return planned


def ingest_of(shop: Shop, kept: Kept, actor: Actor, reader: SimulatedReader) -> TableIngest:
    """What brings batches into a table, in the process of an actor."""
    log = shop.log(kept.path, actor)

    def altered(change: SchemaChange, why: str) -> None:
        alter(log, change, reason=why)

    return TableIngest(
        kept.path,
        log,
        reader,
        decoder("debezium-json", DecoderSchema.of_table(COLUMNS, ("id",) if kept.keyed else (), None, POLICY)),
        evolution=Evolution(log, altered, "simulated"),
        quarantine_log=partial(shop.log, kept.path + QUARANTINE_SUFFIX, actor),
    )


def _begun(shop: Shop, ingest: TableIngest, kept: Kept, batch: dict[Place, int], before: dict[Place, int]) -> Batch:
    ranges = [
        Range(*place, min(before.get(place, 0), end), end, is_first=place not in before)
        for place, end in batch.items()
        if place[0] in kept.topics
    ]
    chance = shop.world.random
    chance.shuffle(ranges)
    return ingest.batch(ranges, records_max=None if chance.random() < 0.7 else chance.randint(1, 20))


def _run_batch(shop: Shop, actor: Actor, batches: dict[str, Batch]) -> bool:
    """Advances the batches of all tables, in any order. Returns whether all of them read all that was planned."""
    world, whole = shop.world, True
    waiting: dict[str, WriteWork | None] = dict.fromkeys(batches)
    while waiting:
        path = world.random.choice(sorted(waiting))
        batch, work = batches[path], waiting[path]
        try:
            if work is None:
                waiting[path] = next(batch)
                continue
            rows = _done(world, work)
            world.may_crash(actor, f"after the parts of {Path(path).name} were written")
            waiting[path] = batch.send(rows)
            world.counts["worked again"] += 1
        except StopIteration as done:
            del waiting[path]
            result = done.value
            world.note(actor.name, f"{Path(path).name}: version {result.version}, read to {result.read_to}")
            world.counts["committed" if result.version is not None else "nothing to do"] += 1
            whole = whole and result.left == 0
        except (Retry, Contention) as error:
            del waiting[path]
            _give_up(batch, error)
            world.note(actor.name, f"{Path(path).name}: {error}")
            world.counts["failed"] += 1
            whole = False
    return whole


def _done(world: World, work: WriteWork) -> Written:
    """What the task of some work yields. It may fail, at any record, another one each time."""
    stream = work.task.stream
    assert isinstance(stream, RangeChanges) and isinstance(stream.source, SimulatedReader)
    stream.source.chance = random.Random(world.random.random())
    return in_this_process(work.task, work.ranges)


def _give_up(batch: Batch, error: Exception) -> None:
    """As a driver does whose task failed: the batch is told, and passes the error on. One that has ended does nothing."""
    with suppress(type(error)):
        batch.throw(error)


# -- what must hold ----------------------------------------------------------------------------------------------------


def _compare(shop: Shop, kept: Kept) -> None:
    table = lakebed.open(kept.path)
    log = TableLog(LocalLogStore(kept.path))
    ends = {place: end for place, end in shop.broker.ends().items() if place[0] in kept.topics}
    for version in range(log.refresh().version + 1):
        positions = _positions(log, version)
        found = _rows(table, version)
        expected = shop.broker.expected(kept.keyed, positions)
        name = f"{Path(kept.path).name} at version {version}, which has read {positions}"
        twice = [row for row, count in Counter(found).items() if count > 1]
        assert not twice, f"{name}: came twice: {twice[:3]}"
        assert found == expected, (
            f"{name}: missing {sorted(set(expected) - set(found))[:3]}, not to be there {sorted(set(found) - set(expected))[:3]}"
        )
        shop.world.counts["versions"] += 1
    read = {place: end for place, end in ends.items() if end}
    assert {place: end for place, end in positions.items() if end} == read, f"{kept.path} has not read all: {positions}"
    places = quarantined(kept)
    if shop.restores:  # what was read again is quarantined again
        places = sorted(set(places))
    assert places == sorted(shop.broker.unreadable(kept.topics)), f"the quarantine of {kept.path} holds {places}"
    shop.world.counts["quarantined"] += len(places)


def quarantined(kept: Kept) -> list[tuple[str, int, int]]:
    """Topic, partition and offset of each record in the quarantine of a table."""
    rows = lakebed.open(kept.path + QUARANTINE_SUFFIX).to_arrow(["topic", "partition", "offset"]).to_pylist()
    return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)


def _positions(log: TableLog, version: int) -> dict[Place, int]:
    return {
        (topic, partition): offset
        for topic, position in positions_of(log.at_version(version)).items()
        for partition, offset in position.offsets.items()
    }


def _rows(table: lakebed.Table, version: int) -> list[Row]:
    rows = table.to_arrow(version=version).to_pylist()
    return sorted((row["id"], row["place"], row.get(MORE)) for row in rows)
