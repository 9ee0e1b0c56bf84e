"""What the planner answers: plans, and why it left the rest alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lakebed.manifest.actions import PartitionKey


class PlanKind(Enum):
    """What a plan does to its inputs."""

    SETTLE = "settle"
    MERGE = "merge"
    PURGE = "purge"  # a merge of one part whose dead rows go
    RECLUSTER = "recluster"  # a merge of parts of one level that makes it shallower
    RESORT = "resort"  # a merge of parts that are sorted by an earlier sort key


class Cause(Enum):
    """Why something was left alone."""

    OFF = "off"  # the table's settings say so
    WITHIN_READ_BUDGET = "within_read_budget"
    CLAIMED = "claimed"  # parts that live claims name stand where the depth is
    CONSTANT = "constant"  # full parts that no sorting can tell apart
    PLAN_BYTES = "plan_bytes"  # not even two parts fit into lakebed.plan_bytes_max
    IN_FLIGHT = "in_flight"  # enough is under way
    OFF_PEAK = "off_peak"  # heavy, and it can wait for the hours of lakebed.off_peak
    FEW_DEAD = "few_dead"  # dead rows, but fewer than lakebed.purge_dead_ratio
    DELAYED = "delayed"  # the tail waits until settling pays
    WITHIN_DEPTH = "within_depth"  # every level's average depth is within lakebed.recluster_depth
    NO_ORDER = "no_order"  # neither a sort key nor keys
    NO_GAIN = "no_gain"  # it would not lower the measure that says that merges come to an end


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One piece of work on parts of one partition (a settle: on the whole tail).

    ``inputs`` are paths. ``level`` is that of the parts it makes. ``bytes_in`` are read (whole files), ``bytes_out`` and
    ``rows_in`` − ``dead_rows`` are predicted to be written; a settle writes vectors only. Depths are in runs, at the deepest
    point of the inputs. ``gain`` is the read work that it saves a reader of these parts, in bytes, where opening a part
    counts as ``PART_READ_BYTES``.
    """

    kind: PlanKind
    partition: PartitionKey
    inputs: tuple[str, ...]
    level: int
    rows_in: int
    bytes_in: int
    bytes_out: int
    dead_rows: int
    depth_before: int
    depth_after: int
    gain: int
    why: str

    def foretold(self) -> dict[str, object]:
        """What the commit of a merge repeats of its plan, to be held against what it came to."""
        return {
            "plan": self.kind.value, "why": self.why, "rowsForetold": self.rows_in - self.dead_rows,
            "bytesForetold": self.bytes_out,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refusal:
    """``count`` of something was left alone for this cause; ``why`` says of what."""

    cause: Cause
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class Planning:
    """The answer of one round, best plans first.

    ``backlog_bytes``: bytes of the plans, and of free parts that stand where the read budget is still exceeded.
    ``depth_max``: the deepest point of the base as readers meet it now, in runs, claimed parts included; in a partition of few
    parts those that only touch may count.
    """

    plans: tuple[Plan, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    backlog_bytes: int = 0
    depth_max: int = 0


PART_READ_BYTES = 4 * 2**20
"""What opening one more part costs a reader, as Spark's planner weighs it (spark.sql.files.openCostInBytes)."""
