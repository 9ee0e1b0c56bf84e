"""How many requests a store made and how many bytes they carried, by operation: what an object store bills.

``StoreCounters`` is an immutable value (picklable, so a task can send it to the driver; values can be added, so a
job can sum them up, and subtracted, so an operation can report its cost). ``RequestCounter`` is the live count behind it. Every
attempt counts, also one that failed: it is billed too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class OperationCount:
    """The cost of one kind of operation."""

    requests: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: OperationCount) -> OperationCount:
        return OperationCount(
            self.requests + other.requests,
            self.failures + other.failures,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )

    def __sub__(self, other: OperationCount) -> OperationCount:
        return OperationCount(
            self.requests - other.requests,
            self.failures - other.failures,
            self.bytes_read - other.bytes_read,
            self.bytes_written - other.bytes_written,
        )


_NONE = OperationCount()


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """Costs by operation; operations that never ran are absent."""

    operations: Mapping[str, OperationCount] = field(default_factory=dict)

    @property
    def total(self) -> OperationCount:
        """All operations together."""
        return sum(self.operations.values(), _NONE)

    def __add__(self, other: StoreCounters) -> StoreCounters:
        names = sorted(self.operations.keys() | other.operations.keys())
        return StoreCounters({n: self.operations.get(n, _NONE) + other.operations.get(n, _NONE) for n in names})

    def __sub__(self, earlier: StoreCounters) -> StoreCounters:
        """The costs since ``earlier``, a value of the same store."""
        left = {n: count - earlier.operations.get(n, _NONE) for n, count in self.operations.items()}
        return StoreCounters({n: count for n, count in left.items() if count != _NONE})


class RequestCounter:
    """Counts as the requests happen; safe to share between threads. A copy sent to another process starts at zero."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, OperationCount] = {}

    def count(self, operation: str, *, failures: int = 0, bytes_read: int = 0, bytes_written: int = 0) -> None:
        """Add one request."""
        one = OperationCount(1, failures, bytes_read, bytes_written)
        with self._lock:
            self._counts[operation] = self._counts.get(operation, _NONE) + one

    def value(self) -> StoreCounters:
        """The counts so far."""
        with self._lock:
            return StoreCounters(dict(self._counts))

    def __reduce__(self) -> tuple[Any, ...]:
        return (RequestCounter, ())
