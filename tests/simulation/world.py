"""One thread at a time, by the draw of one seed: the clock, the scheduler, and the store that fails.

Every actor is a thread, and only the one that holds the baton runs. It gives the baton back before each store operation
and each sleep; the scheduler then draws who goes on. So a run is the same for the same seed, and any two operations of
different actors meet in either order.

What may happen at a store operation, drawn from the seed:
- it works, after time has passed;
- it fails before it did anything, or after it did it (the answer was lost);
- a put is delayed: its answer is lost, and it lands some steps later, perhaps when its writer has long gone on;
- its actor is cut off for a while: all its operations fail, before or after they did what they do;
- its actor crashes just before or just after it, losing everything it had in memory, and starts anew.
An object is never torn and ``put_if_absent`` is atomic: that is what the stores promise and their own tests check.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from lakebed.errors import StoreUnavailable
from lakebed.manifest.log_store import LogStore

T = TypeVar("T")

STEPS_MAX_TO_QUIESCE = 20_000
TRACE_LINES = 60


@dataclass(frozen=True, slots=True)
class Faults:
    """How often an operation goes wrong, 0 to 1."""

    before: float = 0.02
    after: float = 0.03
    delayed: float = 0.06
    crash: float = 0.01
    outage: float = 0.004
    outage_operations: int = 24


class Crash(BaseException):
    """The process of an actor is gone. Not an Exception: nothing in the code under test may catch it."""


class Stop(BaseException):
    """The simulation is over."""


@dataclass
class Actor:
    """A thread with a name, a body that is called again after it returned or crashed, and a weight in the draw."""

    name: str
    body: Callable[[Actor], None]
    weight: float = 1.0
    finished: bool = False
    cut_off: int = 0  # operations that are still to fail
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    thread: threading.Thread | None = None


class World:
    """The clock, the actors and the faults of one run."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.faults = faults
        self.now = 1_700_000_000.0
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self.closing = False  # no more faults, and actors end when they have nothing unfinished
        self.stopped = False
        self._actors: list[Actor] = []
        self._delayed: list[tuple[str, Callable[[], object]]] = []
        self._scheduler = threading.Semaphore(0)
        self._failure: BaseException | None = None

    def add(self, name: str, body: Callable[[Actor], None], weight: float = 1.0) -> None:
        """Let an actor take part."""
        self._actors.append(Actor(name, body, weight))

    def run(self, steps: int) -> None:
        """Run ``steps`` steps with faults, then without until every actor has finished. Raises what an actor raised."""
        for actor in self._actors:
            actor.thread = threading.Thread(target=self._live, args=(actor,), name=actor.name, daemon=True)
            actor.thread.start()
        try:
            for _ in range(steps):
                self._step()
            self.closing = True
            for _ in range(STEPS_MAX_TO_QUIESCE):
                if all(actor.finished for actor in self._actors) and not self._delayed:
                    return
                self._step()
            waiting = [actor.name for actor in self._actors if not actor.finished]
            raise AssertionError(f"{waiting} did not finish though nothing fails any more")
        finally:
            self.stopped = True
            for actor in self._actors:
                if not actor.finished:
                    actor.baton.release()
                    self._scheduler.acquire()
            for actor in self._actors:
                if actor.thread:
                    actor.thread.join(10)

    def note(self, actor: str, text: str) -> None:
        """A line of the trace, which is printed when the run fails."""
        self.trace.append(f"{self.now - 1_700_000_000:9.2f} {actor:>12} {text}")

    def pause(self, actor: Actor) -> None:
        """Give the baton back and wait for it; time passes."""
        self._scheduler.release()
        actor.baton.acquire()
        if self.stopped:
            raise Stop
        self.now += self.random.random() * 2.0

    def sleep(self, actor: Actor, seconds: float) -> None:
        """What the code under test calls to wait: others run meanwhile."""
        self.now += seconds
        self.pause(actor)

    def may_crash(self, actor: Actor, where: str) -> None:
        """Perhaps the actor's process ends here."""
        if not self.closing and self.random.random() < self.faults.crash / 2:
            self.counts["crash"] += 1
            self.note(actor.name, f"CRASH {where}")
            raise Crash

    def fate(self, actor: Actor, can_be_delayed: bool) -> str:
        """Draws what happens to an operation: ``works``, ``before``, ``after`` or ``delayed``."""
        if self.closing:
            return "works"
        if self.random.random() < self.faults.outage:
            self.counts["outage"] += 1
            actor.cut_off = self.faults.outage_operations
        if actor.cut_off:
            actor.cut_off -= 1
            return "before" if self.random.random() < 0.9 else "after"
        draw = self.random.random()
        for fate, rate in (
            ("before", self.faults.before),
            ("after", self.faults.after),
            ("delayed", self.faults.delayed),
        ):
            if draw < rate:
                if fate == "delayed" and not can_be_delayed:
                    return "works"
                self.counts[fate] += 1
                return fate
            draw -= rate
        return "works"

    def delay(self, what: str, land: Callable[[], object]) -> None:
        """Keep a put that is still under way."""
        self._delayed.append((what, land))

    def _step(self) -> None:
        if self._delayed and (self.closing or self.random.random() < 0.04):
            what, land = self._delayed.pop(self.random.randrange(len(self._delayed)))
            self.note("network", f"lands {what}")
            land()
            return
        ready = [actor for actor in self._actors if not actor.finished]
        if not ready:
            return
        actor = self.random.choices(ready, [actor.weight for actor in ready])[0]
        actor.baton.release()
        self._scheduler.acquire()
        if self._failure is not None:
            raise self._failure

    def _live(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            while not (self.closing and actor.finished) and not self.stopped:
                try:
                    actor.body(actor)
                except Crash:
                    self.pause(actor)
                    continue
                if self.closing:
                    break
                self.pause(actor)
        except Stop:
            pass
        except BaseException as error:
            self._failure = error
        finally:
            actor.finished = True
            self._scheduler.release()


class FailingStore:
    """The shared store as one actor sees it. ``landed`` and ``gone`` tell the auditor what really happened."""

    def __init__(
        self,
        inner: LogStore,
        world: World,
        actor: Actor,
        landed: Callable[[str, bytes], None],
        gone: Callable[[str], None],
    ) -> None:
        self._inner, self._world, self._actor = inner, world, actor
        self._landed, self._gone = landed, gone

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See ``LogStore``."""

        def put() -> bool:
            if not self._inner.put_if_absent(name, data):
                return False
            self._landed(name, data)
            return True

        return self._run(f"put_if_absent {name}", put, can_be_delayed=True)

    def put(self, name: str, data: bytes) -> None:
        """See ``LogStore``."""

        def put() -> None:
            self._inner.put(name, data)
            self._landed(name, data)

        self._run(f"put {name}", put, can_be_delayed=True)

    def read(self, name: str) -> bytes:
        """See ``LogStore``."""
        return self._run(f"read {name}", lambda: self._inner.read(name))

    def list_from(self, folder: str, start: str) -> list[str]:
        """See ``LogStore``."""
        return self._run(f"list {folder} from {start}", lambda: self._inner.list_from(folder, start))

    def delete(self, name: str) -> None:
        """See ``LogStore``."""

        def delete() -> None:
            self._inner.delete(name)
            self._world.counts["deleted"] += 1
            self._gone(name)

        self._run(f"delete {name}", delete)

    def _run(self, what: str, act: Callable[[], T], can_be_delayed: bool = False) -> T:
        world, actor = self._world, self._actor
        world.pause(actor)
        world.counts["operations"] += 1
        world.may_crash(actor, f"before {what}")
        fate = world.fate(actor, can_be_delayed)
        world.note(actor.name, f"{what}: {fate}")
        if fate == "before":
            raise StoreUnavailable(f"simulated: {what} failed")
        if fate == "delayed":
            world.delay(what, act)
            world.may_crash(actor, f"after {what}")
            raise StoreUnavailable(f"simulated: the answer to {what} was lost, and it has not landed yet")
        result = act()
        world.may_crash(actor, f"after {what}")
        if fate == "after":
            raise StoreUnavailable(f"simulated: the answer to {what} was lost")
        return result
