"""One run of the simulation for one seed."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from unittest.mock import patch

from lakebed.manifest import table_log
from lakebed.manifest.checkpoint import decode_checkpoint
from lakebed.manifest.log_store import LogStore
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.stores import MemoryLogStore
from lakebed.manifest.table_log import TableLog
from tests.simulation import actors
from tests.simulation.auditor import Auditor
from tests.simulation.world import TRACE_LINES, Actor, FailingStore, Faults, World

STEPS = 500


@lru_cache(maxsize=64)
def _decoded(version: int, files: tuple[bytes, ...]) -> Snapshot:
    return decode_checkpoint(version, files)


def decode_once(version: int, files: list[bytes]) -> Snapshot:
    """``decode_checkpoint``, remembered: a pure function of bytes, called by every log that is opened."""
    return _decoded(version, tuple(files))


@dataclass(frozen=True)
class Report:
    """What a run did."""

    seed: int
    versions: int
    counts: Counter[str]
    trace: tuple[str, ...]

    def __str__(self) -> str:
        counted = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return f"seed {self.seed}: {self.versions} versions, {counted}"


def simulate(seed: int, steps: int = STEPS, new_store: Callable[[], LogStore] = MemoryLogStore) -> Report:
    """Run one world. Raises AssertionError naming the seed, with the end of the trace, if anybody complains."""
    calm = seed % 4 == 0  # every fourth world has no faults, so that races alone are seen too
    world = World(seed, Faults(0, 0, 0, 0, 0) if calm else Faults())
    auditor = Auditor()
    inner = new_store()

    def open_log(actor: Actor) -> TableLog:
        store = FailingStore(inner, world, actor, auditor.landed, auditor.gone)
        return TableLog(store, clock=lambda: world.now, sleep=lambda seconds: world.sleep(actor, seconds))

    cast = actors.Cast(world, auditor, open_log)
    try:
        inner_log = TableLog(_Watched(inner, auditor), clock=lambda: world.now, sleep=lambda _: None)
        actors.create(cast, inner_log)
        for number in range(world.random.randint(1, 3)):
            world.add(f"writer-{number}", actors.writer(cast, f"query-{number}"))
        if world.random.random() < 0.3:
            world.add("twin-0", actors.writer(cast, "query-0"))
        world.add("plain", actors.plain_writer(cast), 0.5)
        for number in range(world.random.randint(1, 2)):
            world.add(f"settler-{number}", actors.settler(cast))
        for number in range(world.random.randint(1, 3)):
            world.add(f"replica-{number}", actors.replica(cast), 0.7)
        for number in range(world.random.randint(1, 2)):
            world.add(f"caretaker-{number}", actors.caretaker(cast))
        for number in range(2):
            world.add(f"setter-{number}", actors.setter(cast), 0.4)
        world.add("reader", actors.reader(cast))
        with patch.object(table_log, "decode_checkpoint", decode_once):
            world.run(steps)
        fresh = TableLog(inner, clock=lambda: world.now, sleep=lambda _: None)
        actors.final_check(cast, fresh, fresh.refresh())
    except Exception as error:
        trace = "\n".join(world.trace[-TRACE_LINES:])
        raise AssertionError(f"seed {seed}: {error}\n{trace}\n{traceback.format_exc(limit=-6)}") from error
    return Report(seed, auditor.newest.version + 1, world.counts, tuple(world.trace))


class _Watched:
    """The store before anything fails, with the auditor looking on."""

    def __init__(self, inner: LogStore, auditor: Auditor) -> None:
        self._inner, self._auditor = inner, auditor
        self.put, self.read, self.list_from, self.delete = inner.put, inner.read, inner.list_from, inner.delete

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See ``LogStore``."""
        landed = self._inner.put_if_absent(name, data)
        if landed:
            self._auditor.landed(name, data)
        return landed
