"""The figures of a table at one moment, for gauges and for the display.

Beside the figures of the snapshot itself (``coordination.table_figures``) they include those that need the planner or the commits
of the last hour; ``health.sampler`` adds these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakebed.coordination.table_figures import TableFigures

LevelState = tuple[int, str]
"""A level, and normal, materialized or volatile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The planner's figures for a snapshot. ``depth_max`` is in runs of parts; ``plans`` and ``refused`` are counts."""

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
    """What lies below the table's root. Orphans: unreferenced files that running maintenance would have deleted by now."""

    bytes: int
    orphans: int
    orphan_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """What the commits of the last hour brought. ``seconds``: how much of that hour has been read so far.

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
class TableState(TableFigures):
    """The figures of a version, and others beside them; None is not known (yet).

    ``parts_by_state`` counts what is not in the base: materialized and volatile parts by level. ``parked_parts``: what is
    left alone because merges of it failed; ``is_settle_parked``: so is the tail. ``findings``: how many things are wrong, by
    check and severity. ``seconds``: how long taking the figures took.
    """

    parts_by_state: Mapping[LevelState, int] = field(default_factory=dict)
    bytes_by_state: Mapping[LevelState, int] = field(default_factory=dict)
    planned: Planned | None = None
    clustered: Clustered | None = None
    recent: Recent | None = None
    stored: Stored | None = None
    quarantine_rows: int | None = None
    parked_parts: int | None = None
    is_settle_parked: bool | None = None
    findings: Mapping[tuple[str, str], int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def read_amplification(self) -> float | None:
        """Parts that a read of one point of the sort key opens, on average; None if the clustering is not known."""
        return self.clustered.depth_average + self.tail_parts if self.clustered else None
