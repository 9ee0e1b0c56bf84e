"""A fleet of workers on several tables of one simulated world: who is alive, who owns what, and what they do to the tables.

The workers are the real membership, the real hashing and the real decision what a table needs; they settle and merge as all
others do in the simulation. Clocks are apart, beats fail, workers crash and stop for long, and now and then a worker believes in
workers that there are not, or knows none but itself. When the faults end, some workers are gone for good; the others have to
find that out, and to settle every table. A table that nobody takes over makes the run fail: it does not come to its end.

In every second world one table has a part that kills each process which merges it.
"""

from __future__ import annotations

import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lakebed.compaction.merge import Merger
from lakebed.errors import Cancelled, Corrupt, Retry
from lakebed.fleet.membership import Membership, Worker, owner_of
from lakebed.fleet.watched import work_of
from lakebed.log.stores import MemoryLogStore
from lakebed.log.table_log import TableLog
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from tests.simulation import actors, maintainers
from tests.simulation.actors import Cast, Poison, forgive, rest
from tests.simulation.auditor import Auditor
from tests.simulation.files import Objects, SimulatedStorage
from tests.simulation.run import final_check, without_faults
from tests.simulation.stand_ins import installed
from tests.simulation.world import TRACE_LINES, Actor, FailingStore, Faults, World

STEPS = 900
SKEW_SECONDS = 3600.0
FAULTS = Faults(crash=0.003)


@dataclass
class Fleet:
    """Several tables in one world, and the log of the fleet."""

    world: World
    casts: dict[str, Cast]
    log_files: MemoryLogStore
    lives: int = 0

    def is_done(self) -> bool:
        """Whether all that was written is acknowledged and settled, and nothing fails any more."""
        written = all(disk.acknowledged == disk.batch for cast in self.casts.values() for disk in cast.disks.values())
        return self.world.closing and written and not any(cast.auditor.newest.tail for cast in self.casts.values())


def simulate_fleet(seed: int, steps: int = STEPS) -> Counter[str]:
    """Run one world; returns what happened. Raises AssertionError naming the seed, if anybody complains."""
    world = World(seed, FAULTS, SKEW_SECONDS)
    with tempfile.TemporaryDirectory(prefix="lakebed-simulation-") as folder:
        casts = {f"/lake/public/t{number}": _cast(world, Path(folder)) for number in range(world.random.randint(2, 4))}
        beats = next(iter(casts.values())).beats
        for number, cast in enumerate(casts.values()):
            cast.beats = beats
            cast.poison = Poison() if number == 0 and seed % 2 else None
        fleet = Fleet(world, casts, MemoryLogStore())
        try:
            with installed(world, beats):
                _run(fleet, steps)
        except Exception as error:
            trace = "\n".join(world.trace[-TRACE_LINES:])
            raise AssertionError(f"seed {seed}: {error}\n{trace}\n{traceback.format_exc(limit=-8)}") from error
    return world.counts


def _cast(world: World, folder: Path) -> Cast:
    objects = Objects()
    auditor = Auditor(world, objects, log_retention_seconds=world.random.choice((300, 20_000)))
    partitioned = world.random.random() < 0.5
    return Cast(world, auditor, objects, MemoryLogStore(), folder, keyed=True, partitioned=partitioned)


def _run(fleet: Fleet, steps: int) -> None:
    world, nobody = fleet.world, Actor("nobody", lambda actor: None)
    for number, cast in enumerate(fleet.casts.values()):
        actors.create(cast, without_faults(cast, nobody)[0])
        world.add(f"writer-{number}", actors.writer(cast, f"query-{number}"), 0.5)
        world.add(f"caretaker-{number}", maintainers.caretaker(cast), 0.4)
    workers = world.random.randint(2, 4)
    for number in range(workers):
        # The first one lives on; of the others some are gone when the faults end.
        world.add(f"worker-{number}", worker(fleet, dies=number > 0 and world.random.random() < 0.6), 2.0)
    world.add("clock", maintainers.clock(next(iter(fleet.casts.values()))), 0.3)
    world.run(steps)
    for cast in fleet.casts.values():
        assert not cast.auditor.newest.tail
        final_check(cast, *without_faults(cast, nobody))


def worker(fleet: Fleet, dies: bool) -> Callable[[Actor], None]:
    """One worker; each of its lives is another process. ``dies``: it is gone for good when the faults end."""

    def live(actor: Actor) -> None:
        world = fleet.world
        fleet.lives += 1
        name = f"{actor.name}-{fleet.lives}"
        store = FailingStore(fleet.log_files, world, actor, lambda name, data: None, lambda name: None)
        log = TableLog(store, clock=lambda: world.clock(actor), sleep=lambda seconds: world.sleep(actor, seconds))
        membership = Membership(log, Worker(id=name, host="here", cores=1.0), lambda: world.clock(actor))
        opened: dict[str, tuple[TableLog, SimulatedStorage, Merger]] = {}
        while not fleet.is_done() and not (dies and world.closing):
            world.begin_anew(actor)
            try:
                membership.beat()
                if world.random.random() < 0.2:
                    membership.tidy()
            except Retry as error:
                forgive(error)
            alive = _believed(world, name, membership.alive())
            for root, cast in fleet.casts.items():
                if owner_of(root, alive) == name:
                    if root not in opened:
                        opened[root] = _opened(cast, actor, name)
                    _visit(cast, actor, *opened[root])
            rest(next(iter(fleet.casts.values())), actor, 4)

    return live


def _believed(world: World, name: str, alive: dict[str, float]) -> dict[str, float]:
    """Who is alive, as a worker believes: now and then it is wrong."""
    draw = 1.0 if world.closing else world.random.random()
    if draw < 0.3:
        world.counts["alone"] += 1
        return {name: 1.0}
    if draw < 0.4:
        world.counts["ghosts"] += 1
        return alive | {f"ghost-{number}": 1.0 for number in range(3)}
    return alive


def _opened(cast: Cast, actor: Actor, name: str) -> tuple[TableLog, SimulatedStorage, Merger]:
    log, storage = cast.open(actor)
    lease_seconds = maintainers.LEASE_SECONDS
    merger = Merger(log, storage, DeletionVectorCache(storage), name, lambda: cast.world.clock(actor), lease_seconds)
    return log, storage, merger


def _visit(cast: Cast, actor: Actor, log: TableLog, storage: SimulatedStorage, merger: Merger) -> None:
    """What a worker does for a table that it takes for its own."""
    world = cast.world
    world.begin_anew(actor)
    try:
        snapshot = log.refresh()
        cast.auditor.require(snapshot, f"{actor.name} refreshed")
        work = work_of(snapshot, int(world.clock(actor) * 1000), log.statistics)
        world.counts["looks"] += 1
        if snapshot.tail and (work.why or world.closing):
            world.counts["settles"] += maintainers.settle_all(log, storage).commits
        if world.random.random() < 0.2:
            merger.tidy()
        elif not world.closing:
            maintainers.merge_some(cast, actor, log, storage, merger)
    except (Retry, Cancelled, FileNotFoundError, Corrupt) as error:
        forgive(error)
