"""Several threads call a function; it executes once at a time, and the calls that wait share one execution.

1. If the function is not executing, a call executes it, in its own thread.
2. Else a call waits for the *next* execution: the current one may have read before the call was made, and would return what
   was true then. The first call that waits will execute the function; later ones share its result.
3. An execution that raises does so in its own thread alone. Calls that wanted to share its result start again at step 1.

So a result is never older than the call that it answers, and n calls at a time cost two executions at most, not n.
"""

from __future__ import annotations

from collections.abc import Callable
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
