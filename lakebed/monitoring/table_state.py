"""What a table looks like at one moment, in figures: for gauges and for the display.

``table_state`` counts what a snapshot says by itself. What takes the planner or the commits of the last hour is added by
``health.sampler``; until then it is None, or empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from lakebed.manifest.claims import claims_of
from lakebed.manifest.leases import leases_of
from lakebed.manifest.snapshot import Snapshot

LevelState = tuple[int, str]
"""A level, and normal, materialized or volatile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What the planner says of a snapshot. ``depth_max`` is in runs of parts; ``plans`` and ``refused`` are counts."""

    backlog_bytes: int = 0
    depth_max: int = 0
    plans: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    backpressure_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Clustered:
    """Averages over the parts of the base."""

    depth_average: float = 0.0
    overlaps_average: float = 0.0


@dataclass(frozen=True, slots=True)
class Stored:
    """What lies below the table's root. Orphans: files without a name that running maintenance would have deleted by now."""

    bytes: int
    orphans: int
    orphan_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """What the commits of the last hour brought, of which ``seconds`` have been read so far.

    ``batches``: commits that brought rows. ``written_bytes`` by who wrote them. Amplifications are None if nothing came in.
    ``ingested_at``: epoch seconds at which rows last came in, or an hour ago if that is longer; None if it is not known yet.
    """

    seconds: float = 0.0
    batches: int = 0
    ingested_rows: int = 0
    ingested_bytes: int = 0
    written_bytes: Mapping[str, int] = field(default_factory=dict)
    commits: Mapping[str, int] = field(default_factory=dict)
    write_amplification: float | None = None
    write_amplification_reference: float | None = None
    ingested_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """Counts at one version. ``bytes`` are those of all live parts, ``dead_rows`` still take space in them.

    Ages are in seconds, 0 where there is nothing to be of an age. ``committed_at``: epoch seconds. ``parts_by_state`` counts what
    is not in the base: materialized and volatile parts by level.
    """

    version: int
    rows: int
    dead_rows: int
    bytes: int
    tail_parts: int
    tail_rows: int
    parts_by_level: tuple[tuple[int, int], ...]
    bytes_by_level: tuple[tuple[int, int], ...] = ()
    live_bytes: float = 0.0
    tail_bytes: int = 0
    tail_age_seconds: float = 0.0
    compaction_lag_seconds: float = 0.0
    committed_at: float = 0.0
    read_budget: int = 0
    unsorted_parts: int = 0
    claims_live: int = 0
    claims_expired: int = 0
    claim_age_seconds: float = 0.0
    held_versions: int = 0
    parts_by_state: Mapping[LevelState, int] = field(default_factory=dict)
    bytes_by_state: Mapping[LevelState, int] = field(default_factory=dict)
    planned: Planned | None = None
    clustered: Clustered | None = None
    recent: Recent | None = None
    stored: Stored | None = None
    quarantine_rows: int | None = None
    parked_parts: int | None = None  # known where merges run
    seconds: float = 0.0

    @property
    def parts(self) -> int:
        """Parts of the base."""
        return sum(count for _, count in self.parts_by_level)

    @property
    def dead_row_ratio(self) -> float:
        """Dead rows among all rows of the base."""
        return self.dead_rows / (self.rows + self.dead_rows) if self.dead_rows else 0.0

    @property
    def space_amplification(self) -> float:
        """Bytes of the parts ÷ the share of them that live rows take; 1 for an empty table."""
        return self.bytes / self.live_bytes if self.live_bytes else 1.0

    @property
    def read_amplification(self) -> float | None:
        """Parts that a read of one point of the sort key opens, on average; None if the clustering is not known."""
        return self.clustered.depth_average + self.tail_parts if self.clustered else None


def table_state(snapshot: Snapshot, now_ms: int | None = None) -> TableState:
    """The state at a version. Sums over the parts in memory: cheap enough for every second.

    ``now_ms``: the time, in epoch milliseconds (default: the newest commit's).
    """
    now_ms = snapshot.timestamp_ms if now_ms is None else now_ms
    tail, settings = snapshot.tail.values(), snapshot.settings
    claims = claims_of(snapshot.domains).values()
    claimed = {path for claim in claims if claim.is_live(now_ms) for path in claim.sources}
    rows = dead = unsorted = 0
    live_bytes = 0.0
    parts: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    oldest_ms = now_ms
    for part in snapshot.parts.values():
        gone = part.dead_rows
        rows, dead = rows + part.rows - gone, dead + gone
        parts[part.level] += 1
        sizes[part.level] += part.bytes
        live_bytes += part.bytes * (part.rows - gone) / part.rows if part.rows > 0 else part.bytes
        unsorted += part.sort_key_version != settings.sort_key_version
        if part.level == 0 and part.modified_ms < oldest_ms and part.path not in claimed:
            oldest_ms = part.modified_ms
    tail_bytes = sum(part.bytes for part in tail)
    live = sum(claim.is_live(now_ms) for claim in claims)
    return TableState(
        version=snapshot.version,
        rows=rows,
        dead_rows=dead,
        bytes=sizes.total() + tail_bytes,
        tail_parts=len(tail),
        tail_rows=sum(part.rows for part in tail),
        parts_by_level=tuple(sorted(parts.items())),
        bytes_by_level=tuple(sorted(sizes.items())),
        live_bytes=live_bytes + tail_bytes,
        tail_bytes=tail_bytes,
        tail_age_seconds=_age(min((part.modified_ms for part in tail), default=now_ms), now_ms),
        compaction_lag_seconds=_age(oldest_ms, now_ms),
        committed_at=snapshot.timestamp_ms / 1000,
        read_budget=settings.read_budget,
        unsorted_parts=unsorted if settings.sort_key or settings.keys else 0,
        claims_live=live,
        claims_expired=len(claims) - live,
        claim_age_seconds=_age(min((claim.since_ms for claim in claims), default=now_ms), now_ms),
        held_versions=sum(lease.is_live(now_ms) for lease in leases_of(snapshot.domains)),
    )


def _age(then_ms: int, now_ms: int) -> float:
    return max(0, now_ms - then_ms) / 1000
