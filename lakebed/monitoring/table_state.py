"""What a table looks like at one moment, in a few figures: for gauges and for the display."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lakebed.manifest.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class TableState:
    """Counts at one version. ``bytes`` are those of all live parts, ``dead_rows`` still take space in them."""

    version: int
    rows: int
    dead_rows: int
    bytes: int
    tail_parts: int
    tail_rows: int
    parts_by_level: tuple[tuple[int, int], ...]

    @property
    def parts(self) -> int:
        """Parts of the base."""
        return sum(count for _, count in self.parts_by_level)


def table_state(snapshot: Snapshot) -> TableState:
    """The state at a version. Sums over the parts in memory: cheap enough for every second."""
    base, tail = snapshot.parts.values(), snapshot.tail.values()
    return TableState(
        version=snapshot.version,
        rows=sum(part.live_rows for part in base),
        dead_rows=sum(part.dead_rows for part in base),
        bytes=sum(part.bytes for part in base) + sum(part.bytes for part in tail),
        tail_parts=len(tail),
        tail_rows=sum(part.rows for part in tail),
        parts_by_level=tuple(sorted(Counter(part.level for part in base).items())),
    )
