"""What the flow asks of a source of rows, and how fast it may ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lakebed.verify.comparing import Key, Row, Span, States, Tally


class Source(Protocol):
    """One table of a database, read in short statements. Nothing is locked and nothing is written.

    A method raises Retry if the database does not answer, InvalidInput if it refuses.
    """

    def position(self) -> int:
        """A position of the source's log that everything which was read until now is below."""
        ...

    def bound(self, after: Key | None, rows: int) -> Key | None:
        """The key of the ``rows``-th row after a key; None if there are fewer."""
        ...

    def tally(self, span: Span) -> Tally:
        """The rows of a span."""
        ...

    def checksums(self, span: Span) -> Iterator[pa.Table]:
        """The rows of a span, piece by piece: the keys' texts as ``k0``, ``k1``, …, and the checksum ``h``."""
        ...

    def states(self, keys: Sequence[Key]) -> States:
        """The rows of some keys."""
        ...

    def rows(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        """The same with their values' texts."""
        ...


class Lake(Protocol):
    """One table of the lake."""

    def reach(self, position: int) -> None:
        """Go on with a version that has everything of the source up to a position. Raises Retry if none comes in time."""
        ...

    def tallies(self, spans: Sequence[Span]) -> Mapping[Span, Tally]:
        """The rows of spans, which follow each other."""
        ...

    def keep(self, rows: pa.Table) -> None:
        """Keep rows of the source, as ``Source.checksums`` gives them, for ``differing``."""
        ...

    def differing(self, spans: Sequence[Span] | None) -> int:
        """Compare what was kept with the table's rows of these spans, None: with all; returns how many keys differ."""
        ...

    def next_keys(self, count: int) -> Sequence[Key]:
        """The next keys that ``differing`` has found; empty if there are no more."""
        ...

    def states(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[int]]:
        """The checksums of the rows of some keys."""
        ...

    def rows(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        """The values' texts of the rows of some keys."""
        ...


@dataclass(slots=True)
class Pace:
    """Keeps the rows that are read of a source below a number a second, over the whole run, and reads only when it may."""

    rows_per_second: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    closed_seconds: Callable[[], float] = lambda: 0.0  # how long nothing may be read from now on
    _free_at: float = field(default=float("-inf"))

    def took(self, rows: int) -> None:
        """Wait as long as so many rows may take, less the time that has passed since the last call."""
        now = self.clock()
        begun = max(self._free_at, now - 1.0)  # a pause is not made up for by a burst of more than a second
        self._free_at = begun + rows / self.rows_per_second
        if self._free_at > now:
            self.sleep(self._free_at - now)
        while (closed := self.closed_seconds()) > 0:
            self.sleep(closed)
