"""One run at a time of a call that several threads make, shared by those that wait.

1. A call that finds none running runs, in its own thread.
2. A call that finds one running waits for the *next* run: the running one may have read before the call was made, and would
   return what was true then. The first call that waits will run; those after it share its result.
3. A run that raises does so in its own thread alone. Calls that wanted to share its result start again at step 1.

So a result is never older than the call that it answers, and n calls at a time cost two runs at most, not n.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs of one thing, at most one at a time. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: _Flight[T] | None = None
        self._next: _Flight[T] | None = None  # begins when the running one ends

    def __call__(self, run: Callable[[], T]) -> T:
        """What ``run`` returns, in a run that began after this call. Raises what it raises. ``run`` must not come here again."""
        while True:
            with self._lock:
                ahead, shared = self._running, self._next
                if ahead is None:
                    own = self._running = _Flight[T]()
                elif shared is None:
                    own = self._next = _Flight[T]()
            if ahead is None or shared is None:
                return self._lead(run, own, ahead)
            shared.ended.wait()
            if shared.result is not None:
                return shared.result[0]

    def _lead(self, run: Callable[[], T], own: _Flight[T], ahead: _Flight[T] | None) -> T:
        try:
            if ahead is not None:
                ahead.ended.wait()
            own.result = (run(),)
            return own.result[0]
        finally:
            with self._lock:
                if self._running is own:
                    self._running, self._next = self._next, None
                else:  # interrupted before its turn
                    self._next = None
            own.ended.set()


class _Flight(Generic[T]):
    """A run; ``result`` is None until it has ended, and if it raised."""

    __slots__ = ("ended", "result")

    def __init__(self) -> None:
        self.ended = Event()
        self.result: tuple[T] | None = None
