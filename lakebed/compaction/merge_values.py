"""The values of a merge: what it is given, what its kernel reads (also from parts on the local disk), and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from pyroaring import BitMap64

from lakebed.errors import Corrupt
from lakebed.log.actions import Part
from lakebed.log.claims import Claim
from lakebed.log.snapshot import Snapshot
from lakebed.merge.kernel import MergedPart, MergeSource
from lakebed.merge.materialized import Materialized, Substitute, overlay
from lakebed.merge.provenance import Provenance
from lakebed.parts.changes import WriteSpec
from lakebed.planning.plan import Goal
from lakebed.storage.part_storage import PartStorage

Progress = Callable[[int], None]
"""Gets the rows of the output written so far; raises Cancelled when the merge should stop."""


class MergeKernel(Protocol):
    """Does the work of step 2 (``compaction.compaction``)."""

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        """The merged parts, written to ``output``. Raises what ``progress`` raises; no file remains then."""
        ...


def no_progress(rows: int) -> None:
    """Ignores the progress of a merge."""


class MergeOutcome(Enum):
    """How a merge ended."""

    COMPLETED = "completed"
    CLAIMED = "claimed"  # another live claim lists a source
    PARKED = "parked"  # merges of a source ended their processes, or failed
    REPLACED = "replaced"  # a source left the base
    OVERTAKEN = "overtaken"  # the lease ended and another replica took the sources
    CANCELLED = "cancelled"  # the replica stops


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What a merge did; ``version`` is its commit's. All counts are 0 unless it was completed.

    ``local``: the output stays on the replica's disk for now; ``version`` is the claim's. ``bytes_out`` are those of parts,
    ``vector_bytes`` those of deletion vectors beside them.
    """

    outcome: MergeOutcome
    claim: str
    version: int = -1
    parts_in: int = 0
    parts_out: int = 0
    rows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    carried_rows: int = 0
    conflicts: int = 0
    seconds: float = 0.0
    local: bool = False
    vector_bytes: int = 0

    def metrics(self) -> dict[str, int]:
        """What the commit of the merge says of it."""
        return {
            "partsIn": self.parts_in,
            "partsOut": self.parts_out,
            "rows": self.rows,
            "bytesIn": self.bytes_in,
            "bytesOut": self.bytes_out,
            "carriedRows": self.carried_rows,
        }


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a merge as they were read."""

    parts: tuple[Part, ...]
    dead: Mapping[str, BitMap64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningView:
    """What the planner is given: the table as some readers see it, and what live claims of others list.

    ``below``: paths of parts that parts on the local disk stand for.
    """

    snapshot: Snapshot
    claimed: frozenset[str]
    goal: Goal = Goal.ALL
    below: frozenset[str] = frozenset()


def found_again(claim: Claim, sources: Sources, merged: Sequence[MergedPart], snapshot: Snapshot) -> MergeResult:
    """The result of a commit that succeeded although the store did not confirm it; none of its files may be deleted."""
    return MergeResult(
        outcome=MergeOutcome.COMPLETED,
        claim=claim.id,
        version=snapshot.version,
        parts_in=len(sources.parts),
        parts_out=len(merged),
        rows=sum(part.rows for part in merged),
        bytes_in=sum(part.bytes for part in sources.parts),
        bytes_out=sum(part.bytes for part in merged),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalInputs:
    """``read``: the inputs of the kernel, normal parts first; ``below``: of each, what it is made of, by the claim's sources."""

    read: Sources
    below: tuple[Provenance | int, ...]

    def traced(self, merged: Sequence[MergedPart]) -> tuple[MergedPart, ...]:
        """What the kernel wrote, with the provenance of its rows in the claim's sources in place of its inputs."""
        return tuple(replace(part, provenance=part.provenance.compose(self.below)) for part in merged)


def local_inputs(
    claim: Claim, snapshot: Snapshot, chosen: Sequence[Materialized], dead_of: Callable[[Part], BitMap64]
) -> _LocalInputs:
    """The claim's sources at a snapshot that has them, with ``chosen`` in place of those that they stand for.

    Raises Corrupt if one of ``chosen`` does not fit the snapshot.
    """
    covered = {part.path for one in chosen for part in one.sources}
    seen, substitutes = overlay(snapshot, chosen, dead_of)
    if {id(substitute.of) for substitute in substitutes.values()} != {id(one) for one in chosen}:
        raise Corrupt("a materialized part does not fit the table any more")
    inputs = tuple(
        seen.parts[path] for path in (*(path for path in claim.sources if path not in covered), *substitutes)
    )
    dead = {part.path: dead_of(part) for part in inputs if part.path not in substitutes}
    dead |= {path: substitute.dead for path, substitute in substitutes.items()}
    ordinals = {path: ordinal for ordinal, path in enumerate(claim.sources)}
    below = tuple(_below(part.path, ordinals, substitutes.get(part.path)) for part in inputs)
    return _LocalInputs(read=Sources(inputs, dead), below=below)


def _below(path: str, ordinals: Mapping[str, int], substitute: Substitute | None) -> Provenance | int:
    """What an input of a merge is made of, in terms of the claim's sources."""
    if substitute is None:
        return ordinals[path]
    [part] = [part for part in substitute.of.parts if substitute.of.url(part) == path]
    return part.provenance.renumbered([ordinals[source.path] for source in substitute.of.sources])
