"""What a merge reads where parts on the local disk stand for some of its sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyroaring import BitMap64

from lakebed.compaction.merge import Sources
from lakebed.errors import Corrupt
from lakebed.log.actions import Part
from lakebed.log.claims import Claim
from lakebed.log.snapshot import Snapshot
from lakebed.merge.kernel import MergedPart
from lakebed.merge.materialized import Materialized, Substitute, overlay
from lakebed.merge.provenance import Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalInputs:
    """``read``: the inputs of the kernel, normal parts first; ``below``: of each, what it is made of, by the claim's sources."""

    read: Sources
    below: tuple[Provenance | int, ...]

    def traced(self, merged: Sequence[MergedPart]) -> tuple[MergedPart, ...]:
        """What the kernel wrote, with the provenance of its rows in the claim's sources in place of its inputs."""
        return tuple(replace(part, provenance=part.provenance.compose(self.below)) for part in merged)


def local_inputs(
    claim: Claim, snapshot: Snapshot, chosen: Sequence[Materialized], dead_of: Callable[[Part], BitMap64]
) -> LocalInputs:
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
    return LocalInputs(read=Sources(inputs, dead), below=below)


def _below(path: str, ordinals: Mapping[str, int], substitute: Substitute | None) -> Provenance | int:
    """What an input of a merge is made of, in terms of the claim's sources."""
    if substitute is None:
        return ordinals[path]
    [part] = [part for part in substitute.of.parts if substitute.of.url(part) == path]
    return part.provenance.renumbered([ordinals[source.path] for source in substitute.of.sources])
