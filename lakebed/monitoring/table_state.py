"""The figures of a table: at one moment, and those of its commits of the last hour, the same in every process.

Beside the figures of the snapshot itself (``coordination.table_figures``) they include those that need the planner or the commits
of the last hour; ``health.sampler`` adds these.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from lakebed.coordination.table_figures import TableFigures
from lakebed.errors import Corrupt
from lakebed.log.actions import AddChangePart, AddPart, Commit, RemoveChangePart, RemovePart, part_domain
from lakebed.log.commit_kind import CommitKind, kind_of
from lakebed.log.entries import Operation
from lakebed.log.table_log import TableLog
from lakebed.positions.verified import Verified

LevelState = tuple[int, str]
"""A level, and normal, materialized or volatile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The planner's figures for a snapshot."""

    backlog_bytes: int = 0
    depth_max: int = 0  # in runs of parts
    plans: Mapping[str, int] = field(default_factory=dict)  # counts by kind
    refused: Mapping[str, int] = field(default_factory=dict)  # counts by cause
    backpressure_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Clustered:
    """Averages over the parts of the base."""

    depth_average: float = 0.0
    overlaps_average: float = 0.0


@dataclass(frozen=True, slots=True)
class Stored:
    """What lies below the table's root. Orphans: unreferenced files that running maintenance would have deleted by now."""

    bytes: int
    orphans: int
    orphan_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """What the commits of the last hour brought. Amplifications are None if nothing came in."""

    seconds: float = 0.0  # how much of that hour has been read so far
    batches: int = 0  # commits that brought rows
    ingested_rows: int = 0
    ingested_bytes: int = 0
    written_bytes: Mapping[str, int] = field(default_factory=dict)  # by who wrote them
    commits: Mapping[str, int] = field(default_factory=dict)
    write_amplification: float | None = None
    write_amplification_reference: float | None = None
    # epoch seconds at which rows last came in, but at least an hour ago; None if it is not known yet
    ingested_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState(TableFigures):
    """The figures of a version, and others beside them; None is not known (yet)."""

    # counts of what is not in the base: materialized and volatile parts by level
    parts_by_state: Mapping[LevelState, int] = field(default_factory=dict)
    bytes_by_state: Mapping[LevelState, int] = field(default_factory=dict)
    planned: Planned | None = None
    clustered: Clustered | None = None
    recent: Recent | None = None
    stored: Stored | None = None
    quarantine_rows: int | None = None
    parked_parts: int | None = None  # parts that are left alone because merges of them failed
    verified: Verified | None = None  # what the last comparison with the source has shown
    is_settle_parked: bool | None = None  # the tail is left alone, because settling it failed
    # how many things are wrong, by check and severity
    findings: Mapping[tuple[str, str], int] = field(default_factory=dict)
    seconds: float = 0.0  # how long taking the figures took

    @property
    def read_amplification(self) -> float | None:
        """Parts that a read of one point of the sort key opens, on average; None if the clustering is not known."""
        return self.clustered.depth_average + self.tail_parts if self.clustered else None


# -- Figures of the commits of the last hour, read from the log: the same in every process, also after a restart -----------
#
# 1. The first look begins at the newest commit. Each look reads the new commits, then older ones until an hour is covered, the
#    log begins, or the look's time is over; the next look continues there.
# 2. A commit is reduced to a few numbers: what came in, and what was written by which kind of work. They are summed per
#    ``_STEP_SECONDS``, so that memory does not grow with the number of commits. Sums that begin over an hour ago are subtracted.
#
# Bytes are those that a commit added to the store: parts that it added under a new path, and vectors that are not inline.


WINDOW_SECONDS = 3600.0
_STEP_SECONDS = 10.0
_BEHIND_MAX = 5_000
_LOOK_SECONDS_MAX = 1.0
_WRITERS = {
    CommitKind.APPEND: "ingest", CommitKind.REPLACE_PARTITION: "ingest", CommitKind.SETTLE: "settle",
    CommitKind.MERGE: "merge", CommitKind.UPLOAD: "upload", CommitKind.MUTATION: "mutation",
}  # fmt: skip
_OPERATIONS = {operation.value: operation.lower().replace(" ", "_") for operation in Operation}


def operation_label(operation: str) -> str:
    """A commit's operation as a label: one of a bounded list, or other."""
    return _OPERATIONS.get(operation, "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFigures:
    timestamp_ms: int
    operation: str
    writer: str | None
    written_bytes: int
    ingested_rows: int
    ingested_bytes: int


@dataclass(slots=True, kw_only=True)
class _Sums:
    """Sums over the commits of one step, or of all steps."""

    since_ms: int = 0
    rows: int = 0
    bytes: int = 0
    batches: int = 0
    written: Counter[str] = field(default_factory=Counter)
    commits: Counter[str] = field(default_factory=Counter)

    def add(self, commit: CommitFigures) -> None:
        self.rows += commit.ingested_rows
        self.bytes += commit.ingested_bytes
        self.batches += commit.ingested_rows > 0
        self.commits[commit.operation] += 1
        if commit.writer:
            self.written[commit.writer] += commit.written_bytes

    def subtract(self, other: _Sums) -> None:
        self.rows -= other.rows
        self.bytes -= other.bytes
        self.batches -= other.batches
        self.written.subtract(other.written)
        self.commits.subtract(other.commits)


class RecentCommits:
    """Follows one log. Not thread-safe."""

    def __init__(self, log: TableLog, clock: Callable[[], float] = time.time) -> None:
        self._log = log
        self._clock = clock
        self._begin(-1)

    def read(self, newest: int, seconds_max: float) -> Recent:
        """The figures up to the version ``newest``. Reading older commits takes at most ``seconds_max`` of CPU time."""
        deadline, enough = time.monotonic() + _LOOK_SECONDS_MAX, time.thread_time() + seconds_max
        now = self._clock()
        oldest_ms = int((now - WINDOW_SECONDS) * 1000)
        if self._last < 0 or not self._last <= newest <= self._last + _BEHIND_MAX:
            self._begin(newest)
        self._forward(newest, deadline)
        self._backward(oldest_ms, lambda: time.monotonic() >= deadline or time.thread_time() >= enough)
        while self._steps and self._steps[0].since_ms < oldest_ms:
            self._all.subtract(self._steps.popleft())
            self._is_whole = True
        return self._recent(now)

    def _begin(self, newest: int) -> None:
        """Forget all sums; reading begins at this version."""
        self._first = newest
        self._last = newest - 1
        self._steps: deque[_Sums] = deque()
        self._all = _Sums()
        self._is_whole = False  # whether all of the last hour, or of the log, is in the sums
        self._since_ms = self._ingested_ms = 0

    def _forward(self, newest: int, deadline: float) -> None:
        while self._last < newest and (time.monotonic() < deadline or not self._steps):
            commit = self._log.read_commit(self._last + 1)
            if commit is None:  # the log was cleaned meanwhile
                self._begin(newest)
                return
            self._last += 1
            self._add(figures_of(commit), -1)

    def _backward(self, oldest_ms: int, is_over: Callable[[], bool]) -> None:
        while not self._is_whole and not is_over():
            commit = self._older()
            if commit is None or commit.timestamp_ms < oldest_ms:
                self._is_whole = True
                return
            self._first -= 1
            self._add(figures_of(commit), 0)

    def _older(self) -> Commit | None:
        """The commit before the oldest one read; None if there is none, or it can't be read."""
        with suppress(Corrupt):
            return self._log.read_commit(self._first - 1) if self._first > 0 else None
        return None

    def _add(self, commit: CommitFigures, end: int) -> None:
        """Add a commit that is newer (``end`` -1) or older (0) than all before it."""
        since_ms = int(commit.timestamp_ms - commit.timestamp_ms % (_STEP_SECONDS * 1000))
        if not self._steps or end == 0:
            self._since_ms = commit.timestamp_ms
        if not self._steps or self._steps[end].since_ms != since_ms:
            self._steps.insert(len(self._steps) if end else 0, _Sums(since_ms=since_ms))
        self._steps[end].add(commit)
        self._all.add(commit)
        if commit.ingested_rows:
            self._ingested_ms = max(self._ingested_ms, commit.timestamp_ms)

    def _recent(self, now: float) -> Recent:
        sums = self._all
        covered = WINDOW_SECONDS
        if not self._is_whole:
            covered = max(0.0, now - self._since_ms / 1000) if self._steps else 0.0
        ingested_at = self._ingested_ms / 1000 if self._ingested_ms else None
        if self._is_whole:
            ingested_at = max(ingested_at or 0.0, now - WINDOW_SECONDS)
        return Recent(
            seconds=covered,
            ingested_rows=sums.rows,
            ingested_bytes=sums.bytes,
            batches=sums.batches,
            written_bytes=dict(sums.written),
            commits=dict(sums.commits),
            write_amplification=sums.written.total() / sums.bytes if sums.bytes else None,
            ingested_at=ingested_at,
        )


def figures_of(commit: Commit) -> CommitFigures:
    info = commit.info
    operation = info.operation if info else ""
    writer = _WRITERS.get(kind_of(commit))
    removed = {action.path for action in commit.actions if isinstance(action, RemovePart)}
    settled = {action.domain for action in commit.actions if isinstance(action, RemoveChangePart)}
    rows = size = vectors = 0
    for action in commit.actions:
        if isinstance(action, AddChangePart):
            rows, size = rows + action.part.rows, size + action.part.bytes
        elif isinstance(action, AddPart):
            part = action.part
            if part.path not in removed and part_domain(part.path) not in settled:
                rows, size = rows + part.rows, size + part.bytes
            if part.deletion_vector and part.deletion_vector.storage != "i":
                vectors += part.deletion_vector.bytes
    ingests = writer == "ingest"
    return CommitFigures(
        timestamp_ms=commit.timestamp_ms,
        operation=operation_label(operation),
        writer=writer,
        written_bytes=size + vectors,
        ingested_rows=rows if ingests else 0,
        ingested_bytes=size if ingests else 0,
    )
