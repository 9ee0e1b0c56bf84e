"""One run of the simulation for one seed."""

from __future__ import annotations

import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from lakebed.log.stores import LogStore, MemoryLogStore
from lakebed.log.table_log import TableLog
from tests.simulation import actors, maintainers, purger
from tests.simulation.actors import Cast
from tests.simulation.auditor import CLAIM_PREFIX, Auditor
from tests.simulation.files import Objects, SimulatedStorage
from tests.simulation.stand_ins import installed
from tests.simulation.world import TRACE_LINES, Actor, FailingStore, Faults, World

STEPS = 600
GUEST_STEPS = 100  # for each who is in some worlds only
PARTITIONED, PARTITIONERS = 0.6, (0, 1, 2)
PURGES, HOLDERS, HOLDER_WEIGHT = 0.4, 0.6, 0.7
LOG_RETENTION_SECONDS = (1, 60, 300, 20_000)
SKEWS_SECONDS = (0, 60, 1000, 3600)  # how far clocks are off: of two worlds each, one of four has no faults beside


@dataclass(frozen=True)
class Report:
    """What a run did."""

    seed: int
    versions: int
    counts: Counter[str]
    trace: tuple[str, ...]


def simulate(
    seed: int,
    steps: int = STEPS,
    new_store: Callable[[], LogStore] = MemoryLogStore,
    *,
    patient_holder: bool = False,
    replicating: bool = False,
) -> Report:
    """Run one world. Raises AssertionError naming the seed, with the end of the trace, if anybody complains.

    ``patient_holder``: a reader is there that holds what it reads past the retention, which few worlds have otherwise.
    ``replicating``: a reader is there that builds on its host what replicas merge on theirs.
    """
    calm = seed % 4 == 0  # every fourth world has no faults, so that races alone are seen too
    world = World(seed, Faults(0, 0, 0, 0, 0) if calm else Faults(), SKEWS_SECONDS[seed % 8 // 2])
    objects = Objects()
    auditor = Auditor(world, objects, log_retention_seconds=world.random.choice(LOG_RETENTION_SECONDS))
    with tempfile.TemporaryDirectory(prefix="lakebed-simulation-") as folder:
        cast = Cast(
            world,
            auditor,
            objects,
            new_store(),
            Path(folder),
            keyed=world.random.random() < 0.75,
            partitioned=world.random.random() < PARTITIONED,
            replicating=replicating,
        )
        try:
            with installed(world, cast.beats):
                _run(cast, steps, patient_holder)
        except Exception as error:
            trace = "\n".join(world.trace[-TRACE_LINES:])
            raise AssertionError(f"seed {seed}: {error}\n{trace}\n{traceback.format_exc(limit=-8)}") from error
    return Report(seed, auditor.newest.version + 1, world.counts, tuple(world.trace))


def _run(cast: Cast, steps: int, patient_holder: bool) -> None:
    world = cast.world
    nobody = Actor("nobody", lambda actor: None)
    actors.create(cast, without_faults(cast, nobody)[0])
    for number in range(world.random.randint(1, 2)):
        world.add(f"writer-{number}", actors.writer(cast, f"query-{number}"))
    if world.random.random() < 0.3:
        world.add("twin-0", actors.writer(cast, "query-0"))
    world.add("plain", actors.plain_writer(cast), 0.5)
    world.add("sleeper", actors.sleeper(cast))
    for number in range(world.random.randint(1, 2) if cast.keyed else 0):
        world.add(f"settler-{number}", maintainers.settler(cast))
    for number in range(world.random.randint(0, 2)):
        world.add(f"replica-{number}", maintainers.replica(cast), 0.7)
    hosts = [f"host-{world.random.randint(0, 1)}" for _ in range(world.random.choice((0, 1, 1, 2)))]
    for number, host in enumerate(hosts):
        world.add(f"volatile-{number}", maintainers.volatile_replica(cast, host, hosts.count(host)))
    for number in range(world.random.choice(PARTITIONERS)):
        world.add(f"partitioner-{number}", maintainers.partitioner(cast))
    guests = Random(world.seed)  # who they are changes nothing in the worlds without them
    restores, purges = guests.random() < 0.4, guests.random() < PURGES
    if restores:
        world.add("restorer", maintainers.restorer(cast), 0.7)
    if cast.expires:
        world.add("expirer", maintainers.expirer(cast), 0.7)
    if purges:
        world.add("purger", purger.purger(cast), 1.3)
    world.add("mutator", actors.mutator(cast), 0.6)
    world.add("caretaker", maintainers.caretaker(cast), 2 if cast.auditor.log_retention_seconds == 1 else 0.7)
    for number in range(world.random.randint(1, 2)):
        world.add(f"cleaner-{number}", maintainers.cleaner(cast))
    if world.random.random() < 0.6:
        world.add("reclusterer", maintainers.reclusterer(cast), 1.5)
    if world.random.random() < 0.6:
        world.add("sorter", actors.sorter(cast), 0.4)
    for number in range(world.random.choice((0, 1, 1, 2))):
        world.add(f"alterer-{number}", actors.alterer(cast))
    for number in range(2):
        world.add(f"setter-{number}", actors.setter(cast), 0.3)
    world.add("reader", actors.reader(cast), 0.7)
    if world.random.random() < HOLDERS or patient_holder:  # what is held keeps the log from being cleaned
        world.add("holder", actors.holder(cast, patient_holder), HOLDER_WEIGHT)
    world.add("clock", maintainers.clock(cast), 0.5)
    if cast.replicating:
        world.add("volatile-away", maintainers.volatile_replica(cast, "host away", 1), 3)
        world.add("replicating", maintainers.replicating_reader(cast), 4)
    world.run(steps + GUEST_STEPS * (cast.expires + restores + purges + 4 * cast.replicating))
    final_check(cast, *without_faults(cast, nobody))


def without_faults(cast: Cast, actor: Actor) -> tuple[TableLog, SimulatedStorage]:
    """The table as somebody sees it to whom nothing happens, while nobody else is there."""
    world = World(0, Faults(0, 0, 0, 0, 0))
    world.closing = True
    world.pause = lambda actor: None  # type: ignore[method-assign]
    store = FailingStore(cast.log_files, world, actor, cast.auditor.landed, cast.auditor.gone)
    log = TableLog(store, clock=lambda: cast.world.now, sleep=lambda _: None)
    return log, _Storage(cast, world, actor)


class _Storage(SimulatedStorage):
    """Names files by the run's own count, and tells its clock."""

    def __init__(self, cast: Cast, world: World, actor: Actor) -> None:
        super().__init__(cast.objects, world, actor, cast.auditor, cast.log_files, cast.folder)
        world.now, world.files = cast.world.now, cast.world.files + 1_000_000
        self.cast = cast

    def now(self) -> float:
        return self.cast.world.now


def final_check(cast: Cast, log: TableLog, storage: SimulatedStorage) -> None:
    """With nothing failing any more: all that was acknowledged is there, what is kept reads right, nothing is left over."""
    auditor = cast.auditor
    snapshot = log.refresh()
    assert snapshot.version == auditor.newest.version
    auditor.require(snapshot, "a fresh reader")
    for name, disk in cast.disks.items():
        assert disk.acknowledged == disk.batch, f"{name} did not finish batch {disk.batch}"
        assert snapshot.transaction_version(name) == disk.batch
    purger.put_in_order(cast, log, storage)
    maintainers.put_in_order(cast, log, storage)
    newest = auditor.newest
    assert not newest.tail
    claims = [name for name in newest.domains if name.startswith(CLAIM_PREFIX)]
    assert not claims, f"{claims} do not end"
    for version in range(max(auditor.oldest_readable(), auditor.mark()), newest.version + 1):
        auditor.require(log.at_version(version), "a fresh reader going back")
        lost = auditor.names(version) - cast.objects.data.keys()
        assert not lost, f"G1: version {version} lacks {sorted(lost)}"
    kept = auditor.needed()
    left = cast.objects.data.keys() - kept
    assert not left or not kept, f"{sorted(left)} are left over"
