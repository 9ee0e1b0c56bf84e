"""The arrivals in a table's own log, as a workload of the simulator.

1. An arrival is a commit that brought rows: its change parts, or for tables without keys its level-0 parts; or a mutation of
   such a table. Of changes the log says how many are deletes.
2. The settle of a batch shows how many older rows it replaced: the rows that the settle marked dead in the base are shared among
   its change parts by their rows. Batches that are not settled yet are taken to replace the same share as the others.
3. What lay in the table before is taken as one sorted run.

Times keep their hour of the day (UTC), which ``lakebed.off_peak`` asks for. Truncates, and partitions that came or went as a
whole, are left out. The log does not show where rows lie on the sort key: the user passes that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lakebed.errors import InvalidInput, VersionNotFound
from lakebed.log.actions import AddChangePart, AddPart, ChangePart, Commit, Part, RemoveChangePart, RemovePart
from lakebed.log.commit_kind import CommitKind, kind_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.planning.workload import Arrival, Order, Workload

_DAY_MS = 86_400_000
_BRINGING = (CommitKind.APPEND, CommitKind.MUTATION, CommitKind.REPLACE_PARTITION)


def recorded_workload(log: TableLog, days: float, order: Order) -> Workload:
    """What came into the table in the last so many days of its log. Raises InvalidInput if nothing did, TableNotFound."""
    newest = log.refresh()
    try:
        since = log.version_at(newest.timestamp_ms - int(days * _DAY_MS))
    except VersionNotFound:
        since = 0
    before = log.at_version(max(since, log.oldest_version()))
    trace = _Trace(before, keyed=bool(newest.settings.keys))
    for commit in log.commits_since(before.version, newest.version):
        trace.read(commit)
    if not trace.arrivals:
        raise InvalidInput(f"the log has no rows that came in its last {days:g} days; take more days")
    midnight = trace.arrivals[0].at_ms // _DAY_MS * _DAY_MS
    arrivals = [replace(arrival, at_ms=arrival.at_ms - midnight) for arrival in trace.replacing()]
    return Workload(
        arrivals=arrivals,
        update_share=trace.replaced_share,
        order=order if newest.settings.keys or newest.settings.sort_key else "none",
        partitions=max(1, round(trace.partitions / max(1, sum(arrival.rows > 0 for arrival in arrivals)))),
        base=_base(before),
    )


def _base(before: Snapshot) -> Arrival:
    """All live rows of a snapshot."""
    parts = [part for part in before.parts.values() if part.rows > 0]
    tail = before.tail.values()
    rows = sum(part.live_rows for part in parts) + sum(part.rows - part.deletes for part in tail)
    size = sum(part.bytes * part.live_rows / part.rows for part in parts) + sum(part.bytes for part in tail)
    return Arrival(at_ms=0, rows=rows, bytes=round(size))


@dataclass(slots=True)
class _Settled:
    """How many rows of an arrival were settled, and how many older rows these replaced."""

    rows: int = 0
    replaced: float = 0.0


class _Trace:
    """The commits read so far."""

    def __init__(self, before: Snapshot, keyed: bool) -> None:
        self._live = {path: part.live_rows for path, part in before.parts.items()}  # rows of the base, by part
        self.arrivals: list[Arrival] = []
        self.partitions = 0
        self._keyed = keyed
        self._of_part: dict[str, tuple[int, int]] = {}  # change parts by domain: their arrival, their rows
        self._settled: list[_Settled] = []

    def read(self, commit: Commit) -> None:
        kind, died = kind_of(commit), self._died(commit)
        if kind is CommitKind.SETTLE:
            self._settle([action.domain for action in commit.actions if isinstance(action, RemoveChangePart)], died)
        brought = _brought(commit) if kind in _BRINGING else []
        replaces = None if self._keyed else died if kind is CommitKind.MUTATION else 0
        if not brought and not replaces:
            return
        for part in brought:
            if isinstance(part, ChangePart):
                self._of_part[part.domain] = len(self.arrivals), part.rows
        rows, deletes = sum(part.rows for part in brought), sum(part.deletes for part in brought)
        self.arrivals.append(
            Arrival(
                at_ms=commit.timestamp_ms,
                rows=rows,
                bytes=sum(part.bytes for part in brought),
                deletes=deletes,
                replaces=replaces,
            )
        )
        self._settled.append(_Settled())
        self.partitions += len({part.partition_key for part in brought})

    def _died(self, commit: Commit) -> int:
        """How many rows of the base died in the commit, or left it otherwise."""
        removed = [action.path for action in commit.actions if isinstance(action, RemovePart)]
        before = {path: self._live.pop(path, 0) for path in removed}
        for action in commit.actions:
            if isinstance(action, AddPart):
                self._live[action.part.path] = action.part.live_rows
        return sum(max(0, rows - self._live.get(path, 0)) for path, rows in before.items())

    def _settle(self, domains: Iterable[str], marked: float) -> None:
        settled = [self._of_part.pop(domain) for domain in domains if domain in self._of_part]
        total = sum(rows for _, rows in settled)
        for arrival, rows in settled:
            self._settled[arrival].rows += rows
            self._settled[arrival].replaced += marked * rows / max(1, total)

    @property
    def replaced_share(self) -> float:
        """Of the settled rows, the share that replaced older ones."""
        rows = sum(settled.rows for settled in self._settled)
        return min(1.0, sum(settled.replaced for settled in self._settled) / max(1, rows))

    def replacing(self) -> list[Arrival]:
        """The arrivals, each with how many rows it replaced, where that is known."""
        return [
            replace(arrival, replaces=round(settled.replaced)) if settled.rows >= arrival.rows > 0 else arrival
            for arrival, settled in zip(self.arrivals, self._settled, strict=True)
        ]


def _brought(commit: Commit) -> list[ChangePart | Part]:
    """The parts that came with new rows: not those that only got another deletion vector."""
    marked = {action.path for action in commit.actions if isinstance(action, RemovePart)}
    out: list[ChangePart | Part] = []
    for action in commit.actions:
        match action:
            case AddChangePart(part):
                out.append(part)
            case AddPart(part, True) if part.level == 0 and part.path not in marked:
                out.append(part)
            case _:
                pass
    return out
