"""One thread at a time, by the draw of one seed: the clock, the scheduler, and the store that fails.

Every actor is a thread, and only the one that holds the baton runs. Before each store operation and each sleep it draws
who goes on, and hands the baton over. So a run is the same for the same seed, and any two operations of different actors
meet in either order.

What may happen at a store operation, drawn from the seed:
- it works, after time has passed;
- it fails before it did anything, or after it did it (the answer was lost);
- a put is delayed: its answer is lost, and it lands some steps later, perhaps when its writer has long gone on;
- its actor is cut off for a while: all its operations fail, before or after they did what they do;
- its actor crashes just before or just after it, losing everything it had in memory, and starts anew;
- its actor stops before it for as long as others need for hundreds of steps, and goes on as if nothing had been.
An object is never torn and ``put_if_absent`` is atomic: that is what the stores promise and their own tests check.

Every actor has a clock of its own (``clock``), which is wrong by up to ``skew_seconds`` either way, and is set anew now and then.

Now and then the time jumps by days, past every retention. A cleanup relies on no writer taking that long from writing a
file to committing it, unless a live claim protects the file. So a jump waits until nobody has such a file (``jump``), and lets
nobody begin one meanwhile.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from lakebed.errors import StoreUnavailable
from lakebed.log.stores import LogStore

T = TypeVar("T")

START = 1_700_000_000.0
STEPS_MAX_TO_QUIESCE = 20_000
JUMP_SLACK_SECONDS = 2_000.0  # no run takes longer beside its jumps
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
    stop: float = 0.004
    stop_steps: int = 500


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
    crashed: bool = False  # whatever its code still tries to do, the process is gone
    cut_off: int = 0  # operations that are still to fail
    cut_short: bool = False  # the run was over before it was
    stopped_until: int = 0  # the step until which it does not go on
    clock_error: float | None = None  # seconds that its clock is ahead
    uncommitted: set[str] = field(default_factory=set)  # files it wrote that no commit names yet
    claim: str = ""  # the entry of the log that protects them, if there is one
    claimed_until: float = 0.0
    baton: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None


class World:
    """The clock, the actors and the faults of one run."""

    def __init__(self, seed: int, faults: Faults, skew_seconds: float = 0.0) -> None:
        self.seed = seed
        self.skew_seconds = skew_seconds
        self.random = random.Random(seed)
        self.faults = faults
        self.now = START
        self.counts: Counter[str] = Counter()
        self.files = 0  # names given to files so far
        self.trace: list[str] = []
        self.closing = False  # no more faults, and actors end when they have nothing unfinished
        self.stopped = False
        self.jumps = 0
        self._jump_seconds = 0.0  # a jump that waits for its moment
        self._actors: list[Actor] = []
        self._delayed: list[tuple[str, Callable[[], object]]] = []
        self._over = threading.Lock()
        self._steps_left = 0
        self._step = 0
        self._failure: BaseException | None = None

    def add(self, name: str, body: Callable[[Actor], None], weight: float = 1.0) -> None:
        """Let an actor take part."""
        self._actors.append(Actor(name, body, weight))

    def run(self, steps: int) -> None:
        """Run ``steps`` steps with faults, then without until every actor has finished. Raises what an actor raised."""
        self._steps_left = steps
        self._over.acquire()
        for actor in self._actors:
            actor.baton.acquire()
            actor.thread = threading.Thread(target=self._live, args=(actor,), name=actor.name, daemon=True)
            actor.thread.start()
        self._draw().baton.release()  # type: ignore[union-attr]
        self._over.acquire()
        self.stopped = True
        for actor in self._actors:
            if not actor.finished:
                actor.baton.release()
            if actor.thread:
                actor.thread.join(60)
        if self._failure is not None:
            raise self._failure
        waiting = [actor.name for actor in self._actors if not actor.finished or actor.cut_short]
        assert not waiting, f"{waiting} did not finish though nothing fails any more"

    def clock(self, actor: Actor) -> float:
        """What an actor's clock says."""
        if actor.clock_error is None or (self.skew_seconds and self.random.random() < 0.005):
            actor.clock_error = self.random.uniform(-self.skew_seconds, self.skew_seconds) if self.skew_seconds else 0.0
        return self.now + actor.clock_error

    def note(self, actor: str, text: str) -> None:
        """A line of the trace, which is printed when the run fails."""
        self.trace.append(f"{self.now - START:9.2f} {actor:>12} {text}")

    def pause(self, actor: Actor) -> None:
        """Hand the baton over and wait for it; time passes."""
        self._end_if_stopped(actor)
        if actor.crashed:
            raise Crash
        if not self.closing and self.random.random() < self.faults.stop:
            self.counts["stop"] += 1
            actor.stopped_until = self._step + self.random.randrange(self.faults.stop_steps)
        following = None if self.stopped or self._failure else self._draw()
        if following is not actor:
            (following.baton if following else self._over).release()
            actor.baton.acquire()
        self._end_if_stopped(actor)
        self.now += self.random.random() * 2.0

    def _end_if_stopped(self, actor: Actor) -> None:
        if self.stopped:
            actor.cut_short = True
            raise Stop

    def sleep(self, actor: Actor, seconds: float) -> None:
        """What the code under test calls to wait: others run meanwhile."""
        self.now += seconds
        self.pause(actor)

    def jump(self, actor: Actor, seconds: float) -> None:
        """Let the clock jump, as soon as nobody has a file that is written and not committed."""
        self._jump_seconds = seconds
        while self._jump_seconds and not self.closing:
            after = self.now + seconds + JUMP_SLACK_SECONDS
            if not self._delayed and not any(a.uncommitted and a.claimed_until < after for a in self._actors):
                self.now += seconds
                self.jumps += 1
                self.counts["jump"] += 1
                self.note(actor.name, f"the clock jumps by {seconds:.0f} s")
                break
            self.pause(actor)
        self._jump_seconds = 0.0

    def begin_anew(self, actor: Actor) -> None:
        """What an actor wrote and did not commit by now, it will not commit."""
        actor.uncommitted.clear()
        actor.claim, actor.claimed_until = "", 0.0

    def begin_file(self, actor: Actor, path: str) -> None:
        """An actor is about to write a file that a later commit will name."""
        while self._jump_seconds and not actor.uncommitted and not self.closing:
            self.pause(actor)
        actor.uncommitted.add(path)

    def is_uncommitted(self, path: str, but: Actor, claims: Collection[str]) -> bool:
        """Whether an actor other than one is about to commit a file; one whose claim has ended will not."""
        return any(
            path in actor.uncommitted and (not actor.claim or actor.claim in claims)
            for actor in self._actors
            if actor is not but
        )

    def committed(self, paths: Collection[str]) -> None:
        """A commit names these files now."""
        for actor in self._actors:
            actor.uncommitted.difference_update(paths)

    def fenced(self) -> None:
        """Whatever was written by now and is not committed will not be."""
        for actor in self._actors:
            actor.uncommitted.clear()

    def may_crash(self, actor: Actor, where: str) -> None:
        """Perhaps the actor's process ends here."""
        if not self.closing and self.random.random() < self.faults.crash / 2:
            self.counts["crash"] += 1
            self.note(actor.name, f"CRASH {where}")
            actor.crashed = True
            raise Crash

    def operate(
        self, actor: Actor, what: str, act: Callable[[], T], can_be_delayed: bool = False, often_alone: bool = False
    ) -> T:
        """An operation on a shared store: it works, or whatever else may happen to it.

        ``often_alone``: others come in between only now and then, as it is one of many that change nothing.
        """
        if not often_alone or self.random.random() < 0.3:
            self.pause(actor)
        self.counts["operations"] += 1
        self.may_crash(actor, f"before {what}")
        fate = self.fate(actor, can_be_delayed)
        self.note(actor.name, f"{what}: {fate}")
        if fate == "before":
            raise StoreUnavailable(f"simulated: {what} failed")
        if fate == "delayed":
            self._delayed.append((what, act))
            self.may_crash(actor, f"after {what}")
            raise StoreUnavailable(f"simulated: the answer to {what} was lost, and it has not landed yet")
        result = self._audited(act)
        self.may_crash(actor, f"after {what}")
        if fate == "after":
            raise StoreUnavailable(f"simulated: the answer to {what} was lost")
        return result

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

    def _audited(self, act: Callable[[], T]) -> T:
        """What the auditor complains of ends the run, whoever might catch it."""
        try:
            return act()
        except AssertionError as error:
            self._failure = self._failure or error
            raise

    def _draw(self) -> Actor | None:
        """Who goes on; None if the run is over. Before that, delayed puts may land."""
        while True:
            self._steps_left -= 1
            self._step += 1
            if self._steps_left == 0 and not self.closing:
                self.closing, self._steps_left = True, STEPS_MAX_TO_QUIESCE
            ready = [actor for actor in self._actors if not actor.finished]
            if self._steps_left == 0 or not (ready or self._delayed):
                return None
            if self._delayed and (self.closing or self.random.random() < 0.04):
                what, land = self._delayed.pop(self.random.randrange(len(self._delayed)))
                self.note("network", f"lands {what}")
                self._audited(land)
            elif ready:
                going = [actor for actor in ready if actor.stopped_until <= self._step or self.closing]
                ready = going or ready
                return self.random.choices(ready, [actor.weight for actor in ready])[0]

    def _live(self, actor: Actor) -> None:
        actor.baton.acquire()
        following: Actor | None = None
        try:
            while not self.stopped:
                try:
                    actor.body(actor)
                except Crash:
                    actor.crashed = False
                self.begin_anew(actor)
                actor.clock_error = None
                if self.closing:
                    break
                self.pause(actor)
            actor.finished = True
            following = self._draw()
        except Stop:
            actor.finished = True
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            actor.finished = True
            if not self.stopped:
                (following.baton if following else self._over).release()


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
        read = partial(self._inner.read, name)
        return self._world.operate(self._actor, f"read {name}", read, often_alone=True)

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
        return self._world.operate(self._actor, what, act, can_be_delayed)
