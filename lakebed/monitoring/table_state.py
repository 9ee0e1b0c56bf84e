"""What a table looks like at one moment, in a few figures: for gauges and for the display."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa


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


def table_state(detail: pa.Table, parts: pa.Table) -> TableState:
    """The state out of what ``Table.detail`` and ``Table.parts`` return."""
    row = detail.to_pylist()[0]
    states, levels = parts["state"].to_pylist(), parts["level"].to_pylist()
    by_level = Counter(level for state, level in zip(states, levels, strict=True) if state == "base")
    return TableState(
        row["version"], row["rows"], row["dead_rows"], row["bytes"], row["tail_parts"], row["tail_rows"],
        tuple(sorted(by_level.items())),
    )  # fmt: skip
