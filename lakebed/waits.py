"""What the threads of this process wait for: requests to a store or a registry, records of a topic, a Spark job.

Who may wait for long says so with ``waiting_for``. ``Stuck`` names what has been waited for too long, so that a pipeline in which
nothing moves can say why.

**Single flight.** Several threads call a function; it executes once at a time, and the calls that wait share one execution.

1. If the function is not executing, a call executes it, in its own thread.
2. Else a call waits for the *next* execution: the current one may have read before the call was made, and would return what
   was true then. The first call that waits will execute the function; later ones share its result.
3. An execution that raises does so in its own thread alone. Calls that wanted to share its result start again at step 1.

So a result is never older than the call that it answers, and n calls at a time cost two executions at most, not n.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Executions of a function, at most one at a time. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: _Flight[T] | None = None
        self._next: _Flight[T] | None = None  # begins when the current one ends

    def __call__(self, function: Callable[[], T]) -> T:
        """The result of ``function``, executed after this call began. Raises what it raises. ``function`` must not call this."""
        while True:
            with self._lock:
                ahead, shared = self._running, self._next
                if ahead is None:
                    own = self._running = _Flight[T]()
                elif shared is None:
                    own = self._next = _Flight[T]()
            if ahead is None or shared is None:
                return self._lead(function, own, ahead)
            shared.ended.wait()
            if shared.result is not None:
                return shared.result[0]

    def _lead(self, function: Callable[[], T], own: _Flight[T], ahead: _Flight[T] | None) -> T:
        try:
            if ahead is not None:
                ahead.ended.wait()
            own.result = (function(),)
            return own.result[0]
        finally:
            with self._lock:
                if self._running is own:
                    self._running, self._next = self._next, None
                else:  # interrupted before its turn
                    self._next = None
            own.ended.set()


class _Flight(Generic[T]):
    """An execution; ``result`` is None until it has ended, and if it raised."""

    __slots__ = ("ended", "result")

    def __init__(self) -> None:
        self.ended = Event()
        self.result: tuple[T] | None = None


REQUEST_SECONDS = 15.0
"""No request takes so long that a store or a registry answers."""
BATCH_SECONDS = 60.0
"""A batch seldom takes so long, whatever it does."""
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class _Wait:
    """What is waited for, since when (monotonic seconds). ``is_work``: it may take long, as a Spark job may."""

    thread: str
    what: str
    since: float
    is_work: bool

    def said(self, now: float) -> str:
        """For people."""
        return f"{self.thread} has waited for {now - self.since:.0f} s for {self.what}"


_waiting: dict[int, _Wait] = {}


@contextmanager
def waiting_for(what: str, *, since: float | None = None, is_work: bool = False) -> Iterator[None]:
    """While it lasts, this thread waits for ``what``, such as "put of s3://bucket/a". ``since``: if it began before."""
    me = threading.get_ident()
    before = _waiting.get(me)
    _waiting[me] = _Wait(threading.current_thread().name, what, since or time.monotonic(), is_work)
    try:
        yield
    finally:
        if before is None:
            _waiting.pop(me, None)
        else:
            _waiting[me] = before


def waits() -> list[_Wait]:
    """What threads of this process wait for now, the longest first."""
    return sorted(list(_waiting.values()), key=lambda one: one.since)


@dataclass(slots=True)
class Stuck:
    """Finds out whether a pipeline gets on. One thread at a time."""

    clock: Callable[[], float] = time.monotonic
    _batches: int = -1
    _since: float = field(default=float("inf"))

    def found(self, batches: int, is_in_batch: bool) -> list[str]:
        """What has been waited for too long, a sentence each.

        Args:
            batches: How many batches have been committed.
            is_in_batch: Whether a batch is under way.
        """
        now = self.clock()
        if batches != self._batches or not is_in_batch:
            self._batches, self._since = batches, now
        waiting = waits()
        if now - self._since <= BATCH_SECONDS:
            late = [one for one in waiting if not one.is_work and now - one.since > REQUEST_SECONDS]
            return [one.said(now) for one in late[:_SHOWN_MAX]]
        said = [one.said(now) for one in waiting[:_SHOWN_MAX]] or ["what it waits for is not known"]
        return [f"a batch has not ended for {now - self._since:.0f} s", *said]
