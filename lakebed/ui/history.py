"""The newest commits of a table, and its history: parts, depth and write amplification, version by version.

1. The first look begins at the newest commit. Each look reads the new commits, then, for a bounded time, older ones, until
   ``COMMITS_MAX`` commits are in memory or the log begins.
2. Counts of parts are computed backward from the newest snapshot: before a commit, the parts that it added were not there.
3. Depth is computed forward from the oldest version in memory. The ends of all ranges that the base had since then are sorted
   once. A commit then changes a few steps of a running sum, and the greatest value of the sum is the depth: the number of
   parts over one point of today's sort key.
4. Write amplification is that of the hour before a commit, as far back as commits are in memory. Rows per second are those of
   the minute before. In the tail: how long the oldest change that a commit settled had been there since it was written. When
   its event was, the log does not say: that age is *visible*, and only the process that ingests knows it.
5. Claims come and go with every merge. So the list of commits has ``LISTED_MAX`` others, and the claims between them.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from lakebed.errors import Corrupt, TableNotFound, Unsupported, VersionNotFound
from lakebed.log.actions import (
    AddChangePart,
    AddPart,
    Commit,
    Part,
    RemoveChangePart,
    RemovePart,
    Transaction,
    part_domain,
)
from lakebed.log.commit_kind import CommitKind, kind_of
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.monitoring.table_state import WINDOW_SECONDS, CommitFigures, figures_of
from lakebed.planning.plan import partition_order
from lakebed.ui.documents import cut, shown

COMMITS_MAX = 2_000
LISTED_MAX = 300
_ACTIONS_MAX = 100_000
_PARTS_MAX = 20_000
_MERGES_WEIGHED = 20
_ITEMS_MAX = 10
_WRITERS_MAX = 50
_RATE_SECONDS = 60.0
_RATE_SECONDS_MIN = 10.0
_CLAIMS: frozenset[str] = frozenset({Operation.CLAIM, Operation.EXTEND_CLAIM, Operation.ABANDON_CLAIM})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    commit: dict[str, Any]  # as the page gets it
    kind: CommitKind
    figures: CommitFigures
    added: tuple[Part, ...]
    removed: tuple[str, ...]
    tail_change: int
    tail_seconds: float | None
    writer: str

    @property
    def actions(self) -> int:
        return len(self.added) + len(self.removed)

    @property
    def version(self) -> int:
        version: int = self.commit["version"]
        return version

    @property
    def parts_change(self) -> int:
        return len(self.added) - len(self.removed)


class History:
    """Follows one log. Not thread-safe."""

    def __init__(self, log: TableLog) -> None:
        self._log = log
        self._entries: deque[_Entry] = deque()
        self._begin()

    def _begin(self) -> None:
        self._entries.clear()
        self._actions = 0
        self._is_whole = False
        # The base at the oldest version in memory, once no older one will be read.
        self._before: dict[str, Part] | None = None

    def look(self, snapshot: Snapshot, seconds_max: float) -> bool:
        """Read new commits, then more of the older ones; returns whether the commits in memory changed."""
        before = (self._entries[0].version, self._entries[-1].version) if self._entries else None
        if self._entries and not 0 <= snapshot.version - self._entries[-1].version <= COMMITS_MAX:
            self._begin()
        newest = self._entries[-1].version if self._entries else snapshot.version - 1
        for version in range(newest + 1, snapshot.version + 1):
            commit = self._log.read_commit(version)
            if commit is None:  # the log was cleaned meanwhile
                self._begin()
                return True
            self._add(_entry(commit), self._entries.append)
        self._shorten()
        deadline = time.monotonic() + seconds_max
        while not self._is_whole and time.monotonic() < deadline:
            commit = self._older()
            if commit is None:
                self._is_whole = True
            else:
                self._add(_entry(commit), self._entries.appendleft)
                self._is_whole = len(self._entries) >= COMMITS_MAX or self._actions > _ACTIONS_MAX
            if self._is_whole:
                self._before = self._base_at(self._entries[0].version)
        now = (self._entries[0].version, self._entries[-1].version) if self._entries else None
        return now != before

    @property
    def is_whole(self) -> bool:
        """Whether no look will read older commits."""
        return self._is_whole

    def merge_rate(self) -> tuple[float, int] | None:
        """Bytes per second of the newest merges, from claim to commit, and how many merges these are; None without any."""
        seconds = size = 0.0
        count = 0
        for entry in reversed(self._entries):
            metrics = entry.commit["metrics"]
            if entry.kind is CommitKind.MERGE and metrics.get("seconds") and metrics.get("bytesIn"):
                seconds, size, count = seconds + metrics["seconds"], size + metrics["bytesIn"], count + 1
                if count == _MERGES_WEIGHED:
                    break
        return (size / seconds, count) if count else None

    def document(self, snapshot: Snapshot) -> dict[str, Any]:
        """The newest commits as the page gets them, newest first, and the curves, oldest first."""
        entries = list(self._entries)
        parts, tail = _counts(entries, snapshot)
        return {
            "version": snapshot.version,
            "commits": _listed(entries),
            "writers": _writers(entries),
            "is_whole": self._is_whole,
            "curves": {
                "version": [entry.version for entry in entries],
                "at_ms": [entry.figures.timestamp_ms for entry in entries],
                "parts": parts,
                "tail_parts": tail,
                "depth": self._depths(snapshot),
                "write_amplification": _amplifications(entries),
                "rows_per_second": _rates(entries),
                "tail_seconds": _in_tail(entries),
            },
            "read_budget": snapshot.settings.read_budget,
        }

    def _add(self, entry: _Entry, put: Callable[[_Entry], None]) -> None:
        put(entry)
        self._actions += entry.actions

    def _shorten(self) -> None:
        while len(self._entries) > COMMITS_MAX or (self._actions > 2 * _ACTIONS_MAX and len(self._entries) > 1):
            self._actions -= self._entries.popleft().actions
            if self._before is not None:
                _change(self._before, self._entries[0])

    def _older(self) -> Commit | None:
        """The commit before the oldest one in memory; None if there is none, or it can't be read."""
        first = self._entries[0].version
        with suppress(Corrupt):
            return self._log.read_commit(first - 1) if first > 0 else None
        return None

    def _base_at(self, version: int) -> dict[str, Part] | None:
        with suppress(VersionNotFound, TableNotFound, Corrupt, Unsupported):
            found = self._log.at_version(version).parts
            return dict(found) if len(found) <= _PARTS_MAX else None
        return None

    def _depths(self, snapshot: Snapshot) -> list[int] | None:
        """The depth after each commit; None without an order, with too many parts, or if the oldest version can't be read."""
        terms = snapshot.order_terms
        if self._before is None or not terms or len(snapshot.parts) > _PARTS_MAX:
            return None
        steps = [self._before.values(), *(entry.added for entry in list(self._entries)[1:])]
        every = {part.path: part for step in steps for part in step}
        ends: dict[str, tuple[Any, Any]] = {}
        ranges = self._log.statistics.ranges([part.stats for part in every.values()], terms).ranges
        for part, range_ in zip(every.values(), ranges, strict=True):
            where = tuple(partition_order(part.partition_key))
            ends[part.path] = (where, range_.lower), (where, range_.upper)
        rank = {end: place for place, end in enumerate(sorted({end for both in ends.values() for end in both}))}
        at = {path: (rank[first], rank[last] + 1) for path, (first, last) in ends.items()}
        change = np.zeros(len(rank) + 1, dtype=np.int64)
        base = dict(self._before)
        for path in base:
            change[at[path][0]] += 1
            change[at[path][1]] -= 1
        depths = [int(np.cumsum(change).max(initial=0))]
        for entry in list(self._entries)[1:]:
            for path in entry.removed:
                if base.pop(path, None) is not None:
                    change[at[path][0]] -= 1
                    change[at[path][1]] += 1
            for part in entry.added:
                if part.path not in base:
                    change[at[part.path][0]] += 1
                    change[at[part.path][1]] -= 1
                base[part.path] = part
            depths.append(int(np.cumsum(change).max(initial=0)) if entry.actions else depths[-1])
        return depths


def _change(base: dict[str, Part], entry: _Entry) -> None:
    for path in entry.removed:
        base.pop(path, None)
    base.update((part.path, part) for part in entry.added)


def _counts(entries: list[_Entry], snapshot: Snapshot) -> tuple[list[int], list[int]]:
    parts, tail = [], []
    base, behind = len(snapshot.parts), len(snapshot.tail)
    for entry in reversed(entries):
        parts.append(base)
        tail.append(behind)
        base, behind = base - entry.parts_change, behind - entry.tail_change
    return parts[::-1], tail[::-1]


def _amplifications(entries: list[_Entry]) -> list[float | None]:
    """Bytes written ÷ bytes ingested in the hour up to each commit; None where nothing came in."""
    out: list[float | None] = []
    first = written = ingested = 0
    for entry in entries:
        figures = entry.figures
        written += figures.written_bytes if figures.writer else 0
        ingested += figures.ingested_bytes
        while entries[first].figures.timestamp_ms < figures.timestamp_ms - WINDOW_SECONDS * 1000:
            gone = entries[first].figures
            written -= gone.written_bytes if gone.writer else 0
            ingested -= gone.ingested_bytes
            first += 1
        out.append(round(written / ingested, 4) if ingested else None)
    return out


def _rates(entries: list[_Entry]) -> list[float]:
    """Rows that came in within the minute up to each commit, per second; at the beginning within ten seconds or more."""
    out: list[float] = []
    first = rows = 0
    for entry in entries:
        at_ms = entry.figures.timestamp_ms
        rows += entry.figures.ingested_rows
        while entries[first].figures.timestamp_ms < at_ms - _RATE_SECONDS * 1000:
            rows -= entries[first].figures.ingested_rows
            first += 1
        known = (at_ms - entries[0].figures.timestamp_ms) / 1000
        out.append(round(rows / min(_RATE_SECONDS, max(_RATE_SECONDS_MIN, known)), 2))
    return out


def _in_tail(entries: list[_Entry]) -> list[float | None]:
    """At each commit, how long the oldest change of the newest settle had waited; None before the first settle."""
    out: list[float | None] = []
    newest = None
    for entry in entries:
        newest = newest if entry.tail_seconds is None else entry.tail_seconds
        out.append(newest)
    return out


def _listed(entries: list[_Entry]) -> list[dict[str, Any]]:
    """The newest ``LISTED_MAX`` commits that are no claims, and at most as many claims, newest first."""
    out: list[dict[str, Any]] = []
    left = {True: LISTED_MAX, False: LISTED_MAX}
    for entry in reversed(entries):
        is_claim = entry.commit["is_claim"]
        if not is_claim and not left[False]:
            break
        if left[is_claim]:
            left[is_claim] -= 1
            out.append(entry.commit)
    return out


def _writers(entries: list[_Entry]) -> list[dict[str, Any]]:
    """Who committed within the last hour of commits, and what; those who brought most commits first."""
    found: dict[str, dict[str, Any]] = {}
    for entry in reversed(entries):
        figures = entry.figures
        if figures.timestamp_ms < entries[-1].figures.timestamp_ms - WINDOW_SECONDS * 1000:
            break
        if entry.writer not in found:
            found[entry.writer] = {
                "who": entry.writer,
                "engine": entry.commit["engine"],
                "newest_ms": figures.timestamp_ms,
                "commits": Counter(),
                "ingested_rows": 0,
                "written_bytes": 0,
            }
        one = found[entry.writer]
        one["commits"][entry.commit["operation"]] += 1
        one["ingested_rows"] += figures.ingested_rows
        one["written_bytes"] += figures.written_bytes if figures.writer else 0
    ordered = sorted(found.values(), key=lambda one: (-one["commits"].total(), one["who"]))
    return [one | {"commits": dict(one["commits"].most_common(_ITEMS_MAX))} for one in ordered[:_WRITERS_MAX]]


def _entry(commit: Commit) -> _Entry:
    info, figures = commit.info, figures_of(commit)
    added = tuple(action.part for action in commit.actions if isinstance(action, AddPart))
    removed = tuple(action.path for action in commit.actions if isinstance(action, RemovePart))
    marked = len({part.path for part in added}.intersection(removed))
    arrived = sum(isinstance(action, AddChangePart) for action in commit.actions)
    settled = sum(isinstance(action, RemoveChangePart) for action in commit.actions)
    metrics: Mapping[str, Any] = info.metrics if info else {}
    document = {
        "version": commit.version,
        "at_ms": figures.timestamp_ms,
        "operation": cut(info.operation) if info else "",
        "engine": cut(info.engine) if info else "",
        "parameters": shown(dict(info.parameters)) if info else {},
        "metrics": shown(dict(metrics)),
        "parts_added": len(added) - marked,
        "parts_removed": len(removed) - marked,
        "parts_marked": marked,
        "change_parts_added": arrived,
        "change_parts_settled": settled,
        "written_bytes": figures.written_bytes,
        "ingested_rows": figures.ingested_rows,
        "is_claim": info is not None and info.operation in _CLAIMS,
    }
    return _Entry(
        commit=document,
        kind=kind_of(commit),
        figures=figures,
        added=added,
        removed=removed,
        tail_change=arrived - settled,
        tail_seconds=_seconds_in_tail(commit, added),
        writer=_writer(commit),
    )


def _seconds_in_tail(commit: Commit, added: tuple[Part, ...]) -> float | None:
    """How long the oldest change part that the commit settles had been written; None if it settles none."""
    settled = {action.domain for action in commit.actions if isinstance(action, RemoveChangePart)}
    since_ms = min((part.modified_ms for part in added if part_domain(part.path) in settled), default=None)
    return None if since_ms is None else max(0, commit.timestamp_ms - since_ms) / 1000


def _writer(commit: Commit) -> str:
    """The replica, the streaming query or the program that made a commit."""
    info = commit.info
    replica = info.parameters.get("replica") if info else None
    if isinstance(replica, str) and replica:
        return cut(replica)
    query = next((action.app_id for action in commit.actions if isinstance(action, Transaction)), "")
    return cut(query or (info.engine if info else "") or "unknown")
