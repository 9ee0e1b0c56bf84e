"""The clock of a test: the code under test asks it what time it is, and only the test moves it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Seconds that a test sets. Give it where the code takes a ``clock``, and ``clock.sleep`` where it takes a ``sleep``."""

    now: float = 1_000.0
    # By how much it moves whenever it is asked.
    step: float = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now

    def sleep(self, seconds: float) -> None:
        """Time passes, and nobody waits for it."""
        self.now += seconds
