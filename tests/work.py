"""How much work something is, counted and not timed: the same on a busy machine as on a quiet one."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType


@dataclass(frozen=True, slots=True)
class Work:
    """``calls``: of functions, Python's and an extension's; ``bytes_max``: what was allocated at once, NumPy's arrays too."""

    calls: int
    bytes_max: int

    def is_at_most(self, factor: float, other: Work) -> bool:
        """Neither count is more than so many times the other's."""
        return self.calls <= factor * other.calls and self.bytes_max <= factor * other.bytes_max


def work_of(run: Callable[[], object]) -> Work:
    """What a call does in this thread. What an extension does within a call (a sort, a query) is one call."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    tracemalloc.start()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
        _, bytes_max = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return Work(calls, bytes_max)
