"""Looks at something again and again, as long as requests come: a request never waits for more than the look under way.

1. While requests come (the last one within ``IDLE_SECONDS``), a thread looks every ``interval_seconds``; otherwise it sleeps. A
   request that comes while it sleeps wakes it and waits for the next look.
2. Every ``RELOOK_SECONDS`` a look is due in full, because some things change without a new version. All of it takes at most a
   fifth of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

IDLE_SECONDS = 60.0
RELOOK_SECONDS = 30.0
LATE_SECONDS = 15.0
WAIT_SECONDS = 5.0
_CLOSE_SECONDS = 0.5
_SHARE = 0.2
T = TypeVar("T")


class Looking(Generic[T]):
    """A thread that looks, from ``start`` until ``close``."""

    def __init__(self, name: str, interval_seconds: float, look: Callable[[bool], T]) -> None:
        """``look``: takes whether a look is due in full, and never raises."""
        self._look = look
        self._interval_seconds = interval_seconds
        self._seen: T | None = None
        self._asked = 0.0
        self._began: float | None = None
        self._is_asleep = True
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._follow, name=f"lakebed-ui-{name}", daemon=True)

    @property
    def is_asleep(self) -> bool:
        """Whether nothing is read, because nobody has asked for a while."""
        return self._is_asleep

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop looking; waits at most ``_CLOSE_SECONDS`` for a look under way."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def ask(self) -> None:
        """Look, and keep looking for ``IDLE_SECONDS``."""
        with self._changed:
            self._asked = time.monotonic()
            self._changed.notify_all()

    def seen(self, deadline: float | None = None) -> tuple[T | None, bool]:
        """The result of the newest look, and whether the look under way is late.

        Without a result, or after a sleep, it waits for a look until ``deadline``; but not for one that has already taken
        ``WAIT_SECONDS``.
        """
        deadline = time.monotonic() + WAIT_SECONDS if deadline is None else deadline
        self.ask()
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    (self._seen is not None and not self._is_asleep) or self._is_closed or self._takes(WAIT_SECONDS)
                ),
                max(0.0, deadline - time.monotonic()),
            )
            return self._seen, self._takes(LATE_SECONDS)

    def _takes(self, seconds: float) -> bool:
        """Whether the look under way has taken longer than that."""
        return self._began is not None and time.monotonic() - self._began > seconds

    def _follow(self) -> None:
        full_at, pause = 0.0, 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, pause)
                if not self._is_wanted():
                    self._is_asleep = True
                    self._changed.wait_for(self._is_wanted)
                if self._is_closed:
                    return
                self._began = time.monotonic()
            began = time.monotonic()
            is_due = began - full_at >= RELOOK_SECONDS
            seen = self._look(is_due)
            ended = time.monotonic()
            full_at = ended if is_due else full_at
            with self._changed:
                self._seen, self._began, self._is_asleep = seen, None, False
                self._changed.notify_all()
            pause = max(self._interval_seconds, (ended - began) * (1 / _SHARE - 1))

    def _is_wanted(self) -> bool:
        return self._is_closed or (self._asked > 0 and time.monotonic() - self._asked < IDLE_SECONDS)
