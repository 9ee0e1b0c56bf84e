"""What of a table with parts on a local disk is put into the store. Pure.

1. What the planner merges for readers elsewhere (``Goal.ELSEWHERE``), which bounds the runs that they meet.
2. Parts that are old, or that are too many bytes for the disk: what other readers of a table into which little comes read is
   merged for them too, if late (``UploadRules``).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lakebed.planning.plan import MergeKind, MergePlan, Planning


class Held(Protocol):
    """What one merge wrote to the local disk. ``oldest_ms``: when the first of the merges behind it was made."""

    @property
    def bytes(self) -> int: ...

    @property
    def oldest_ms(self) -> int: ...


_Held = TypeVar("_Held", bound=Held)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRules:
    """Says when a part on a local disk is uploaded: when it is old, or the largest ones when there are too many bytes."""

    age_seconds: float
    local_bytes_max: int

    def due(self, held: Sequence[_Held], now_ms: int) -> list[_Held]:
        """The parts that are due, in the order in which to upload them."""
        chosen = [one for one in held if now_ms - one.oldest_ms >= self.age_seconds * 1000]
        rest = sorted((one for one in held if one not in chosen), key=lambda one: one.bytes)
        while rest and sum(one.bytes for one in rest) > self.local_bytes_max:
            chosen.append(rest.pop())
        return chosen


def uploaded_plans(planning: Planning, below: Set[str]) -> list[MergePlan]:
    """Those plans for readers elsewhere that run now. ``below``: paths of the parts that parts on the local disk stand for.

    These are not purged or sorted again alone: they will be merged soon, and what stands for them would have to be made again.
    """
    return [plan for plan in planning.merges if plan.kind is MergeKind.MERGE or below.isdisjoint(plan.inputs)]
