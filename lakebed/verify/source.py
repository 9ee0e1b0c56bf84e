"""What the flow asks of a source of rows, and how fast it may ask."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.verify.canonical import LeftOut, Rule, Shape
from lakebed.verify.comparing import Key, Row, Span, States, Tally


class SourceType(Protocol):
    """A type of a column, as a database has it."""

    def rule(self, lake: pa.DataType) -> Rule | LeftOut:
        """How values of the type are compared with those of a column of a table."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """A column as the database has it. ``shown``: its type, for people."""

    name: str
    type: SourceType
    shown: str
    is_generated: bool = False


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


class SourceDatabase(Protocol):
    """A database, whatever makes it. A method raises Retry if it does not answer, InvalidInput if it refuses."""

    log_files: str
    """What the names of the files of its binary log begin with; empty if its log is one of bytes, as PostgreSQL's."""

    def close(self) -> None:
        """Let go of it."""
        ...

    def name(self) -> str:
        """What no other database has, as far as databases tell."""
        ...

    def columns(self, schema: str, table: str) -> Sequence[SourceColumn]:
        """The columns of a table, in their order. Raises InvalidInput if it is not there."""
        ...

    def table(self, schema: str, table: str, shape: Shape) -> SourceTable:
        """One of its tables."""
        ...

    def frozen(self, seconds_max: float) -> FrozenDatabase:
        """All of it as it is now, read in one transaction, which ends after so many seconds."""
        ...


class FrozenDatabase(Protocol):
    """A database as it was at one position: its transactions below it, and no other. Its tables' position is that one.

    A method raises Retry if it does not answer, InvalidInput if it refuses, or if the time is over.
    """

    def close(self) -> None:
        """End the transaction."""
        ...

    def position(self) -> int:
        """The position."""
        ...

    def table(self, schema: str, table: str, shape: Shape) -> Source:
        """One of its tables."""
        ...


class SourceTable(Source, Protocol):
    """One of its tables."""

    def condition(self, keys: Sequence[Key]) -> str:
        """What is true of the rows of some keys, in the SQL of the database, whatever the settings of a session are."""
        ...


class Connector(Protocol):
    """What reads the log of a database and writes the changes into Kafka."""

    def missing(self, position: int) -> str:
        """Why Kafka may not have every change below a position yet, for people; empty: it has them for good.

        Raises InvalidInput if nobody can know, Retry.
        """
        ...

    def nudge(self) -> None:
        """Write something that the connector will confirm, where that changes nothing. Raises InvalidInput if it is refused."""
        ...

    def close(self) -> None:
        """Let go of what it asks."""
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


def by_key(found: Iterable[Sequence[Any]], width: int) -> dict[Key, list[Sequence[Any]]]:
    """What is behind the first ``width`` values of rows, which are the canonical texts of a key."""
    out: dict[Key, list[Sequence[Any]]] = {}
    for row in found:
        out.setdefault(tuple(row[:width]), []).append(row[width:])
    return out


def kept_rows(found: Sequence[Sequence[Any]], width: int) -> pa.Table:
    """Rows of canonical keys and a checksum, as ``Source.checksums`` gives them."""
    columns = list(zip(*found, strict=True)) if found else [()] * (width + 1)
    arrays = [pa.array(column, pa.string()) for column in columns[:-1]]
    return pa.table([*arrays, pa.array(columns[-1], pa.int64())], [*(f"k{at}" for at in range(width)), "h"])


@dataclass(slots=True, kw_only=True)
class Limit:
    """How long a snapshot of a database may be read."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    began: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.clock()

    def require_time(self) -> None:
        """Raises InvalidInput if the time is over."""
        if self.clock() - self.began > self.seconds:
            raise InvalidInput(
                f"the snapshot was open for {self.seconds / 60:g} minutes, the limit, and is not read any more: raise "
                "database.verify.snapshot_minutes or rows_per_second, or name fewer tables"
            )


REST_SECONDS_MAX = 1.0


@dataclass(slots=True)
class Pace:
    """Keeps the rows that are read of a source below a number a second, over the whole run, and reads only when it may.

    Where rows are wide, a database can be busy all the time below any number. So each pause is as long as what was done since the
    last one, up to ``REST_SECONDS_MAX``: the session works half of the time at most. Without a number nothing is paused for.
    """

    rows_per_second: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    closed_seconds: Callable[[], float] = lambda: 0.0  # how long nothing may be read from now on
    _free_at: float = field(default=float("-inf"))
    _resumed_at: float = field(default=float("inf"))

    def took(self, rows: int) -> None:
        """Wait until so many rows may have been read, and at least as long as was worked since the last pause."""
        now = self.clock()
        if math.isfinite(self.rows_per_second):
            begun = max(self._free_at, now - 1.0)  # a pause is not made up for by a burst of more than a second
            self._free_at = begun + rows / self.rows_per_second
            until = max(self._free_at, now + min(now - self._resumed_at, REST_SECONDS_MAX))
            if until > now:
                self.sleep(until - now)
        while (closed := self.closed_seconds()) > 0:
            self.sleep(closed)
        self._resumed_at = self.clock()
