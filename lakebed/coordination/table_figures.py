"""The figures of a table at one version, counted once for all that show them: ``status``, the gauges, the page, ``detail``.

Pure, from the snapshot alone. Figures that need the planner, the commits of the last hour or a listing of files are added by
``health.status`` and ``health.sampler``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lakebed.log.claims import claims_of
from lakebed.log.holds import holds_of
from lakebed.log.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """Counts at one version. Ages are None where there is nothing to measure."""

    version: int = -1  # -1 if none can be read
    committed_at: float = 0.0  # epoch seconds
    rows: int = 0  # live rows of the base
    dead_rows: int = 0  # dead rows that still take space in the base
    bytes: int = 0  # of the files of base and tail
    live_bytes: float = 0.0  # what live rows take of them
    parts_by_level: Mapping[int, int] = field(default_factory=dict)
    bytes_by_level: Mapping[int, int] = field(default_factory=dict)
    unsorted_parts: int = 0  # parts of the base that are not known to be sorted by the table's sort key
    tail_parts: int = 0
    tail_rows: int = 0
    tail_bytes: int = 0
    tail_age_seconds: float | None = None  # since the oldest change part was written
    compaction_lag_seconds: float | None = None  # since the oldest level-0 part that no live claim covers was written
    read_budget: int = 0
    claims_live: int = 0
    claims_expired: int = 0
    claim_age_seconds: float | None = None  # since the oldest claim was taken
    volatile_claims: int = 0  # live claims whose output is on some replica's disk
    versions_held: int = 0  # by readers

    @property
    def parts(self) -> int:
        """Parts of the base."""
        return sum(self.parts_by_level.values())

    @property
    def dead_row_ratio(self) -> float:
        """Dead rows among all rows of the base."""
        return self.dead_rows / (self.rows + self.dead_rows) if self.dead_rows else 0.0

    @property
    def space_amplification(self) -> float:
        """Bytes of the parts ÷ the share of them that live rows take; 1 for an empty table."""
        return self.bytes / self.live_bytes if self.live_bytes else 1.0

    def as_fields(self) -> dict[str, Any]:
        """The fields by name, to build a type with more of them."""
        return {each.name: getattr(self, each.name) for each in fields(TableFigures)}


def figures_of(snapshot: Snapshot, now_ms: int | None = None) -> TableFigures:
    """The figures at a version. One pass over the parts in memory: cheap enough for every second.

    ``now_ms``: the time, in epoch milliseconds (default: the newest commit's).
    """
    now_ms = snapshot.timestamp_ms if now_ms is None else now_ms
    tail, settings = snapshot.tail.values(), snapshot.settings
    claims = claims_of(snapshot.domains).values()
    live_claims = [claim for claim in claims if claim.is_live(now_ms)]
    claimed = {path for claim in live_claims for path in claim.sources}
    rows = dead = unsorted = 0
    live_bytes = 0.0
    parts: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    oldest_ms: int | None = None
    for part in snapshot.parts.values():
        gone = part.dead_rows
        rows, dead = rows + part.rows - gone, dead + gone
        parts[part.level] += 1
        sizes[part.level] += part.bytes
        live_bytes += part.live_bytes if gone else part.bytes  # the property costs more than all else here
        unsorted += part.sort_key_version != settings.sort_key_version
        if part.level == 0 and (oldest_ms is None or part.modified_ms < oldest_ms) and part.path not in claimed:
            oldest_ms = part.modified_ms
    tail_bytes = sum(part.bytes for part in tail)
    return TableFigures(
        version=snapshot.version,
        committed_at=snapshot.timestamp_ms / 1000,
        rows=rows,
        dead_rows=dead,
        bytes=sizes.total() + tail_bytes,
        live_bytes=live_bytes + tail_bytes,
        parts_by_level=dict(sorted(parts.items())),
        bytes_by_level=dict(sorted(sizes.items())),
        unsorted_parts=unsorted if settings.order_by else 0,
        tail_parts=len(tail),
        tail_rows=sum(part.rows for part in tail),
        tail_bytes=tail_bytes,
        tail_age_seconds=_age(min((part.modified_ms for part in tail), default=None), now_ms),
        compaction_lag_seconds=_age(oldest_ms, now_ms),
        read_budget=settings.read_budget,
        claims_live=len(live_claims),
        claims_expired=len(claims) - len(live_claims),
        claim_age_seconds=_age(min((claim.since_ms for claim in claims), default=None), now_ms),
        volatile_claims=sum(claim.volatile for claim in live_claims),
        versions_held=sum(hold.is_live(now_ms) for hold in holds_of(snapshot.domains)),
    )


def _age(then_ms: int | None, now_ms: int) -> float | None:
    return None if then_ms is None else max(0, now_ms - then_ms) / 1000
